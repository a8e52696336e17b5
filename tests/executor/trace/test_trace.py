"""`models --trace`, against torch's FLOP counter, the modules themselves and the families."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.planner.cli.main import app

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from benchmarks.models.families import WITH_WEIGHTS, grouped  # noqa: E402
from meshplan.executor.trace.command import costs_of  # noqa: E402
from meshplan.executor.trace.missing import CannotTrace  # noqa: E402
from meshplan.executor.trace.trace import LENGTHS, trace  # noqa: E402
from meshplan.hardware_profiles.traced_model import TracedLayer, TracedModel  # noqa: E402

pytestmark = pytest.mark.frameworks

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2,
           "n_routed_experts": 8, "num_local_experts": 8}  # fmt: skip
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
          "v_head_dim": 16, "num_key_value_heads": 4, "head_dim": 8, "n_shared_experts": 1,
          "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}  # fmt: skip
DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
         "linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"],
         "shared_expert_intermediate_size": 32}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "qwen3": SMALL,
    "gemma2": SMALL | {"sliding_window": 64},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 1024},
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128},
    "falcon": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
               "vocab_size": 128, "new_decoder_architecture": True, "num_kv_heads": 2},
    "mixtral": SMALL | EXPERTS,
    "qwen3_moe": SMALL | EXPERTS,
    "gpt_oss": SMALL | EXPERTS,
    "deepseek_v3": SMALL | EXPERTS | LATENT,
    "qwen3_next": SMALL | EXPERTS | DELTA,
    "beam": SMALL | {"mlp_layer_types": ["dense", "dense"]},
    "lfm2": SMALL | {"layer_types": ["conv", "full_attention"], "block_multiple_of": 32},
    "mimo_v2_flash": SMALL | EXPERTS | {"v_head_dim": 16, "layer_types": ["full_attention"] * 2,
                                        "mlp_layer_types": ["dense", "sparse"]},
    "nemotron_h": SMALL | {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16,
                           "n_groups": 2, "layers_block_type": ["mamba", "attention"],
                           "chunk_size": 64},
    "gemma3n_text": SMALL | {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": 128,
                             "hidden_size_per_layer_input": 16, "laurel_rank": 8,
                             "layer_types": ["sliding_attention", "full_attention"],
                             "intermediate_size": [96, 96],
                             "activation_sparsity_pattern": [0.0, 0.0]},
}  # fmt: skip
NO_FAMILY: dict[str, dict[str, Any]] = {"diffllama": SMALL}


def given(model_type: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A config.json: what the family's class makes of these fields."""
    config = transformers.AutoConfig.for_model(model_type, **fields)
    text: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    unused = ("moe_shared_expert_intermediate_size",) if model_type == "nemotron_h" else ()
    return {key: value for key, value in text.items() if value is not None and key not in unused}


def counted(model_type: str, fields: dict[str, Any]) -> tuple[int, dict[str, int]]:
    """Parameters of the real module, and its FLOPs by torch's counter: attention written out."""
    config = transformers.AutoConfig.for_model(model_type, **fields)
    tokens = LENGTHS[1]
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="eager"
        ).eval()
        ids = torch.zeros(1, tokens, dtype=torch.long)
        mask = torch.zeros(1, 1, tokens, tokens, dtype=torch.bfloat16)
    if "expert" in " ".join(name for name, _ in module.named_modules()):
        module.set_experts_implementation("grouped_mm")
    counting = FlopCounterMode(display=False, custom_mapping={torch.ops.aten._grouped_mm: grouped})
    with torch.no_grad(), counting as found:
        try:
            module(input_ids=ids, attention_mask=mask, use_cache=False)
        except ValueError:  # BLOOM reads ones and zeros for each token
            module(input_ids=ids, attention_mask=mask[0, 0, :1] + 1, use_cache=False)
    return (
        sum(each.numel() for each in module.parameters()),
        {str(op): n for op, n in found.get_flop_counts()["Global"].items()},
    )


def flops_of(layer: TracedLayer, tokens: int) -> tuple[float, float]:
    """Of products with weights, and of activations with each other, as the file has them."""
    experts = ("expert_in", "expert_out")
    products = sum(
        2 * tokens * p.rows * p.n * p.k * (1 if p.split in experts else p.groups)
        for p in layer.products
    )
    attention = sum(2 * tokens**2 * a.heads * (a.head_dim + a.v_head_dim) for a in layer.attention)
    state = layer.state_flops * tokens + layer.state_flops_per_key * tokens**2
    return products, attention + state


@pytest.mark.parametrize("model_type", [*CONFIGS, *NO_FAMILY])
def test_parameters_and_flops_are_the_modules(model_type: str) -> None:
    """Parameters exact; FLOPs of products, and of attention and states, within 0.1 %."""
    fields = (CONFIGS | NO_FAMILY)[model_type]
    found = trace(given(model_type, fields), model_type)
    parameters, by_operation = counted(model_type, fields)
    assert found.parameters == model_parameters(model_from_config(dumped(found), "x")).total
    assert found.parameters == parameters
    each = [flops_of(layer, LENGTHS[1]) for layer in found.kinds]
    head = 2 * LENGTHS[1] * found.hidden * found.vocab
    products = head + sum(each[kind][0] for kind in found.pattern)
    others = sum(each[kind][1] for kind in found.pattern)
    weights = sum(by_operation.get(name, 0) for name in WITH_WEIGHTS)
    counted_others = sum(by_operation.values()) - weights - by_operation.get("aten.convolution", 0)
    unpriced = sum("seconds of" in words for words in found.not_attributed)
    assert products == pytest.approx(weights, rel=1e-3) or (unpriced and products < weights)
    assert others == pytest.approx(counted_others, rel=1e-3)


def test_rows_that_the_head_has_not() -> None:
    """CPM-Ant's embedding has 128 rows of its vocabulary and 4 x 8 of prompts, its head 128."""
    fields = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "dim_head": 16,
        "dim_ff": 96, "vocab_size": 128, "prompt_types": 4, "prompt_length": 8,
    }  # fmt: skip
    found = trace(given("cpmant", fields), "cpmant")
    assert found.parameters == counted("cpmant", fields)[0]
    assert (found.vocab, found.tied) == (128, False)


def dumped(found: TracedModel) -> dict[str, Any]:
    """The file's content."""
    return found.model_dump(mode="json", exclude_defaults=True)


@pytest.mark.parametrize("model_type", CONFIGS)
def test_families_agree(model_type: str) -> None:
    """Parameters exact, FLOPs of products and attention equal, layer by layer."""
    config = given(model_type, CONFIGS[model_type])
    found = trace(config, model_type)
    traced, family = model_from_config(dumped(found), "x"), model_from_config(config, "x")
    correction = sum(bool(kind.experts and kind.experts.router_bias) * kind.experts.experts
                     for kind in (family.kinds[at] for at in family.pattern)
                     if kind.experts and model_type == "deepseek_v3")  # fmt: skip
    assert model_parameters(traced).total == model_parameters(family).without_mtp - correction
    for at in range(family.num_layers):
        ours = costs_of(traced, traced.kinds[traced.pattern[at]])
        kind = family.kinds[family.pattern[at]]
        theirs = costs_of(family, kind)
        for what in ("product FLOPs", "attention FLOPs"):
            assert ours[what] == pytest.approx(theirs[what], rel=1e-3)


FUSED = [
    *("llama", "qwen3", "gemma2", "mixtral", "qwen3_moe", "falcon", "deepseek_v3"),
    *("beam", "lfm2", "mimo_v2_flash"),  # a scaled residual; a gated convolution; a 32-bit router
]  # fmt: skip


@pytest.mark.parametrize("model_type", FUSED)
def test_saved_bytes_of_fused_chains_are_the_families(model_type: str) -> None:
    """Where an engine fuses what lies between products: within 1 % of our list of operations."""
    config = given(model_type, CONFIGS[model_type])
    traced = model_from_config(dumped(trace(config, model_type)), "x")
    family = model_from_config(config, "x")
    for at, kind in enumerate(traced.kinds):
        same = family.kinds[family.pattern[traced.pattern.index(at)]]
        ours, theirs = costs_of(traced, kind), costs_of(family, same)
        what = "saved bytes, generic"
        assert ours[what] == pytest.approx(theirs[what], rel=0.01)


@pytest.mark.parametrize("model_type", ["llama", "mixtral", "deepseek_v3", "qwen3_next"])
def test_products_pair_up(model_type: str) -> None:
    """Into a mixer or feed-forward by columns, out of it by rows; latents and routers whole."""
    found = trace(given(model_type, CONFIGS[model_type]), model_type)
    splits = {p.name: p.split for layer in found.kinds for p in layer.products}
    for name, split in splits.items():
        last = name.removesuffix(".weight").rpartition(".")[2]
        if last in ("q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj", "in_proj_qkvz"):
            assert split == "column", name
        if last in ("o_proj", "out_proj") or (last == "down_proj" and "experts" not in name):
            assert split == "row", name
        if last in ("q_a_proj", "kv_a_proj_with_mqa"):
            assert split == "whole", name
        if last in ("gate", "shared_expert_gate"):
            assert split == "own", name


def write(folder: Path, config: object) -> str:
    """A config.json in a folder of its own."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def test_a_model_that_no_family_reads_is_planned(tmp_path: Path) -> None:
    """config.json -> model file -> plan, whose file holds the trace and is read back."""
    config = write(tmp_path, given("diffllama", NO_FAMILY["diffllama"]))
    out = tmp_path / "model.yaml"
    done = CliRunner().invoke(app, ["models", config, "--trace", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "is not priced" in done.output
    assert yaml.safe_load(out.read_text())["trace_version"] == 1
    asked = ["plan", str(out), "--gpus", "8", "--cluster", "dgx-h100", "--global-batch", "8",
             "--seq-len", "2048", "--out", str(tmp_path / "plan.yaml")]  # fmt: skip
    planned = CliRunner().invoke(app, asked)
    assert planned.exit_code == 0, planned.output
    shown = CliRunner().invoke(app, ["explain", str(tmp_path / "plan.yaml")])
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        pytest.param({"model_type": "no_such_model"}, "transformers builds no", id="unknown"),
        pytest.param({"model_type": 3}, "'model_type' is missing", id="no text"),
        pytest.param({"model_type": "t5"}, "encoder", id="encoder-decoder"),
        pytest.param({"model_type": "bert"}, "an encoder", id="encoder"),
        pytest.param({"model_type": "llama", "hidden_size": 2**60}, "beyond", id="too wide"),
        pytest.param({"model_type": "llama", "num_hidden_layers": 10**6}, "more than 10000",
                     id="too deep"),
        pytest.param({"model_type": "llama", "hidden_size": "64"}, "builds no module", id="a text"),
        pytest.param({"model_type": "llama", "hidden_size": 0}, "", id="nothing wide"),
    ],
)  # fmt: skip
def test_hostile_configurations_are_one_line(
    fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Whatever transformers makes of it: an exit code of 2 and one line."""
    path = write(tmp_path, fields)
    done = CliRunner().invoke(app, ["models", path, "--trace", "--out", str(tmp_path / "m.yaml")])
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "m.yaml").exists()


def test_no_code_of_a_configuration_runs(tmp_path: Path) -> None:
    """`auto_map` beside a file that would leave a mark: the family's own class is built."""
    mark = tmp_path / "mark"
    (tmp_path / "modeling_evil.py").write_text(f"open({str(mark)!r}, 'w').write('ran')\n")
    evil = {"AutoConfig": "modeling_evil.Evil", "AutoModelForCausalLM": "modeling_evil.Evil"}
    config = given("llama", SMALL) | {"auto_map": evil, "_attn_implementation": "evil/kernel"}
    assert trace(config, "llama").parameters > 0
    with pytest.raises(CannotTrace, match="transformers builds no module"):
        trace(config | {"model_type": "evil"}, "evil")
    assert not mark.exists()


def test_missing_transformers_is_a_line_with_the_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the extra nothing is imported, and the command to install it is said."""
    from meshplan.executor.trace import command

    found = command.importlib.util.find_spec
    monkeypatch.setattr(
        command.importlib.util, "find_spec",
        lambda name: None if name == "transformers" else found(name),
    )  # fmt: skip
    done = CliRunner().invoke(app, ["models", "llama-3.1-8b", "--trace"])
    assert done.exit_code == 2
    assert "pip install 'meshplan[trace]'" in done.stderr
    assert "meshplan.executor.trace.command" in sys.modules
