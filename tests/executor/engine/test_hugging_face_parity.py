"""The engine trains what Hugging Face's own modules are: same weights, same loss and gradient norm.

fp32, tiny sizes; norm epsilon and rotary base are stated and unlike both sides' defaults, so that a
side that ignores them differs. One process each, and one layout on two, all in processes of their
own. Needs transformers (docs/frameworks.md), and `pytest -m frameworks`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch import Tensor  # noqa: E402

from meshplan.costmodels.layout import Layout, Stage  # noqa: E402
from meshplan.costmodels.model.hf_config import model_from_config  # noqa: E402
from meshplan.costmodels.model.recurrent import Recurrent  # noqa: E402
from meshplan.costmodels.model.transformer import Attention, Model  # noqa: E402
from meshplan.costmodels.training import Training  # noqa: E402
from meshplan.executor.engine.step.data import Sequences  # noqa: E402
from meshplan.executor.engine.step.engine import Engine, Job  # noqa: E402

pytestmark = pytest.mark.frameworks

TRAINING = Training(seq_len=32, global_batch_size=4, precision="fp32")
LOSS_TOLERANCE, NORM_TOLERANCE = 1e-5, 1e-5
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
         "rms_norm_eps": 1e-2, "rope_theta": 300.0, "tie_word_embeddings": False,
         "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
          "v_head_dim": 8, "head_dim": 4, "num_key_value_heads": 4}  # fmt: skip
DEEPSEEK_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
                    "moe_intermediate_size": 16, "n_group": 4, "topk_group": 2,
                    "first_k_dense_replace": 1, "norm_topk_prob": True,
                    "routed_scaling_factor": 2.5}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SMALL, "head_dim": 8},
    "qwen3": {"model_type": "qwen3", **SMALL, "head_dim": 16},
    "mixtral": {"model_type": "mixtral", **SMALL, "head_dim": 8, "num_local_experts": 4,
                "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": {"model_type": "qwen3_moe", **SMALL, **EXPERTS, "head_dim": 8,
                  "norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1},
    "qwen3_moe, weights as they are": {
        "model_type": "qwen3_moe", **SMALL, **EXPERTS, "head_dim": 8, "norm_topk_prob": False},
    "deepseek_v3": {"model_type": "deepseek_v3", **SMALL, **LATENT, **DEEPSEEK_EXPERTS},
    "qwen3_next": {
        "model_type": "qwen3_next", **SMALL, **EXPERTS, "head_dim": 16, "norm_topk_prob": True,
        "shared_expert_intermediate_size": 16, "linear_num_value_heads": 4,
        "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "partial_rotary_factor": 0.5, "layer_types": ["linear_attention", "full_attention"]},
    "nemotron_h, Mamba-2 alone": {
        "model_type": "nemotron_h", **SMALL, "head_dim": 8, "mamba_num_heads": 8,
        "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2, "chunk_size": 8,
        "layer_norm_epsilon": 1e-2, "layers_block_type": ["mamba", "mamba"]},
    "stablelm, half of each head rotated": {
        "model_type": "stablelm", **SMALL, "num_key_value_heads": 4, "layer_norm_eps": 1e-2,
        "partial_rotary_factor": 0.5},
}  # fmt: skip
STAGE = (Stage(2),)
ALONE = Layout(stages=STAGE, micro_batch_size=2)
TENSOR = Layout(stages=STAGE, tensor_parallel=2, sequence_parallel=True)
PARALLEL = {
    "llama": TENSOR,
    "qwen3": Layout(stages=STAGE, data_parallel=2, zero_stage=3),
    "mixtral": Layout(stages=STAGE, data_parallel=2, expert_parallel=2, zero_stage=1),
    "qwen3_moe": Layout(stages=(Stage(1), Stage(1)), pipeline_parallel=2),
    "qwen3_moe, weights as they are": Layout(stages=STAGE, context_parallel=2),
    "deepseek_v3": TENSOR,
    "qwen3_next": TENSOR,
    "nemotron_h, Mamba-2 alone": TENSOR,
    "stablelm, half of each head rotated": TENSOR,
}
"""One layout on two processes for each."""


def module_of(name: str) -> Any:
    """Hugging Face's module with weights from a seed, none of them at its default."""
    fields = dict(CONFIGS[name])
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    torch.manual_seed(7)
    module = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    )
    with torch.no_grad():
        for each in module.parameters():
            wide = each.dim() > 1
            each.copy_(0.1 * torch.randn_like(each) + (0.0 if wide else 0.7))
    return module.train()


def engine_weights(module: Any, model: Model) -> dict[str, Tensor]:
    """Their tensors by the engine's names."""
    theirs = {name: tensor.detach() for name, tensor in module.named_parameters()}
    if "model.embeddings.weight" in theirs:
        return _mamba_weights(theirs, model)
    if module.config.model_type == "qwen3_next":  # its norms but one multiply by 1 + weight
        theirs |= {name: 1 + tensor for name, tensor in theirs.items()
                   if "norm" in name and "linear_attn" not in name}  # fmt: skip
    found = {"embedding": theirs["model.embed_tokens.weight"], "head": theirs["lm_head.weight"]}
    found |= _norm(theirs, "model.norm", "final_norm")
    for number in range(model.num_layers):
        inside, ours = f"model.layers.{number}", f"layers.{number}"
        found |= _norm(theirs, f"{inside}.input_layernorm", f"{ours}.norm0")
        found |= _norm(theirs, f"{inside}.post_attention_layernorm", f"{ours}.norm1")
        found |= _feed_forward(theirs, f"{inside}.mlp", f"{ours}.ffn")
        kind = model.kinds[model.pattern[number]]
        if kind.recurrent:
            found |= _delta(theirs, f"{inside}.linear_attn", f"{ours}.recurrent", kind.recurrent)
        else:
            found |= _attention(theirs, f"{inside}.self_attn", f"{ours}.attention", kind.attention)
    return found


def _mamba_weights(theirs: dict[str, Tensor], model: Model) -> dict[str, Tensor]:
    found = {"embedding": theirs["model.embeddings.weight"], "head": theirs["lm_head.weight"]}
    found |= _norm(theirs, "model.norm_f", "final_norm")
    for number in range(model.num_layers):
        inside, ours = f"model.layers.{number}", f"layers.{number}"
        found |= _norm(theirs, f"{inside}.norm", f"{ours}.norm0")
        mixer = model.kinds[model.pattern[number]].recurrent
        assert mixer is not None
        found |= _mamba(theirs, f"{inside}.mixer", f"{ours}.recurrent", mixer)
    return found


def _mamba(theirs: dict[str, Tensor], name: str, ours: str, mixer: Recurrent) -> dict[str, Tensor]:
    """Their input is gate, x, B, C and step; the engine's z, v, k, q and a."""
    state = (mixer.convolved - mixer.inner) // 2
    widths = [mixer.inner, mixer.inner, state, state, mixer.heads]
    parts = theirs[f"{name}.in_proj.weight"].split(widths)
    found = {f"{ours}.{part}": each for part, each in zip("zvkqa", parts, strict=True)}
    for kind, end in (("weight", ""), ("bias", ".bias")):
        filters = theirs[f"{name}.conv1d.{kind}"].split(widths[1:4])
        found |= {f"{ours}.conv_{part}{end}": each.squeeze(1) if kind == "weight" else each
                  for part, each in zip("vkq", filters, strict=True)}  # fmt: skip
    return found | {
        f"{ours}.decay": theirs[f"{name}.A_log"], f"{ours}.step": theirs[f"{name}.dt_bias"],
        f"{ours}.skip": theirs[f"{name}.D"], f"{ours}.norm": theirs[f"{name}.norm.weight"],
        f"{ours}.o": theirs[f"{name}.out_proj.weight"],
    }  # fmt: skip


def _delta(theirs: dict[str, Tensor], name: str, ours: str, mixer: Recurrent) -> dict[str, Tensor]:
    """Their projections are grouped by heads of keys: q, k, v and z of each, then b and a."""
    keys = (mixer.convolved - mixer.inner) // 2
    heads = keys // mixer.key_dim
    values = mixer.inner // heads
    grouped = theirs[f"{name}.in_proj_qkvz.weight"].unflatten(0, (heads, -1))
    parts = grouped.split([mixer.key_dim, mixer.key_dim, values, values], dim=1)
    found = {f"{ours}.{part}": each.flatten(0, 1)
             for part, each in zip("qkvz", parts, strict=True)}  # fmt: skip
    numbers = theirs[f"{name}.in_proj_ba.weight"].unflatten(0, (heads, -1)).chunk(2, dim=1)
    found |= {f"{ours}.{part}": each.flatten(0, 1)
              for part, each in zip("ba", numbers, strict=True)}  # fmt: skip
    filters = theirs[f"{name}.conv1d.weight"].squeeze(1).split([keys, keys, mixer.inner])
    found |= {f"{ours}.conv_{part}": each for part, each in zip("qkv", filters, strict=True)}
    return found | {
        f"{ours}.decay": theirs[f"{name}.A_log"], f"{ours}.step": theirs[f"{name}.dt_bias"],
        f"{ours}.norm": theirs[f"{name}.norm.weight"],
        f"{ours}.o": theirs[f"{name}.out_proj.weight"],
    }  # fmt: skip


def _norm(theirs: dict[str, Tensor], name: str, ours: str) -> dict[str, Tensor]:
    return {f"{ours}.{part}": theirs[f"{name}.{part}"]
            for part in ("weight", "bias") if f"{name}.{part}" in theirs}  # fmt: skip


def _attention(theirs: dict[str, Tensor], name: str, ours: str, at: Attention) -> dict[str, Tensor]:
    found = {f"{ours}.o": theirs[f"{name}.o_proj.weight"]}
    if not at.is_mla:
        for part in "qkv":
            found[f"{ours}.{part}"] = theirs[f"{name}.{part}_proj.weight"]
        if at.gate == "full":  # behind each head's query is its gate
            both = found[f"{ours}.q"].unflatten(0, (at.heads, 2, at.head_dim))
            found[f"{ours}.q"], found[f"{ours}.gate"] = (
                each.flatten(0, 1) for each in both.unbind(1)
            )
        for part in "qk":
            found |= _norm(theirs, f"{name}.{part}_norm", f"{ours}.{part}_norm")
        return found
    nope = at.head_dim - at.rope_head_dim
    found[f"{ours}.q_down"] = theirs[f"{name}.q_a_proj.weight"]
    found[f"{ours}.kv_up"] = theirs[f"{name}.kv_b_proj.weight"]
    queries = theirs[f"{name}.q_b_proj.weight"].unflatten(0, (at.heads, at.head_dim))
    found[f"{ours}.q_up"] = _pairs_apart(queries, nope).flatten(0, 1)
    latent = theirs[f"{name}.kv_a_proj_with_mqa.weight"]
    found[f"{ours}.kv_down"] = _pairs_apart(latent.unsqueeze(0), at.kv_lora_rank)[0]
    found |= _norm(theirs, f"{name}.q_a_layernorm", f"{ours}.q_norm")
    return found | _norm(theirs, f"{name}.kv_a_layernorm", f"{ours}.kv_norm")


def _pairs_apart(rows: Tensor, first: int) -> Tensor:
    """DeepSeek rotates neighbours, the engine halves: the same with rows in another order."""
    plain, rotary = rows[:, :first], rows[:, first:]
    return torch.cat((plain, rotary[:, 0::2], rotary[:, 1::2]), dim=1)


def _feed_forward(theirs: dict[str, Tensor], name: str, ours: str) -> dict[str, Tensor]:
    if f"{name}.gate_proj.weight" in theirs:
        return {f"{ours}.{part}": theirs[f"{name}.{part}_proj.weight"]
                for part in ("gate", "up", "down")}  # fmt: skip
    found = {f"{ours}.router": theirs[f"{name}.gate.weight"]}
    both, down = theirs[f"{name}.experts.gate_up_proj"], theirs[f"{name}.experts.down_proj"]
    for expert in range(len(down)):
        gate, up = both[expert].chunk(2)
        found |= {f"{ours}.gate.{expert}": gate, f"{ours}.up.{expert}": up,
                  f"{ours}.down.{expert}": down[expert]}  # fmt: skip
    for shared in ("shared_experts", "shared_expert"):
        if f"{name}.{shared}.gate_proj.weight" in theirs:
            found |= _feed_forward(theirs, f"{name}.{shared}", f"{ours}.shared")
    if f"{name}.shared_expert_gate.weight" in theirs:
        found[f"{ours}.shared_gate"] = theirs[f"{name}.shared_expert_gate.weight"]
    return found


def theirs_of(name: str) -> tuple[float, float]:
    """Loss and gradient norm of their module on the batch of the engine's first step."""
    module = module_of(name)
    sequences = Sequences(TRAINING, CONFIGS[name]["vocab_size"], seed=3)
    rows = torch.stack([sequences.sequence(0, i) for i in range(TRAINING.global_batch_size)])
    logits = module(input_ids=rows[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    squares = [p.grad.double().square().sum() for p in module.parameters() if p.grad is not None]
    return loss.item(), torch.stack(squares).sum().sqrt().item()


def ours_of(name: str, layout: Layout) -> tuple[float, float]:
    """The same of the engine's first step, in an initialised process group."""
    model = model_from_config(CONFIGS[name], name)
    job = Job(model=model, layout=layout, training=TRAINING, seed=3)
    engine = Engine(job, torch.device("cpu"))
    engine.init_weights(engine_weights(module_of(name), model))
    record = engine.step(0, Sequences(TRAINING, model.vocab, seed=3))
    return record.loss, record.grad_norm


def worker(rank: int, world: int, folder: str, names: list[str]) -> None:
    """One process of `world`: each named model in a new group; rank 0 writes."""
    torch.set_num_threads(1)
    results = {}
    for number, name in enumerate(names):
        store = dist.FileStore(f"{folder}/{world}.{number}.store", world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        results[name] = ours_of(name, ALONE if world == 1 else PARALLEL[name])
        dist.destroy_process_group()
    if rank == 0:
        Path(folder, f"{world}.json").write_text(json.dumps(results))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[float]]]:
    """By who computed it: "0" their module, "1" and "2" the engine on so many processes."""
    folder = tmp_path_factory.mktemp("parity")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, __file__, str(folder)], check=True, timeout=600,
                   env=environment)  # fmt: skip
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("world", [1, 2])
def test_loss_and_gradient_norm_are_theirs(
    name: str, world: int, measured: dict[str, dict[str, list[float]]]
) -> None:
    """To 1e-5, alone and on two processes."""
    loss, norm = measured["0"][name]
    ours_loss, ours_norm = measured[str(world)][name]
    assert ours_loss == pytest.approx(loss, rel=LOSS_TOLERANCE)
    assert ours_norm == pytest.approx(norm, rel=NORM_TOLERANCE)


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = sys.argv[1]
    Path(place, "0.json").write_text(json.dumps({name: theirs_of(name) for name in CONFIGS}))
    for processes in (1, 2):
        mp.start_processes(worker, (processes, place, list(CONFIGS)), nprocs=processes,
                           start_method="fork")  # fmt: skip
