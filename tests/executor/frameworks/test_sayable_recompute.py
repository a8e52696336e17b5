"""Plans of Megatron's engines recompute what their options say: written, read back and priced they
are the same plans. What a hand or an older meshplan wrote otherwise is said so.
"""

import random
from functools import cache
from pathlib import Path

import pytest
from nightly import cases
from random_plans import missing_facts
from random_plans import plan_of as layout_plan

from meshplan.costmodels.layout import Layout, Stage
from meshplan.costmodels.training import Training
from meshplan.executor.frameworks import exporter_named, read_config
from meshplan.planner.answer.answer import plan_of, solve
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.case.predict import predicted
from meshplan.planner.case.resolve import check_case, resolve
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import case_of, check_paths
from meshplan.planner.cli.check import tools
from meshplan.planner.report.tables import stages_line
from meshplan.planner.search.result import NoLayoutFits

FORMATS = {
    "megatron": "megatron",
    "megatron-bridge": "bridge",
    "mlperf": "bridge",
    "nemo": "bridge",
}


@cache
def drawn(seed: int) -> Plan | None:
    """A question that is short of memory, and its plan; None where nothing fits."""
    draw = random.Random(seed)
    chunks, least = draw.choice((("1", "4"), ("2..", "4"), ("1", "2..")))
    asked = ask(
        Arguments(
            model=draw.choice(("llama-3.1-8b", "deepseek-v2-lite", "qwen2.5-7b", "mixtral-8x7b")),
            gpus=draw.choice((16, 32)), cluster=draw.choice(("dgx-a100", "dgx-h100")),
            seq_len=draw.choice(("8192", "16384")), global_batch=draw.choice((32, 64)),
            engine=draw.choice([*FORMATS]), headroom=f"{draw.choice((40, 50, 60, 65))}%",
            pins={"tensor_parallel": "1,2", "context_parallel": "1", "pipeline_parallel": least,
                  "virtual_stages": chunks},
        )
    )  # fmt: skip
    try:
        return plan_of(asked, solve(asked.question, 1))
    except NoLayoutFits:
        return None


def test_a_plan_is_what_its_export_is_checked_as() -> None:
    """Six drawn questions (nightly 60), of which some recompute the first layers of each stage: no
    part of the layout is unsaid, and `check` of the file gives the step and the memory of the plan.
    """
    recomputed = []
    for plan in filter(None, map(drawn, range(cases(6, nightly=60)))):
        exported = exporter_named(FORMATS[plan.engine])(plan, 8)
        assert not [each for each in exported.cannot_say if each.name.startswith("layout")]
        name, text = next(iter(exported.files.items()))
        given = missing_facts(plan, exported).model_copy(update={"cluster": plan.cluster.name})
        case = resolve(read_config(text, name), given, Settings(engine=plan.engine))
        check_case(case)
        assert plan.prediction is not None
        again = predicted(case)
        assert again.step_time_s == pytest.approx(plan.prediction.step_time_s, rel=1e-9)
        here, there = ([rank.reserved for rank in each.memory] for each in (again, plan.prediction))
        assert here == pytest.approx(there)
        recomputed.append(plan.layout.recompute)
    assert recomputed.count("mixed") >= 2


def mixed(full: tuple[int, ...]) -> Plan:
    """Llama 3.1 8B in stages of 8 layers, of which so many recompute, planned for Megatron."""
    stages = tuple(Stage(8, full_layers=k) for k in full)
    layout = Layout(data_parallel=2, pipeline_parallel=4, zero_stage=1, stages=stages)
    return layout_plan("llama-3.1-8b", layout, Training(seq_len=2048, global_batch_size=16))


@pytest.mark.parametrize(("engine", "full", "said"), [
    pytest.param("megatron", (1, 3, 0, 0), True, id="megatron: one k for all stages"),
    pytest.param("megatron", (3, 3, 3, 3), False, id="megatron: the first 3 of each"),
    pytest.param("nanotron", (3, 3, 3, 3), True, id="nanotron: all or none"),
    pytest.param("native", (1, 3, 0, 0), False, id="native: any"),
])  # fmt: skip
def test_a_plan_that_its_engine_cannot_say_is_said_so(
    engine: str, full: tuple[int, ...], said: bool, tmp_path: Path
) -> None:
    """`check` of a plan file, an older one or one that a hand changed, names it."""
    plan = mixed(full).model_copy(update={"engine": engine})
    (tmp_path / "plan.yaml").write_text(plan.to_yaml())
    (found,) = check_paths([tmp_path / "plan.yaml"], tools(), Settings())
    assert any("recompute that differs" in note for note in found.notes) is said
    assert any("recompute that differs" in note for note in case_of(plan).notes) is said


@pytest.mark.parametrize(("full", "said"), [
    pytest.param((3, 3, 3, 3), "12 of 32 recomputed in full, the first 3 of each stage",
                 id="one number"),
    pytest.param((1, 3, 0, 0), "4 of 32 recomputed in full", id="no one number"),
    pytest.param((8, 8, 8, 8), "32 of 32 recomputed in full", id="all"),
])  # fmt: skip
def test_a_plan_says_what_to_set(full: tuple[int, ...], said: str) -> None:
    """Beside how many layers recompute in all, the number that Megatron's options take."""
    assert stages_line(mixed(full)) == f"4 x 8 layers, {said}"


def test_full_recompute_leaves_prediction_modules_alone() -> None:
    """As they are priced: `block` replays no module of DeepSeek-V3's, `uniform` would; read back,
    all layers recompute.
    """
    stages = tuple(Stage(n, full_layers=n) for n in (16, 16, 16, 13))
    layout = Layout(data_parallel=64, pipeline_parallel=4, zero_stage=1, stages=stages)
    plan = layout_plan("deepseek-v3", layout, Training(seq_len=2048, global_batch_size=1024))
    text = exporter_named("megatron")(plan, 8).files["train.sh"]
    assert "--recompute-method block" in text
    assert "--recompute-num-layers 16" in text
    rule = read_config(text, "train.sh").recompute
    assert [rule.layers(stage.layers) for stage in stages] == [16, 16, 16, 13]
