"""What a sweep says of its rows: words and figures by hand, of plans that nobody searched."""

import io
from dataclasses import replace

import pytest
from hand_priced import a_case, a_plan, price
from rich.console import Console

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.planner.case.search_report import SearchReport
from meshplan.planner.sweep.cells import Answer, Series
from meshplan.planner.sweep.economics import Failures, Terms, run_cost
from meshplan.planner.sweep.outcome import Sweep, SweepRow, _marked, document
from meshplan.planner.sweep.report import print_sweep

STEP_TOKENS = 4096 * 128
TERMS = Terms(tokens=STEP_TOKENS * 8_640_000.0)  # 100 days of steps of a second
HERE = Series(
    model="llama-3.1-70b", cluster="dgx-h100", engine="megatron", seq_len=4096,
    global_batch_size=128,
)  # fmt: skip
THERE = replace(HERE, cluster="dgx-a100", engine="nemo")
LAYOUTS = {
    gpus: Layout(data_parallel=gpus // 8, tensor_parallel=8, stages=even_stages(80, 1))
    for gpus in (64, 128, 256)
}


def planned(
    gpus: int, step_time_s: float, *, gap: float = 0.0, terms: Terms = TERMS,
    dollars: float | None = None,
) -> SweepRow:  # fmt: skip
    """A size with its plan, proved where there is no gap."""
    layout, status = LAYOUTS[gpus], "FEASIBLE" if gap else "OPTIMAL"
    search = SearchReport(
        status=status, bound_s=step_time_s * (1 - gap), gap=gap, candidates=1, priced=1,
        cpsat_solves=0, wall_s=1.0,
    )  # fmt: skip
    prediction = price(a_case(layout)).model_copy(update={"step_time_s": step_time_s})
    plan = a_plan(prediction, layout).model_copy(update={"search": search})
    cost = run_cost(gpus, step_time_s, STEP_TOKENS, terms, dollars)
    return SweepRow(
        line=0, series=HERE, gpus=gpus, answer=Answer(status=status, plan=plan), cost=cost
    )


def swept(*rows: SweepRow, terms: Terms = TERMS) -> Sweep:
    """What `outcome` makes of them."""
    return Sweep(rows=tuple(_marked(rows)), terms=terms)


def lines(sweep: Sweep, width: int) -> list[str]:
    """What is printed, each line with single spaces."""
    out = io.StringIO()
    print_sweep(Console(file=out, width=width), sweep, ())
    return [line for each in out.getvalue().splitlines() if (line := " ".join(each.split()))]


def three_sizes(**given: float) -> list[SweepRow]:
    """64, 128 and 256 GPUs, the last of which hardly helps; more GPUs that have no plan."""
    answer = Answer(status="INFEASIBLE", reason="too small")
    return [
        planned(64, 4.0, **given), planned(128, 2.5, gap=0.02, **given),
        planned(256, 2.4, **given),
        SweepRow(line=0, series=HERE, gpus=8, answer=answer),
    ]  # fmt: skip


TITLE = "llama-3.1-70b on dgx-h100, megatron, 128 sequences of 4,096 tokens a step"
KNEE = "1.6 x the tokens/s of the cheapest, 25.0% dearer per token"
PROOF = [
    "2 plans OPTIMAL: under the event simulation none is beaten in its space by more than a "
    "millionth (`plan` prints the space); "
    "1 not proved: steps up to 2.0% shorter may exist",
]


def test_three_sizes_by_hand() -> None:
    """64 x 4 s is least, so a token is cheapest; 64 x 16, 128 x 6.25 and 256 x 5.76: the knee is
    128, of 4 / 2.5 the speed at 2 x 2.5 / 4 the price. 400 days of 64 GPUs are 614,400 GPU-hours.
    """
    assert lines(swept(*three_sizes()), 240) == [
        TITLE,
        "GPUs layout step MFU tokens/s days GPU-hours",
        "64 dp8 tp8 zero0 mbs1 (cheapest) 4.00 s 40.0% 131K 400 614K",
        "128 dp16 tp8 zero0 mbs1 (knee, not proved) 2.50 s 40.0% 210K 250 768K",
        "256 dp32 tp8 zero0 mbs1 2.40 s 40.0% 218K 240 1.47M",
        "8 nothing fits: too small",
        "- cheapest: 64 GPUs, 400 days, 614K GPU-hours",
        f"- knee (least step time x cost): 128 GPUs, 250 days, 768K GPU-hours, {KNEE}",
        "- Pareto front of days against GPU-hours: 64, 128, 256 GPUs",
        *PROOF,
    ]


def test_a_knee_at_the_largest_size_may_lie_beyond() -> None:
    """64 x 16 and 128 x 4.41, or 64 x 16 and 128 x 9."""
    for step_time_s, beyond in ((2.1, True), (3.0, False)):
        found = lines(swept(planned(64, 4.0), planned(128, step_time_s)), 240)
        (knee,) = [line for line in found if line.startswith("- knee")]
        assert knee.endswith("; it may lie beyond this largest size") == beyond


def test_a_narrow_terminal_has_the_layouts_below_the_figures() -> None:
    """Of sizes with a plan, the cost in place of the GPU-hours: 614,400 at 2 are 1,228,800."""
    found = lines(swept(*three_sizes(dollars=2.0)), 89)
    assert found[1:9] == [
        "GPUs step MFU tokens/s days cost",
        "64 4.00 s 40.0% 131K 400 1.23M",
        "128 2.50 s 40.0% 210K 250 1.54M",
        "256 2.40 s 40.0% 218K 240 2.95M",
        "GPUs layout",
        "64 dp8 tp8 zero0 mbs1 (cheapest)",
        "128 dp16 tp8 zero0 mbs1 (knee, not proved)",
        "256 dp32 tp8 zero0 mbs1",
    ]
    assert "- cheapest: 64 GPUs, 400 days, 1,228,800" in found
    assert "- Pareto front of days against money: 64, 128, 256 GPUs" in found


@pytest.mark.parametrize(
    ("dollars", "cost_in", "figures"),
    [
        pytest.param(None, "gpu_hours", ("768,000", "614,400"), id="GPU-hours"),
        pytest.param(2.0, "money", ("1,536,000", "1,228,800"), id="money: twice as much"),
    ],
)
def test_the_front_of_two_clusters(
    dollars: float | None, cost_in: str, figures: tuple[str, str]
) -> None:
    """64 GPUs here take 4 s, there 5 s and are left out; 128 there take 2.5 s and come first."""
    there = [planned(64, 5.0, dollars=dollars), planned(128, 2.5, dollars=dollars)]
    there = [replace(row, line=1, series=THERE) for row in there]
    sweep = swept(planned(64, 4.0, dollars=dollars), *there)
    in_words = {"money": "money", "gpu_hours": "GPU-hours"}[cost_in]
    found, title = lines(sweep, 140), f"Pareto front of days against {in_words}, all of"
    at = found.index(f"{title} llama-3.1-70b")
    assert found[at + 1 : at + 4] == [
        f"days {'cost' if dollars else 'GPU-hours'} GPUs",
        f"250 {figures[0]} 128 dgx-a100, nemo", f"400 {figures[1]} 64 dgx-h100, megatron",
    ]  # fmt: skip
    (front,) = document(sweep)["fronts"]
    assert front["cost_in"] == cost_in
    assert [(cell["gpus"], cell["cluster"]) for cell in front["cells"]] == [
        (128, "dgx-a100"), (64, "dgx-h100"),
    ]  # fmt: skip
    assert [each["cheapest_gpus"] for each in document(sweep)["series"]] == [64, 128]


def test_without_the_tokens_of_a_run_nothing_is_added_up() -> None:
    """No days, no front: a trillion tokens are 1e12 / 131,072 x 64 / 3,600 GPU-hours."""
    found = lines(swept(planned(64, 4.0, terms=Terms()), terms=Terms()), 140)
    assert found[1:4] == [
        "GPUs layout step MFU tokens/s", "64 dp8 tp8 zero0 mbs1 4.00 s 40.0% 131K",
        "- 64 GPUs: 136K GPU-hours for 1T tokens",
    ]  # fmt: skip


def test_failures_have_their_line() -> None:
    """A GPU that fails every 6,400 h, 64 of them every 100 h; a checkpoint takes 72 s: each
    sqrt(2 x 72 x 360,000) x (1 + 0.01 / 3) - 72 = 7,152 s.
    """
    terms = replace(TERMS, failures=Failures(gpu_mtbf_s=6400 * 3600.0, checkpoint_s=72.0))
    found = lines(swept(planned(64, 4.0, terms=terms), terms=terms), 140)
    said = "a failure every 100 h, a checkpoint every 119 min of work (restarts not counted)"
    assert f"- {said}" in found
    assert "goodput" in found[1]
