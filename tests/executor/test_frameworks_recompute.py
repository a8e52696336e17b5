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
