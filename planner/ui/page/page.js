// What the page does: each change is priced at once; only the latest one waits for an answer.

import { asked, keepToken } from "./api.js";
import { at, drawMemory, drawSummary, drawTime, element, list, refuse, table } from "./draw.js";
import { makeSliders, setSliders } from "./sliders.js";
import { addressOf, stateOf } from "./state.js";

let state, known, waiting = false, changed = 0;

async function price() {
  changed += 1;
  if (waiting) return; // the running one asks again
  waiting = true;
  let asking;
  do {
    asking = changed;
    await priceOnce(() => asking === changed);
  } while (asking !== changed);
  waiting = false;
}

async function priceOnce(isLatest) {
  const started = performance.now();
  try {
    const answer = await asked("/api/price", { job: state.job, choice: state.choice });
    if (!isLatest()) return;
    refuse("error", "");
    state.choice = answer.choice;
    draw(answer);
  } catch (error) {
    refuse("error", error.message);
    at("answer").classList.add("stale");
  }
  history.replaceState(null, "", await addressOf(state));
  document.body.dataset.answered = changed;
  document.body.dataset.tookMs = performance.now() - started;
}

function draw(answer) {
  at("job-line").textContent = [answer.job.line, ...answer.job.notes].join("; ");
  setSliders(answer.stops, answer.choice, state.pinned, answer.job.is_moe);
  refuse("refused", answer.refused);
  at("answer").classList.remove("stale");
  at("answer").classList.toggle("last", Boolean(answer.refused));
  for (const id of ["summary", "memory", "time", "time-parts", "lines"]) at(id).classList.toggle("stale", Boolean(answer.refused));
  if (answer.refused) return;
  drawSummary(answer);
  drawMemory(answer, known.categories);
  drawTime(answer, known.part_names);
  list("lines", [answer.cut_line, answer.batch_line, ...answer.lines]);
}

function fillJob() {
  const form = at("job"), job = state.job;
  for (const name of ["model", "cluster", "gpus", "seq_len"]) form.elements[name].value = job[name];
  form.elements.engine.value = job.engine || "";
  form.elements.batch_unit.value = job.global_batch == null ? "tokens" : "sequences";
  form.elements.batch.value = job.global_batch ?? job.global_batch_tokens;
}

function readJob() {
  const form = at("job"), value = (name) => form.elements[name].value.trim();
  const job = { ...state.job, cluster: value("cluster"), gpus: Number(value("gpus")), seq_len: value("seq_len") };
  if (value("model") !== job.model) Object.assign(job, { model: value("model"), model_config_text: null });
  job.engine = value("engine") || null;
  const inSequences = value("batch_unit") === "sequences";
  job.global_batch = inSequences ? Number(value("batch")) : null;
  job.global_batch_tokens = inSequences ? null : value("batch");
  state.job = job;
  forgetProof();
  price();
}

function forgetProof() {
  at("proof").hidden = true;
}

async function solve() {
  at("solve").disabled = true;
  refuse("error", "");
  forgetProof();
  at("solving").textContent = "searching";
  const told = setInterval(async () => {
    const { line } = await asked("/api/progress").catch(() => ({ line: "" }));
    if (line && at("solve").disabled) at("solving").textContent = line;
  }, 500);
  try {
    const question = { job: state.job, choice: state.choice, pinned: state.pinned, time_limit_s: Number(at("time-limit").value) };
    showProof(await asked("/api/solve", question));
  } catch (error) {
    refuse("error", error.message);
  }
  clearInterval(told);
  at("solving").textContent = "";
  at("solve").disabled = false;
}

function showProof(found) {
  at("proof").hidden = false;
  list("proof-lines", found.infeasible || found.proof);
  at("runners").replaceChildren(...(found.runners_up || []).map((other) => {
    const button = element("button", `${other.label}: slower ${other.slower}${other.lost_by && ", lost by " + other.lost_by}`, { type: "button" });
    button.addEventListener("click", () => { state.choice = other.choice; price(); });
    return button;
  }));
  if (found.infeasible) return;
  state.choice = found.choice;
  price();
}

async function uploadModel(event) {
  const [file] = event.target.files;
  if (!file) return;
  const name = file.name === "config.json" ? "config" : file.name.replace(/\.json$/, "");
  state.job = { ...state.job, model: name, model_config_text: await file.text() };
  at("job").elements.model.value = name;
  forgetProof();
  price();
}

async function compare(event) {
  const [file] = event.target.files;
  if (!file) return;
  try {
    const found = await asked("/api/compare", { job: state.job, choice: state.choice, name: file.name, text: await file.text() });
    refuse("compare-error", "");
    table("comparison", ["", file.name, "this layout", "change"], found.rows.map((row) => [row.name, row.yours, row.ours, row.change]));
    list("compare-notes", found.notes);
  } catch (error) {
    refuse("compare-error", error.message);
    at("comparison").replaceChildren();
    list("compare-notes", []);
  }
  event.target.value = "";
}

function fillCatalogue() {
  const options = (names) => names.map((name) => element("option", name, { value: name }));
  at("models").replaceChildren(...options(known.models));
  at("job").elements.cluster.replaceChildren(...options(known.clusters));
  at("job").elements.engine.replaceChildren(element("option", "usual for the cluster", { value: "" }), ...options(known.engines));
}

async function restore() {
  state = await stateOf(location.hash);
  if (![...at("job").elements.cluster.options].some((each) => each.value === state.job.cluster)) {
    at("job").elements.cluster.append(element("option", state.job.cluster, { value: state.job.cluster }));
  }
  fillJob();
  forgetProof();
  await price();
}

async function start() {
  keepToken();
  makeSliders((axis, value) => {
    state.choice = { ...state.choice, [axis]: value };
    price();
  }, (axis, isPinned) => {
    state.pinned = isPinned ? [...state.pinned, axis] : state.pinned.filter((each) => each !== axis);
    price();
  });
  at("job").addEventListener("change", (event) => { if (event.target.type !== "file") readJob(); });
  at("job").addEventListener("submit", (event) => event.preventDefault());
  at("config-file").addEventListener("change", uploadModel);
  at("training-file").addEventListener("change", compare);
  at("solve").addEventListener("click", solve);
  at("copy-link").addEventListener("click", () => navigator.clipboard.writeText(location.href));
  addEventListener("hashchange", restore);
  try {
    known = await asked("/api/catalogue");
    fillCatalogue();
    await restore();
  } catch (error) {
    refuse("error", error.message);
  }
}

start();
