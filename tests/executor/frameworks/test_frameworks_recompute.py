"""What selective recompute replays, written for a framework and read back."""

import pytest
from random_plans import missing_facts, plan_of

from meshplan.costmodels.layout import Layout, RecomputeModule, even_stages
from meshplan.costmodels.training import Training
from meshplan.executor.frameworks import exporter_named, read_config
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import Exported
from meshplan.planner.case.resolve import Case, resolve
from meshplan.planner.case.settings import Settings

TRAINING = Training(seq_len=4096, global_batch_size=64)
POLICY = load_engine("torchtitan").legality.recompute_modules
MEGATRON: tuple[RecomputeModule, ...] = (
    "layernorm", "moe_act", "mla_up_proj", "shared_experts", "core_attention", "mlp", "moe",
)  # fmt: skip


def selective(modules: tuple[RecomputeModule, ...], model: str, layers: int) -> Plan:
    """Eight replicas whose layers all replay `modules`."""
    layout = Layout(
        data_parallel=8, zero_stage=1, stages=even_stages(layers, 1, "selective"),
        selective_modules=modules,
    )  # fmt: skip
    return plan_of(model, layout, TRAINING)


def unsaid(exported: Exported) -> list[str]:
    """What of the modules the files leave out."""
    return [str(e.value) for e in exported.cannot_say if e.name == "layout.selective_modules"]


def read_back(exported: Exported, framework: str, plan: Plan) -> Case:
    """The case that the first file makes."""
    name, text = next(iter(exported.files.items()))
    reading = read_config(text, name, framework)
    return resolve(reading, missing_facts(plan, exported), Settings())


@pytest.mark.parametrize("modules", [MEGATRON[:3], MEGATRON[3:5], MEGATRON[5:]])
@pytest.mark.parametrize("framework", ["megatron", "bridge"])
def test_megatron_says_each_of_its_modules(framework: str, modules) -> None:
    """DeepSeek-V2-Lite has all of them: what is written is read, and nothing is left out."""
    plan = selective(modules, "deepseek-v2-lite", 27)
    exported = exporter_named(framework)(plan, 8)
    assert unsaid(exported) == []
    layout = read_back(exported, framework, plan).layout
    assert layout.recompute == "selective"
    assert layout.selective_modules == modules


def test_megatron_names_what_is_not_among_its_modules() -> None:
    """torchtitan's policy has no word there; what has one is written."""
    exported = exporter_named("megatron")(selective((*POLICY, "mlp"), "llama-3.1-8b", 32), 8)
    assert unsaid(exported) == [", ".join(POLICY)]
    assert "--recompute-modules mlp" in " ".join("".join(exported.files.values()).split())


@pytest.mark.parametrize("framework", ["torchtitan", "torchtitan-0.2"])
def test_torchtitan_has_one_policy(framework: str) -> None:
    """Its own list is said, and read back as it; core attention alone is no list of its."""
    plan = selective(POLICY, "llama-3.1-8b", 32)
    exported = exporter_named(framework)(plan, 8)
    assert unsaid(exported) == []
    layout = read_back(exported, "torchtitan", plan).layout
    assert (layout.recompute, layout.selective_modules) == ("selective", POLICY)
    other = exporter_named(framework)(selective(("core_attention",), "llama-3.1-8b", 32), 8)
    assert unsaid(other) == ["core_attention"]


DEEPSPEED = """{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}%s}"""
TUNED = ',\n"activation_checkpointing": {"partition_activations": false}'
FSDP = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
FSDP += "fsdp_config: {fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, %s}\n"
GIVEN = Settings(
    cluster="dgx-h100", gpus=8, model="llama-3.1-8b", seq_len=4096, micro_batch_size=1,
    global_batch_size=64,
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "assumed"),
    [
        pytest.param("ds.json", DEEPSPEED % "", "", id="DeepSpeed's JSON"),
        pytest.param("ds.json", DEEPSPEED % TUNED, "section activation_checkpointing tunes",
                     id="with a section that tunes what the code switches on"),
        pytest.param("fsdp.yaml", FSDP % "fsdp_version: 2", "", id="Accelerate without the key"),
        pytest.param("fsdp.yaml", FSDP % "fsdp_activation_checkpointing: false", None,
                     id="Accelerate says that it does not"),
        pytest.param("d.json", '{"fsdp_size": 8, "tp_size": 1, "fsdp_mixed_precision": true}', "",
                     id="DistributedConfig"),
    ],
)  # fmt: skip
def test_recompute_that_a_file_does_not_say(name: str, text: str, assumed: str | None) -> None:
    """None is assumed and said; --recompute states it, meshplan.toml where the file does not."""
    reading = read_config(text, name)
    case = resolve(reading, GIVEN, Settings())
    notes = [note for note in case.notes if "no recompute of activations is assumed" in note]
    assert len(notes) == (assumed is not None)
    assert all(assumed in note and "--recompute full" in note for note in notes if assumed)
    assert case.layout.recompute == "none"
    asked = resolve(reading, GIVEN.model_copy(update={"recompute": "full"}), Settings())
    assert asked.layout.recompute == "full"
    assert not any("is assumed" in note for note in asked.notes)
    near = resolve(reading, GIVEN, Settings(recompute="full"))
    assert near.layout.recompute == ("none" if assumed is None else "full")


def test_what_an_option_says_instead_of_the_file_is_said() -> None:
    """As with the other options."""
    reading = read_config(FSDP % "fsdp_activation_checkpointing: true", "fsdp.yaml")
    case = resolve(reading, GIVEN.model_copy(update={"recompute": "none"}), Settings())
    assert case.layout.recompute == "none"
    assert "--recompute none instead of the full that the file states" in case.notes


def test_state_on_the_host_is_not_priced_without_it() -> None:
    """transformers' fsdp_cpu_offload, as FSDP's under the other names."""
    text = '{"fsdp_size": 8, "tp_size": 1, "fsdp_cpu_offload": true}'
    (named,) = read_config(text, "d.json").unread
    assert "fsdp_cpu_offload (moves all sharded state" in str(named.value)


def test_notes_of_a_deepspeed_file_reach_the_config_that_names_it() -> None:
    """The optimizer on nvme is priced as in host memory: said of DeepSpeed's content as of its own
    file.
    """
    text = (
        "base_model: meta-llama/Llama-3.1-8B\ndatasets: [{path: x}]\nsequence_len: 4096\n"
        "micro_batch_size: 1\ndeepspeed:\n  zero_optimization:\n    stage: 3\n"
        "    offload_optimizer: {device: nvme}\n"
    )
    assert any("nvme" in note for note in read_config(text, "train.yaml").notes)
