// The answer, drawn: cards, memory by pipeline rank, step time by part, tables.

const GIB = 2 ** 30;
const SHOWN_SHARE = 0.001;
export const at = (id) => document.getElementById(id);

export function element(name, text, properties = {}) {
  const made = document.createElement(name);
  if (text != null) made.textContent = text;
  return Object.assign(made, properties);
}

export function list(id, lines) {
  at(id).replaceChildren(...lines.map((line) => element("li", line)));
}

export function seconds(value) {
  if (value >= 1) return `${value.toFixed(2)} s`;
  return value >= 1e-3 ? `${(value * 1e3).toFixed(1)} ms` : `${(value * 1e6).toFixed(0)} us`;
}

export const needed = (rank) => rank.allocated + rank.slack + rank.context;

export function drawSummary(answer) {
  const { prediction, label } = answer;
  const most = Math.max(...prediction.memory.map(needed));
  at("label").textContent = label;
  at("step-time").textContent = seconds(prediction.step_time_s);
  at("step-time").dataset.value = prediction.step_time_s;
  at("step-range").textContent = answer.range_line;
  at("tokens").textContent = Math.round(prediction.tokens_per_s_per_gpu).toLocaleString("en");
  at("mfu").textContent = prediction.mfu == null ? "" : `MFU ${(prediction.mfu * 100).toFixed(1)}%`;
  at("fullest").textContent = `${(most / GIB).toFixed(1)} GiB`;
  at("fits").textContent = answer.lacks || `of ${(prediction.gpu_memory_bytes / GIB).toFixed(1)} GiB`;
  at("memory-card").classList.toggle("no", Boolean(answer.lacks));
}

export function drawMemory(answer, categories) {
  const { memory, gpu_memory_bytes: capacity } = answer.prediction;
  const most = Math.max(capacity, ...memory.map(needed));
  at("memory").replaceChildren(...memory.map((rank, index) => rankRow(rank, index, { capacity, most, categories })));
  const legend = categories.map((name) => {
    const item = element("li", name);
    item.prepend(element("i", null, { className: name }));
    return item;
  });
  at("memory-legend").replaceChildren(...legend);
  const columns = [...categories, "allocated", "reserved"];
  const rows = memory.map((rank, index) => [`rank ${index}`, ...columns.map((name) => (rank[name] / GIB).toFixed(1))]);
  table("memory-table", ["GiB", ...columns], rows);
}

function rankRow(rank, index, { capacity, most, categories }) {
  const row = element("div", null, { className: "rank" });
  const bar = element("div", null, { className: "bar" });
  for (const name of categories) {
    const part = element("i", null, { className: name, title: `${name} ${(rank[name] / GIB).toFixed(2)} GiB` });
    part.style.width = `${(rank[name] / most) * 100}%`;
    bar.append(part);
  }
  const limit = element("i", null, { className: "limit", title: "what a plan may use of the GPU" });
  limit.style.left = `calc(${(capacity / most) * 100}% - 2px)`;
  bar.append(limit);
  row.classList.toggle("no", needed(rank) > capacity);
  const text = `${(needed(rank) / GIB).toFixed(1)} of ${(capacity / GIB).toFixed(1)}`;
  row.append(element("span", `rank ${index}`), bar, element("b", text));
  return row;
}

export function drawTime(answer, names) {
  const parts = Object.entries(answer.parts);
  const whole = parts.reduce((sum, [, value]) => sum + value, 0);
  const shown = parts.filter(([, value]) => value / whole >= SHOWN_SHARE);
  at("time").replaceChildren(...shown.map(([name, value]) => {
    const part = element("i", null, { className: name, title: `${names[name]}: ${seconds(value)}` });
    part.style.width = `${(value / whole) * 100}%`;
    return part;
  }));
  at("time").setAttribute("aria-label", shown.map(([name, value]) => `${names[name]} ${seconds(value)}`).join(", "));
  at("time-parts").replaceChildren(...shown.sort((a, b) => b[1] - a[1]).map(([name, value]) => {
    const item = element("li");
    item.append(element("i", null, { className: name }), element("span", names[name]));
    item.append(element("b", `${seconds(value)}, ${((value / whole) * 100).toFixed(1)}%`));
    return item;
  }));
}

export function table(id, headings, rows) {
  const line = (cells, kind) => {
    const row = element("tr");
    row.append(...cells.map((cell) => element(kind, cell)));
    return row;
  };
  at(id).replaceChildren(line(headings, "th"), ...rows.map((row) => line(row, "td")));
}

export function refuse(id, text) {
  at(id).textContent = text || "";
  at(id).hidden = !text;
}
