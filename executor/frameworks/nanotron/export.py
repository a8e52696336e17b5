"""nanotron YAML.

    ours                     theirs
    data_parallel            parallelism.dp
    tensor_parallel          parallelism.tp
    sequence_parallel        parallelism.tp_mode: REDUCE_SCATTER (off: ALL_REDUCE)
    pipeline_parallel        parallelism.pp; the stages follow from block costs and cannot be chosen
    schedule 1f1b / gpipe    parallelism.pp_engine: 1f1b / afab
    context_parallel         parallelism.context_parallel_size
    expert_parallel          parallelism.expert_parallel_size
    recompute full           parallelism.recompute_layer: true
    zero_stage 0 / 1         optimizer.zero_stage
    micro_batch_size, seq_len, num_micro_batches
                             tokens.micro_batch_size, sequence_length,
                             batch_accumulation_per_replica

Source: huggingface/nanotron@2411b022 `src/nanotron/config/parallelism_config.py`,
`config/config.py`, `config/models_config.py`, `parallel/context.py` (world size),
`examples/config_tiny_llama.yaml`.
"""

import re
from typing import Any

import yaml

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.rare_parts import rare_parts
from meshplan.costmodels.model.transformer import Experts, Model
from meshplan.costmodels.stage_split import split_by_cost
from meshplan.costmodels.training import Precision
from meshplan.executor.frameworks.export_notes import (
    GPUS_PER_NODE,
    Answer,
    answer_of,
    exchanges_unsaid,
    modules_unsaid,
    place_of_modules_unsaid,
    torchrun_words,
    training_unsaid,
    unless,
)
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import (
    CannotSay,
    Exported,
)

FILE = "nanotron.yaml"
COUNTS = {
    "data_parallel": "parallelism.dp",
    "tensor_parallel": "parallelism.tp",
    "pipeline_parallel": "parallelism.pp",
    "context_parallel": "parallelism.context_parallel_size",
    "expert_parallel": "parallelism.expert_parallel_size",
    "micro_batch_size": "tokens.micro_batch_size",
    "seq_len": "tokens.sequence_length",
    "num_micro_batches": "tokens.batch_accumulation_per_replica",
}
PIPELINE_ENGINES: dict[str, Schedule] = {"1f1b": "1f1b", "afab": "gpipe"}
TP_MODES = {
    "REDUCE_SCATTER": True,
    "ALL_REDUCE": False,
    "reduce_scatter": True,
    "all_reduce": False,
}
DTYPES: dict[str, Precision] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
INIT_STD = 0.02  # nanotron asks for one; it is listed where the model's file states none
DUMMY_DATA = {
    "name": "dummy",
    "start_training_step": 1,
    "data": {"dataset": None, "seed": 42, "num_loading_workers": 1},
}
ADAMW = {
    "name": "adamW",
    "adam_eps": 1e-8,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "torch_adam_is_fused": True,
}


def claims(name: str, text: str) -> bool:
    """Whether a file looks like nanotron's YAML."""
    return bool(re.search(r"^parallelism:", text, re.M)) and bool(
        re.search(r"^tokens:", text, re.M)
    )


def export(plan: Plan, gpus_per_node: int = GPUS_PER_NODE) -> Exported:
    """`plan` as a config that trains on dummy data."""
    answer = answer_of(plan, gpus_per_node)
    la, training = answer.layout, answer.training
    shape, no_model = _model_config(answer)
    document = {
        "general": {"project": "meshplan", "run": plan.model.name, "seed": 42},
        "logging": {"log_level": "info", "log_level_replica": "info"},
        "checkpoints": {"checkpoints_path": "checkpoints", "checkpoint_interval": 100_000},
        "parallelism": _parallelism(answer),
        "model": {
            "dtype": next(
                (d for d, ours in DTYPES.items() if ours == training.precision), "bfloat16"
            ),
            "init_method": {"std": answer.model.numerics.init_std or INIT_STD},
            "make_vocab_size_divisible_by": 1,
            "ddp_bucket_cap_mb": 25,
            "model_config": shape,
        },
        "optimizer": _optimizer(la.zero_stage, training.optimizer),
        "tokens": {
            "sequence_length": training.seq_len,
            "micro_batch_size": la.micro_batch_size,
            "batch_accumulation_per_replica": la.num_micro_batches(training),
            "train_steps": 20,
        },
        "data_stages": [DUMMY_DATA],
    }
    command = (
        f"CUDA_DEVICE_MAX_CONNECTIONS=1 {torchrun_words(answer)} run_train.py --config-file {FILE}"
    )
    return Exported(
        framework="nanotron",
        files={FILE: yaml.safe_dump(document, sort_keys=False)},
        launch=command,
        cannot_say=(*_unsaid(answer), *no_model),
    )


def _parallelism(answer: Answer) -> dict[str, Any]:
    la = answer.layout
    engine = next((name for name, ours in PIPELINE_ENGINES.items() if ours == la.schedule), "1f1b")
    return {
        "dp": la.data_parallel,
        "tp": la.tensor_parallel,
        "pp": la.pipeline_parallel,
        "pp_engine": engine,
        "tp_mode": "REDUCE_SCATTER" if la.sequence_parallel else "ALL_REDUCE",
        "tp_linear_async_communication": la.sequence_parallel,
        "recompute_layer": la.recompute != "none",
        "context_parallel_size": la.context_parallel,
        "expert_parallel_size": la.expert_parallel,
    }


def _optimizer(zero_stage: int, optimizer: str) -> dict[str, Any]:
    return {
        "zero_stage": min(zero_stage, 1),
        "weight_decay": 0.1,
        "clip_grad": 1.0,
        "accumulate_grad_in_fp32": True,
        "learning_rate_scheduler": {
            "learning_rate": 3e-4,
            "lr_warmup_steps": 2,
            "lr_warmup_style": "linear",
            "lr_decay_style": "cosine",
            "min_decay_lr": 1e-5,
        },
        "optimizer_factory": {"name": "sgd"} if optimizer == "sgd" else ADAMW,
    }


def _model_config(answer: Answer) -> tuple[dict[str, Any], list[CannotSay]]:
    """nanotron's Llama or Qwen2 configuration of the same sizes.

    Raises `UnsupportedModel` where the first layer has no attention heads to state, or heads of a
    width that no file says.
    """
    model, attention = answer.model, answer.model.kinds[0].attention
    if not attention.heads:
        raise UnsupportedModel(
            f"{model.name}: nanotron builds softmax attention in every layer, and the first has "
            "none; no file of its trains this model"
        )
    if model.hidden % attention.heads:
        raise UnsupportedModel(
            f"{model.name}: nanotron's heads are hidden / heads wide, and {model.hidden} does not "
            f"divide by {attention.heads}; no file of its trains this model"
        )
    experts = next((kind.experts for kind in model.kinds if kind.experts), None)
    qwen = attention.qkv_bias or experts is not None
    shape: dict[str, Any] = {
        ("is_qwen2_config" if qwen else "is_llama_config"): True,
        "hidden_size": model.hidden,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "intermediate_size": next((k.ffn for k in model.kinds if k.ffn), 0)
        or (experts.ffn if experts else 0),
        "vocab_size": model.vocab,
        "max_position_embeddings": answer.training.seq_len,
        "tie_word_embeddings": model.tied,
    }
    if qwen:
        shape["attention_bias"] = attention.qkv_bias
    if experts:
        shape["moe_config"] = _expert_config(model, experts)
    numerics, unsaid = _numerics(model, qwen=qwen)
    why = "nanotron builds gated RMSNorm blocks, head_dim = hidden / heads, full attention"
    if not _plain(model):
        unsaid.append(CannotSay("model", model.name, why))
    return shape | numerics, unsaid


def _expert_config(model: Model, experts: Experts) -> dict[str, Any]:
    return {
        "num_experts": experts.experts,
        "top_k": experts.top_k,
        "moe_intermediate_size": experts.ffn,
        "shared_expert_intermediate_size": experts.shared_ffn,
        "enable_shared_expert": experts.shared_ffn > 0,
        "layers": [at for at, kind in enumerate(model.pattern) if model.kinds[kind].experts],
    }


def _numerics(model: Model, *, qwen: bool) -> tuple[dict[str, Any], list[CannotSay]]:
    """What changes no sizes; what the model's file does not state is left to nanotron's default."""
    n, rotary = model.numerics, model.numerics.rotary
    stated = {
        "hidden_act": n.activation,
        "rms_norm_eps": n.norm_epsilon,
        "rope_theta": rotary.base,
        "initializer_range": n.init_std,
    }
    if model.learned_positions:
        stated.pop("rope_theta")
    why = "the model's file does not state it; nanotron's default stands"
    unsaid = [CannotSay(f"numerics.{k}", "not stated", why) for k, v in stated.items() if v is None]
    found = {
        "rotary_scaling": rotary.scaling and rotary.scaling.kind,
        "rotary_share": rotary.share if rotary.share != 1 else None,
        "rotary_local_base": rotary.local_base,
        "rotary_skips_every": 0 if qwen else rotary.skips_every,
        "attention_softcap": n.attention_softcap,
        "router": n.router.score if n.router and n.router.score != "softmax" else None,
    }
    why = "nanotron's models do not have it"
    unsaid += [CannotSay(f"numerics.{name}", value, why) for name, value in found.items() if value]
    said: dict[str, Any] = {name: value for name, value in stated.items() if value is not None}
    if qwen and rotary.skips_every:
        said["no_rope_layer"] = rotary.skips_every
    return said | {"rope_interleaved": False}, unsaid


def _plain(model: Model) -> bool:
    attentions = [kind.attention for kind in model.kinds]
    return (
        model.gated
        and model.norm == "rmsnorm"
        and model.norms_per_layer == 2
        and not any(kind.experts and kind.experts.router_bias for kind in model.kinds)
        and not (model.bias or model.learned_positions or model.mtp_layers or rare_parts(model))
        and all(a.window is None and a.qk_norm == "none" and not a.is_mla for a in attentions)
        and all(a.head_dim * a.heads == model.hidden and not a.out_bias for a in attentions)
    )


def _stages_unsaid(answer: Answer, counts: tuple[int, ...]) -> str:
    """Why nanotron would not put `counts` layers on its stages; "" when it would.

    It weighs the blocks of the model that its file describes, so a model that the file cannot say
    is cut elsewhere.
    """
    la = answer.layout
    if la.virtual_stages > 1:
        return "one chunk per rank"
    if la.pipeline_parallel > 1 and not _plain(answer.model):
        return "it cuts by the costs of its own blocks, which are not the model's"
    if counts != split_by_cost(answer.model, la.pipeline_parallel):
        return "it cuts by the costs of its blocks"
    return ""


def _unsaid(answer: Answer) -> list[CannotSay]:
    la, training = answer.layout, answer.training
    unsaid = unless(la, "one chunk per rank", virtual_stages=1)
    unsaid += unless(la, "it does not split an expert", expert_tensor_parallel=1)
    unsaid += unless(la, "its optimizer shards over all replicas", shard_group=0)
    unsaid += unless(la, "it has no offload", optimizer_offload=False, activation_offload=False)
    why = "at 2411b022 the world-size check leaves expert parallelism out"
    unsaid += unless(la, why, expert_parallel=1)
    if la.zero_stage > 1:
        unsaid.append(CannotSay("layout.zero_stage", la.zero_stage, "it has 0 and 1"))
    if la.schedule not in PIPELINE_ENGINES.values():
        unsaid.append(CannotSay("layout.schedule", la.schedule, "it has 1f1b and afab"))
    if la.tensor_parallel == 1:
        unsaid += unless(la, "it splits along the tensor group of one", sequence_parallel=False)
    counts = tuple(stage.layers for stage in la.stages)
    if why_not := _stages_unsaid(answer, counts):
        unsaid.append(CannotSay("layout.stages", counts, why_not))
    if la.recompute not in ("none", "full"):
        why = "all layers recompute in full, which is written, or none"
        unsaid.append(CannotSay("layout.stages.recompute", la.recompute, why))
    unsaid += modules_unsaid(la, "it has no selective recompute")
    if training.precision not in DTYPES.values():
        unsaid.append(
            CannotSay("training.precision", training.precision, f"it has {', '.join(DTYPES)}")
        )
    if training.optimizer not in ("adamw", "sgd"):
        unsaid.append(CannotSay("training.optimizer", training.optimizer, "it has adamW and sgd"))
    unsaid += exchanges_unsaid(la) + place_of_modules_unsaid(la)
    return unsaid + training_unsaid(training)
