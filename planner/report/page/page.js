"use strict";
// The timeline: canvas, because a step has thousands of actions. All times are microseconds.
(() => {
  const data = JSON.parse(document.getElementById("step-data").textContent);
  const canvas = document.getElementById("timeline");
  if (!canvas || !canvas.getContext) return;
  const context = canvas.getContext("2d");
  const said = document.getElementById("timeline-said");
  const range = document.getElementById("timeline-range");
  const LEFT = 58, TOP = 4, AXIS = 22, LANE = 5;
  const COLOURS = { F: "--blue", B: "--green", I: "--green", W: "--mint", R: "--red", U: "--pink",
    tensor: "--olive", context: "--lilac", expert: "--brown", weights: "--red", pipeline: "--steel" };
  const used = Object.keys(data.streams).filter((name) =>
    name === "weights" ? data.once.some((pairs) => pairs[0][0] > 0)
      || Object.values(data.sends).some((sent) => sent.weights)
      : Object.values(data.sends).some((sent) => sent[name]));
  let streams = true, view = first(), colours = {}, chosen = null;

  function first() { return [...data.first]; }
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const [key, name] of Object.entries(COLOURS)) colours[key] = style.getPropertyValue(name).trim();
    for (const name of ["ink", "soft", "line", "paper", "card"]) colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
  function boxHeight() { return Math.max(9, Math.min(26, Math.floor(440 / data.ranks.length))); }
  function rowHeight() { return boxHeight() + (streams ? used.length * LANE + 2 : 0) + 5; }
  function width() { return canvas.clientWidth - LEFT - 6; }
  function x(at) { return LEFT + (at - view[0]) / (view[1] - view[0]) * width(); }

  function seconds(us) {
    if (us >= 1e6) return `${(us / 1e6).toFixed(3)} s`;
    return us >= 1e3 ? `${(us / 1e3).toFixed(2)} ms` : `${us.toFixed(1)} us`;
  }
  function titleOf(rank, i) {
    const name = data.names[rank.k[i]];
    return rank.s[i] < 0 ? name : `${name} of micro-batch ${rank.m[i]}, stage ${rank.s[i]}`;
  }
  function shortOf(rank, i, room) {
    const kind = rank.k[i];
    if (rank.s[i] < 0) return room > 110 ? data.names[kind] : "";
    if (room > 150) return `${data.names[kind]} ${rank.m[i]} \u00b7 stage ${rank.s[i]}`;
    if (room > 54) return `${kind}${rank.m[i]} \u00b7 s${rank.s[i]}`;
    return room > 20 ? `${kind}${rank.m[i]}` : "";
  }
  // What an action sends: [stream, start, end, exposed]; placed as the trace places it.
  function sentBy(rank, i, index) {
    const start = rank.t[i], end = start + rank.d[i], kind = rank.k[i], found = [];
    if (kind === "R") {
      const [whole, exposed] = data.once[index][0];
      return [["weights", end - whole, end, exposed]];
    }
    if (kind === "U") {
      const exposed = data.once[index][1][1];
      return [["weights", end - exposed, end, exposed]];
    }
    for (const [name, [whole, exposed]] of Object.entries(data.sends[`${rank.s[i]}${kind}`] || {})) {
      found.push(name === "pipeline" ? [name, end - exposed, end - exposed + whole, exposed]
        : [name, start, start + whole, exposed]);
    }
    return found;
  }
  function firstVisible(rank) {
    let low = 0, high = rank.t.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rank.t[middle] + rank.d[middle] < view[0]) low = middle + 1; else high = middle;
    }
    return Math.max(0, low - 40);
  }
  function fill(name, from, to, y, height) {
    const left = Math.max(x(from), LEFT), right = Math.min(x(to), LEFT + width());
    if (right <= left) return 0;
    context.fillStyle = colours[name];
    context.fillRect(left, y, Math.max(right - left, 0.4), height);
    return right - left;
  }
  function draw() {
    const ratio = window.devicePixelRatio || 1, height = TOP + data.ranks.length * rowHeight() + AXIS;
    readColours();
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(canvas.clientWidth * ratio);
    canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    data.ranks.forEach((rank, index) => drawRank(rank, index));
    drawAxis(height);
    range.textContent = `${seconds(view[0])} to ${seconds(view[1])} of ${seconds(data.end)}`;
  }
  function drawRank(rank, index) {
    const y = TOP + index * rowHeight(), high = boxHeight();
    context.fillStyle = colours.card;
    context.fillRect(LEFT, y, width(), high);
    context.fillStyle = colours.soft;
    context.textAlign = "right";
    context.fillText(`rank ${index}`, LEFT - 8, y + high / 2);
    for (let i = firstVisible(rank); i < rank.t.length && rank.t[i] < view[1] + data.message[0]; i++) {
      const odd = rank.s[i] >= 0 && Math.floor(rank.s[i] / data.pp) % 2;
      context.globalAlpha = odd ? 0.72 : 1;
      const wide = fill(rank.k[i], rank.t[i], rank.t[i] + rank.d[i], y, high);
      context.globalAlpha = 1;
      if (wide > 3) label(rank, i, y, high, wide);
      if (!streams) continue;
      for (const [name, from, to] of sentBy(rank, i, index)) {
        fill(name, from, to, y + high + 2 + used.indexOf(name) * LANE, LANE - 1);
      }
    }
    if (chosen && chosen[0] === index) {
      const left = Math.max(x(rank.t[chosen[1]]), LEFT);
      const right = Math.min(x(rank.t[chosen[1]] + rank.d[chosen[1]]), LEFT + width());
      context.strokeStyle = colours.ink;
      context.lineWidth = 2;
      if (right > left) context.strokeRect(left, y, right - left, high);
    }
  }
  function label(rank, i, y, high, wide) {
    const left = Math.max(x(rank.t[i]), LEFT);
    context.strokeStyle = colours.paper;
    context.lineWidth = 0.6;
    context.strokeRect(left, y, wide, high);
    const text = high >= 11 ? shortOf(rank, i, wide) : "";
    if (!text || context.measureText(text).width > wide - 4) return;
    context.fillStyle = rank.k[i] === "W" ? "#10241c" : "#ffffff";
    context.textAlign = "center";
    context.fillText(text, left + wide / 2, y + high / 2 + 0.5);
  }
  function drawAxis(height) {
    const span = view[1] - view[0], least = span / Math.max(3, width() / 110);
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= least);
    context.fillStyle = colours.soft;
    context.strokeStyle = colours.soft;
    context.lineWidth = 1;
    context.textAlign = "center";
    for (let at = Math.ceil(view[0] / step) * step; at <= view[1]; at += step) {
      const left = x(at);
      context.beginPath();
      context.moveTo(left, height - AXIS);
      context.lineTo(left, height - AXIS + 4);
      context.stroke();
      if (left > LEFT + 18 && left < LEFT + width() - 18) context.fillText(tick(at, step), left, height - 8);
    }
  }
  function tick(at, step) {
    const [unit, name] = data.end >= 1e6 ? [1e6, "s"] : [1e3, "ms"];
    return `${(at / unit).toFixed(Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9)))} ${name}`;
  }
  function show(from, to) {
    const span = Math.min(Math.max(to - from, 20), data.end);
    const start = Math.min(Math.max(from, 0), data.end - span);
    view = [start, start + span];
    draw();
  }
  function zoom(factor, at) {
    const centre = at === undefined ? (view[0] + view[1]) / 2 : at;
    show(centre - (centre - view[0]) * factor, centre + (view[1] - centre) * factor);
  }
  function move(share) { const by = (view[1] - view[0]) * share; show(view[0] + by, view[1] + by); }
  function timeAt(event) {
    const left = event.clientX - canvas.getBoundingClientRect().left;
    return view[0] + (left - LEFT) / width() * (view[1] - view[0]);
  }
  function point(event) {
    const y = event.clientY - canvas.getBoundingClientRect().top - TOP;
    const index = Math.floor(y / rowHeight()), rank = data.ranks[index], at = timeAt(event);
    if (!rank) return;
    const i = rank.t.findIndex((start, n) => start <= at && at <= start + rank.d[n]);
    choose(index, i);
  }
  function choose(index, i) {
    if (i < 0) { said.textContent = `rank ${index}: waits`; chosen = null; draw(); return; }
    const rank = data.ranks[index];
    const sent = sentBy(rank, i, index).map(([name, from, to, exposed]) =>
      `${data.streams[name]} ${seconds(to - from)}, ${seconds(exposed)} of it exposed`);
    said.textContent = `rank ${index}: ${titleOf(rank, i)}, ${seconds(rank.d[i])} from ${seconds(rank.t[i])}`
      + (sent.length ? `; ${sent.join("; ")}` : "");
    chosen = [index, i];
    draw();
  }
  const actions = {
    period: () => (data.period ? show(data.period[0], data.period[1]) : show(0, data.end)),
    first: () => show(...first()),
    start: () => show(0, (view[1] - view[0])),
    end: () => show(data.end - (view[1] - view[0]), data.end),
    whole: () => show(0, data.end),
    closer: () => zoom(0.5), farther: () => zoom(2), left: () => move(-0.5), right: () => move(0.5),
    streams: (button) => {
      streams = !streams;
      button.setAttribute("aria-pressed", String(streams));
      draw();
    },
  };
  for (const button of document.querySelectorAll("[data-shows]")) {
    button.addEventListener("click", () => actions[button.dataset.shows](button));
  }
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return; // the page scrolls; Ctrl or Shift zooms
    event.preventDefault();
    zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, timeAt(event));
  }, { passive: false });
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, view: [...view], moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!held) { if (event.pointerType === "mouse") point(event); return; }
    const by = (held.x - event.clientX) / width() * (held.view[1] - held.view[0]);
    held.moved = held.moved || Math.abs(held.x - event.clientX) > 3;
    if (held.moved) show(held.view[0] + by, held.view[1] + by);
  });
  canvas.addEventListener("pointerup", (event) => { if (held && !held.moved) point(event); held = null; });
  canvas.addEventListener("pointercancel", () => { held = null; });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, timeAt(event)));
  canvas.addEventListener("keydown", (event) => {
    const key = { ArrowLeft: "left", ArrowRight: "right", "+": "closer", "=": "closer", "-": "farther",
      Home: "start", End: "end" }[event.key];
    if (!key) return;
    event.preventDefault();
    actions[key]();
  });
  window.addEventListener("resize", draw);
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    window.matchMedia(query).addEventListener("change", draw);
  }
  draw();
})();
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", () => {
    const text = button.parentElement.querySelector("pre").textContent;
    const area = document.createElement("textarea"); // works from a file too, where no clipboard is
    area.value = text;
    document.body.append(area);
    area.select();
    button.textContent = document.execCommand("copy") ? "copied" : "select it";
    area.remove();
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}
