"""Modules of multi-token prediction in Megatron's layout string, out and in, and elsewhere."""

import pytest
from random_plans import missing_facts, plan_of

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage
from meshplan.costmodels.training import Training
from meshplan.executor.frameworks import exporter_named, read_config
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.reading import UnreadableConfig
from meshplan.planner.case.resolve import check_case, resolve
from meshplan.planner.case.settings import Settings

SCRIPT = """torchrun pretrain_gpt.py --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4
  --micro-batch-size 1 --global-batch-size 16 --seq-length 4096 --bf16 --use-distributed-optimizer
  --pipeline-model-parallel-layout '{}'
""".replace("\n  ", " \\\n  ")
GIVEN = Settings(cluster="dgx-h100", gpus=8, model="deepseek-v3")


def placed(*layers: int, apart: bool) -> Plan:
    """DeepSeek-V3 on so many stages of 4 pipeline ranks."""
    chunks = len(layers) // 4
    layout = Layout(
        data_parallel=2, pipeline_parallel=4, virtual_stages=chunks, zero_stage=1,
        schedule="interleaved_1f1b" if chunks > 1 else "1f1b",
        stages=tuple(map(Stage, layers)), modules_apart=apart,
    )  # fmt: skip
    plan = plan_of("deepseek-v3", layout, Training(seq_len=4096, global_batch_size=16))
    return plan.model_copy(update={"engine": "megatron"})


@pytest.mark.parametrize("to", ["megatron", "bridge"])
@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (placed(21, 20, 20, 0, apart=True), "Et*21|t*20|t*20m|L"),
        (placed(31, 30, 0, 0, apart=True), "Et*31|t*30|m|L"),
        (placed(21, 20, 20, 0, apart=False), "Et*21|t*20|t*20|mL"),
        (placed(9, 9, 9, 9, 9, 9, 7, 0, apart=True), "Et*9|t*9|t*9|t*9|t*9|t*9|t*7m|L"),
    ],
)
def test_megatron_s_layout_string(plan: Plan, text: str, to: str) -> None:
    """`m` where the modules are; the file read back is the plan's layout."""
    exported = exporter_named(to)(plan, 8)
    assert not [each for each in exported.cannot_say if each.name.startswith("layout")]
    name, written = next(iter(exported.files.items()))
    assert text in written
    case = resolve(read_config(written, name), missing_facts(plan, exported), Settings())
    assert (case.layout.stages, case.layout.modules_apart) == (
        plan.layout.stages, plan.layout.modules_apart
    )  # fmt: skip
    check_case(case)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Et*30|t*31m||L", "stage 2 of 4 is empty|on stage 1 of 4"),
        ("Et*30|t*30|m|tL", "behind all layers"),
    ],
)
def test_places_that_megatron_refuses(text: str, why: str) -> None:
    """Modules before a layer, or with a stage that holds nothing behind them."""
    with pytest.raises(InvalidLayout, match=why):
        check_case(resolve(read_config(SCRIPT.format(text), "train.sh"), GIVEN, Settings()))


def test_modules_over_several_stages_are_not_modelled() -> None:
    """Newer releases split them; the file is not priced as if they did not."""
    with pytest.raises(UnreadableConfig, match="on 2 stages, which is not modelled"):
        read_config(SCRIPT.format("Et*21|t*20|t*20m|mL"), "train.sh")


def test_bridge_s_list_of_lists() -> None:
    """NVIDIA's recipes name the parts."""
    stages = [["embedding", *["decoder"] * 31], ["decoder"] * 30, ["mtp"], ["loss"]]
    overrides = (
        "model:\n  pipeline_model_parallel_size: 4\n"
        f"  pipeline_model_parallel_layout: {stages}\n".replace("'", '"')
        + "train:\n  micro_batch_size: 1\n  global_batch_size: 16\n"
    )
    given = GIVEN.model_copy(update={"seq_len": 4096})
    case = resolve(read_config(overrides, "overrides.yaml", "bridge"), given, Settings())
    assert case.layout.modules_apart
    assert [stage.layers for stage in case.layout.stages] == [31, 30, 0, 0]


@pytest.mark.parametrize("to", ["torchtitan", "deepspeed", "accelerate"])
def test_formats_that_do_not_place_modules_say_so(to: str) -> None:
    """Of a plan that places them."""
    plan = placed(21, 20, 20, 0, apart=True)
    try:
        exported = exporter_named(to)(plan, 8)
    except InvalidLayout:
        return  # refused for its pipeline: nothing is written
    assert "layout.modules_apart" in {each.name for each in exported.cannot_say}
