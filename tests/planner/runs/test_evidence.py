"""The nearest measured runs: in order of the stated distance, and none nearer is left out."""

from contextlib import suppress
from dataclasses import replace

import pytest

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.answer import case_at
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.case.resolve import Case
from meshplan.planner.report.evidence import (
    evidence_line,
    evidence_lines,
    nearest_line,
    run_text,
)
from meshplan.planner.runs import evidence
from meshplan.planner.runs.evidence import distance_of, nearest_runs
from meshplan.planner.runs.rows import SkippedRow
from meshplan.planner.runs.runs import Run, run_of


def case(model: str, gpus: int, layout: Layout) -> Case:
    """`layout` of `model` on so many H100."""
    asked = ask(Arguments(model=model, gpus=gpus, cluster="dgx-h100", global_batch=512))
    return case_at(asked.question, layout)


LLAMA = case("llama-3.1-70b", 256, Layout(
    data_parallel=16, tensor_parallel=4, pipeline_parallel=4, sequence_parallel=True,
    zero_stage=1, stages=even_stages(80, 4),
))  # fmt: skip
QWEN = case("qwen3-30b-a3b", 64, Layout(
    data_parallel=64, expert_parallel=8, zero_stage=1, stages=even_stages(48, 1),
))  # fmt: skip


def runs() -> list[Run]:
    """Every complete row that can be priced."""
    found = []
    rows = evidence._rows()
    for cells in map(rows.whole, range(len(rows.texts))):
        try:
            found.append(run_of(cells))
        except SkippedRow:
            continue
    return found


def test_no_nearer_run_is_left_out() -> None:
    """The bound by which rows are put aside loses none: what is found is what measuring the
    distance of every row finds.
    """
    every = runs()
    for asked in (LLAMA, QWEN):
        best: dict[tuple[object, ...], float] = {}
        for run in every:
            gpus = (run.cluster.gpu.name, run.layout.world_size)
            key = (run.suite, run.model.name, *gpus)
            best[key] = min(best.get(key, 1e9), distance_of(asked, run))
        nearest = [round(each.distance, 3) for each in nearest_runs(asked)]
        assert nearest == [round(d, 3) for d in sorted(best.values())[: evidence.SHOWN]]


def test_no_bound_of_a_row_exceeds_its_distance() -> None:
    """What the cells say of a run is at most how far it is."""
    rows = evidence._rows()
    for asked in (LLAMA, QWEN):
        bounds = evidence._bounds(asked, rows)
        for index in range(0, len(rows.texts), 7):
            with suppress(SkippedRow):
                run = run_of(rows.whole(index))
                assert bounds[index] <= distance_of(asked, run), rows.alike(index)


def test_distance_of_what_differs() -> None:
    """A run is at 0 from its own case; twice the GPUs are 1/2 away, four times tp another 1/2."""
    run = next(run for run in runs() if run.layout.pipeline_parallel == 1)
    own = Case(
        model=run.model, layout=run.layout, training=run.training, cluster=run.cluster,
        engine=run.engine,
    )  # fmt: skip
    la = run.layout
    doubled = replace(own, layout=replace(la, data_parallel=2 * la.data_parallel))
    split = replace(own, layout=replace(
        la, data_parallel=2 * la.data_parallel, tensor_parallel=4 * la.tensor_parallel,
    ))  # fmt: skip
    assert distance_of(own, run) == 0
    assert distance_of(doubled, run) == pytest.approx(1 / 2)
    assert distance_of(split, run) == pytest.approx(3 / 2 + 1 / 2)


def test_what_is_said_of_a_run_is_what_its_row_says() -> None:
    """Measured seconds are the row's, and the unseen prediction is no copy of the fitted one."""
    found = evidence._rows()
    whole = map(found.whole, range(len(found.texts)))
    rows = {cells["id"]: cells for cells in whole}
    found = nearest_runs(LLAMA)
    for each in found:
        assert each.measured_step_time_s == float(rows[each.id]["step_time_s"])
        assert each.predicted_unseen_s != each.predicted_step_time_s
    assert any(each.predicted_unseen_s is not None for each in found)


def test_a_size_that_the_name_says_is_not_said_again() -> None:
    """Runs of nanotron's sweep are named "Llama-like 8B (8.86B)"."""
    found = nearest_runs(LLAMA)[0].model_copy(update={"parameters": 8.8586e9})
    for name in ("Llama-like 8B (8.86B)", "Llama-like 8B"):
        said = run_text(found.model_copy(update={"model": name}))
        assert said.startswith("Llama-like 8B (8.86B) on ")


def test_what_is_not_near_is_said_so() -> None:
    """The nearest run of a small mixture of experts may be a dense model's; beyond a distance of 3,
    and of another kind of model at any, a reader is told that none is near.
    """
    near = nearest_runs(LLAMA)
    assert near[0].near
    assert near[0].distance <= 3
    assert nearest_line(near) == evidence_line(near[0])
    assert evidence_lines(near)[0] == evidence_line(near[0])
    far = nearest_runs(replace(QWEN, training=replace(QWEN.training, seq_len=2**24)))
    assert [each.near for each in far] == [False] * len(far)
    assert nearest_line(far).startswith("none is near (same kind of model, distance at most 3)")
    assert f" (distance {far[0].distance:.1f}): measured" in nearest_line(far)
    assert evidence_lines(far)[0].startswith("none is near")
    assert len(evidence_lines(far)) == len(far) + 1


def test_another_kind_of_model_is_never_near() -> None:
    """A dense 8B's runs, asked of a hybrid of its size with all else the same: 2 away, not near."""
    hybrid = case("nemotron-h-8b", 8, Layout(data_parallel=8, stages=even_stages(52, 1))).model
    run = next(
        run for run in runs()
        if run.model.kind == "dense" and abs(model_parameters(run.model).total / 8.1e9 - 1) < 0.05
    )  # fmt: skip
    own = Case(
        model=hybrid, layout=run.layout, training=run.training, cluster=run.cluster,
        engine=run.engine,
    )  # fmt: skip
    found = nearest_runs(own)
    assert found[0].distance < evidence.NEAR
    assert not any(each.near for each in found if each.parameters == pytest.approx(8e9, rel=0.2))


def test_runs_on_gpus_are_no_evidence_for_processes_on_a_cpu() -> None:
    """The nearest one was an A100's; no CPU run is published."""
    on_cpu = replace(LLAMA, cluster=load_cluster("local-cpu:2"))
    assert nearest_runs(on_cpu) == ()
    assert nearest_line(()) == "none (we know of no published runs of CPU processes)"


@pytest.mark.parametrize("cluster", ["local-cpu", "dgx-h100"])
def test_rates_that_nobody_measured_are_said(cluster: str) -> None:
    """Of the machine at hand they are read off its processor's description."""
    arguments = Arguments(model="tiny-llama", gpus=1, cluster=cluster, global_batch=8)
    said = [note for note in ask(arguments).notes if "not measured" in note]
    assert bool(said) == (cluster == "local-cpu")
