// The whole state of the page, and the address that holds it.

export const AXES = [
  // slider, key in the address (the command line's option), name
  ["tensor_parallel", "tp", "Tensor"],
  ["pipeline_parallel", "pp", "Pipeline"],
  ["virtual_stages", "vpp", "Virtual stages"],
  ["context_parallel", "cp", "Context"],
  ["expert_parallel", "ep", "Expert"],
  ["expert_tensor_parallel", "etp", "Expert tensor"],
  ["zero_stage", "zero", "ZeRO stage"],
  ["micro_batch_size", "micro-batch", "Micro-batch"],
  ["recompute", "recompute", "Recompute"],
  ["schedule", "schedule", "Schedule"],
];
export const OF_EXPERTS = ["expert_parallel", "expert_tensor_parallel"];
const HIDDEN = [["shard_group", "shard-group"], ["context_kind", "cp-kind"], ["dispatcher", "dispatcher"],
  ["modules_apart", "modules-apart"], ["replays", "replays"], ["stages", "stages"]];
const WORDS = ["recompute", "schedule", "context_kind", "dispatcher", "modules_apart", "replays",
  "stages"];
const JOB = [["model", "model"], ["cluster", "cluster"], ["gpus", "gpus"], ["seq_len", "seq-len"],
  ["global_batch", "global-batch"], ["global_batch_tokens", "global-batch-tokens"],
  ["engine", "engine"], ["precision", "precision"], ["optimizer", "optimizer"]];
const NUMBERS = ["gpus", "global_batch"];

export const FIRST = {
  job: { model: "llama-3.1-70b", cluster: "dgx-h100", gpus: 256, seq_len: "8192", global_batch_tokens: "4M" },
  choice: { tensor_parallel: 8, pipeline_parallel: 4, zero_stage: 1 },
  pinned: [],
};

async function packed(text, stream) {
  const bytes = new Response(new Blob([text]).stream().pipeThrough(stream));
  return new Uint8Array(await bytes.arrayBuffer());
}

async function shortened(text) {
  const bytes = await packed(text, new CompressionStream("deflate-raw"));
  const letters = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  return letters.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function lengthened(text) {
  const letters = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  return new TextDecoder().decode(await packed(bytes, new DecompressionStream("deflate-raw")));
}

let lastConfig = [null, ""]; // an uploaded config is shortened once

export async function addressOf(state) {
  const words = new URLSearchParams();
  for (const [name, key] of JOB) if (state.job[name] != null) words.set(key, state.job[name]);
  const config = state.job.model_config_text;
  if (config) {
    if (lastConfig[0] !== config) lastConfig = [config, await shortened(config)];
    words.set("config", lastConfig[1]);
  }
  for (const [name, key] of [...AXES, ...HIDDEN]) {
    const value = state.choice[name];
    if (value != null && value !== "") words.set(key, value);
  }
  if (state.pinned.length) words.set("pin", state.pinned.join(","));
  return "#" + words.toString();
}

export async function stateOf(address) {
  const words = new URLSearchParams(address.replace(/^#/, ""));
  if (!words.size) return structuredClone(FIRST);
  const state = { job: {}, choice: {}, pinned: (words.get("pin") || "").split(",").filter(Boolean) };
  for (const [name, key] of JOB) {
    if (words.has(key)) state.job[name] = NUMBERS.includes(name) ? Number(words.get(key)) : words.get(key);
  }
  if (words.has("config")) state.job.model_config_text = await lengthened(words.get("config"));
  for (const [name, key] of [...AXES, ...HIDDEN]) {
    if (words.has(key)) state.choice[name] = WORDS.includes(name) ? words.get(key) : Number(words.get(key));
  }
  return state;
}
