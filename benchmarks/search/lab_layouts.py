"""The layouts that laboratories really ran, beside the ones that we would have chosen.

    python -m benchmarks.search.lab_layouts            write the tables of docs/lab_layouts.md anew
    python -m benchmarks.search.lab_layouts --print    print them only

What was published of a layout is pinned; what was not is chosen best under the event simulation, as
`meshplan plan` chooses, so a laboratory is never charged with a choice that it did not state. Then,
for the same model, batch, hardware and engine:

    faster    the share of legal layouts that fit and are faster under the closed form, each cut
              into stages by a first plan: a random sample, so with its standard error
    best      the layout that the search finds best, as `plan` answers: with memory left free for
              the error of predictions; and by what the laboratory's loses to it

"Left open" says by how much the laboratory's own (its cuts and recomputation are chosen) and the
best may be faster still, where the search did not prove them: a gain is sure up to that alone.
"""

import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.pages import ROOT, put
from benchmarks.usage import check_usage
from meshplan.costmodels.layout import Layout, RecomputeModule, Stage
from meshplan.costmodels.training import Precision, Training
from meshplan.costmodels.units import format_seconds
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.answer import case_at, solve
from meshplan.planner.answer.explain import PART_NAMES, lost_by, time_parts
from meshplan.planner.answer.models import read_model
from meshplan.planner.bounds.inner import row_fits
from meshplan.planner.case.memory_limit import with_usual_headroom
from meshplan.planner.case.predict import predicted, step_model_of
from meshplan.planner.problem.coefficients import NS_PER_S
from meshplan.planner.problem.stage_problem import stage_problem
from meshplan.planner.search.closed_form.first_plans import FirstPlans
from meshplan.planner.search.result import Solution, solution_of
from meshplan.planner.search.rows.priced_space import Question, closed_form, price_space, space_of
from meshplan.planner.search.rows.row_prices import RowPrices
from meshplan.planner.space.pins import Pins, parse_pins
from meshplan.planner.stages.first_plan import first_plan

SAMPLE = 1000
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """One published run: the question, what was published of its layout, and its step time.

    measured_s  seconds of a step as published, or as follows from what was (see `source`)
    replays     what selective recompute replayed in all layers, where that was published and the
                search offers other modules alone; the pins then say none
    """

    name: str
    model: str
    gpus: int
    cluster: str
    engine: str
    seq_len: int
    global_batch_size: int
    pins: dict[str, str]
    measured_s: float
    source: str
    precision: Precision = "bf16"
    replays: tuple[RecomputeModule, ...] = ()

    def question(self, *, pinned: bool) -> Question:
        """What the laboratory had to decide: with its own decisions in all of the memory, where it
        ran, if `pinned`, else with as much of it left free as `plan` leaves.
        """
        cluster = load_cluster(self.cluster)
        return Question(
            model=read_model(self.model)[1],
            training=Training(
                seq_len=self.seq_len,
                global_batch_size=self.global_batch_size,
                precision=self.precision,
            ),
            gpus=self.gpus,
            cluster=cluster if pinned else with_usual_headroom(cluster, self.engine),
            engine=load_engine(self.engine),
            pins=parse_pins(self.pins) if pinned else Pins(),
        )

    def as_published(self, layout: Layout) -> Layout:
        """`layout` with what the laboratory's layers replayed."""
        if not self.replays:
            return layout
        stages = tuple(Stage(stage.layers, stage.layers) for stage in layout.stages)
        return replace(layout, stages=stages, selective_modules=self.replays)


def degrees(tp: int, pp: int, dp: int, **others: str) -> dict[str, str]:
    """The pins that nearly every paper states."""
    return {
        "tensor_parallel": str(tp),
        "pipeline_parallel": str(pp),
        "data_parallel": str(dp),
        "context_parallel": "1",
        **others,
    }


LABS = (
    Lab(
        name="Llama 3.1 405B, Meta", model="llama-3.1-405b", gpus=16384, cluster="meta-h100",
        engine="meta", seq_len=8192, global_batch_size=2048,
        pins=degrees(8, 16, 128, micro_batch_size="1"), measured_s=6.43,
        source="2407.21783, table 4: 400 TFLOP/s per GPU; with 2.51e12 FLOPs a token (6 N and"
        " causal attention) a step of 16.8M tokens takes 6.43 s",
    ),
    Lab(
        name="Llama 3.1 405B, Meta's smaller job", model="llama-3.1-405b", gpus=8192,
        cluster="meta-h100", engine="meta", seq_len=8192, global_batch_size=2048,
        pins=degrees(8, 16, 64, micro_batch_size="1"), measured_s=11.96,
        source="2407.21783, table 4: 430 TFLOP/s per GPU, as above",
    ),
    Lab(
        name="DeepSeek-V3, DeepSeek", model="deepseek-v3", gpus=2048, cluster="dgx-h800",
        engine="hai-llm", seq_len=4096, global_batch_size=15360, precision="fp8",
        # DualPipe over 16 ranks is dualpipe_v over 8 (costmodels.schedule.v_shaped)
        pins=degrees(1, 8, 256, expert_parallel="64", zero_stage="1", schedule="dualpipe_v"),
        measured_s=19.9,
        source="2412.19437, sections 3.2 and 1: 180,000 GPU hours per 1e12 tokens",
    ),
    Lab(
        name="Nemotron-4 340B, NVIDIA", model="nemotron-4-340b", gpus=6144, cluster="dgx-h100",
        engine="megatron", seq_len=4096, global_batch_size=2304,
        pins=degrees(8, 12, 64, virtual_stages="8", zero_stage="1"), measured_s=8.0,
        source="2406.11704, section 2.2 and table 2",
    ),
    Lab(
        name="BLOOM 176B, BigScience", model="bloom-176b", gpus=384, cluster="jean-zay-a100",
        engine="bigscience", seq_len=2048, global_batch_size=2048,
        pins=degrees(4, 12, 8, micro_batch_size="2", zero_stage="1", recompute="full",
                     virtual_stages="1"),
        measured_s=105.0,
        source="2211.05100, section 3.4; BigScience chronicles, about 150 TFLOP/s per GPU",
    ),
    Lab(
        name="GPT-3 175B, Megatron-LM 2021", model="gpt3-175b", gpus=384, cluster="dgx-a100",
        engine="megatron", seq_len=2048, global_batch_size=1536,
        pins=degrees(8, 12, 4, micro_batch_size="1", zero_stage="0", recompute="full"),
        measured_s=76.1,
        source="2104.04473, table 2: 84 days for 300e9 tokens",
    ),
    Lab(
        name="GPT-3 175B, Megatron-LM 2022", model="gpt3-175b", gpus=64, cluster="dgx-a100",
        engine="megatron", seq_len=2048, global_batch_size=64,
        pins=degrees(8, 8, 1, micro_batch_size="1", zero_stage="0,1", virtual_stages="3",
                     recompute="none"),
        measured_s=13.75, replays=("core_attention",),
        source="2205.05198, tables 3 and 5",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A laboratory's layout in our order.

    ours_s, best_s  simulated step times       faster, error  share and its standard error
    own_gap, gap    of the laboratory's layout (cuts, recomputation) and of the best: by how much
                    what was left open may be faster; 0 if proved
    parts           seconds that the laboratory's layout takes more than the best, by part
    """

    lab: Lab
    layout: Layout
    ours_s: float
    free_bytes: float
    best: Layout
    best_s: float
    own_gap: float
    gap: float
    faster: float
    error: float
    sampled: int
    parts: dict[str, float]


def own_layout(lab: Lab) -> Solution:
    """What the laboratory ran, its unpublished choices as in the best first plan of the closed
    form. What it replayed adds to the step as it does under the event simulation.
    """
    question = lab.question(pinned=True)
    space = space_of(question)
    run = FirstPlans(space, RowPrices(question, space, closed_form))
    run.plan([(row, way) for row in run.rows.tolist() for way in space.variants(row)])
    best = run.ranked()[0]
    own = solution_of(question, space, best, best.objective / NS_PER_S, proved=False)
    layout = lab.as_published(own.layout)
    before_s, after_s = (
        predicted(case_at(question, each)).step_time_s for each in (own.layout, layout)
    )
    return replace(own, layout=layout, step_time_s=own.step_time_s + after_s - before_s)


def ranked(lab: Lab, sample: int = SAMPLE) -> Ranked:
    """Where the laboratory's layout stands; raises `NoLayoutFits` if it does not fit."""
    question = lab.question(pinned=False)
    times = list(sampled_times_s(question, sample))
    closed_s = own_layout(lab).step_time_s
    share = sum(step_time_s < closed_s for step_time_s in times) / len(times)
    own, found = (solve(q, top=1) for q in (lab.question(pinned=True), question))
    layout, best = lab.as_published(own.solutions[0].layout), found.solutions[0]
    ours, theirs = case_at(question, best.layout), case_at(question, layout)
    prediction = predicted(theirs)
    fullest = max(stage.reserved + stage.context for stage in prediction.memory)
    best_parts = time_parts(step_model_of(ours))
    return Ranked(
        lab=lab,
        layout=layout,
        ours_s=prediction.step_time_s,
        free_bytes=prediction.gpu_memory_bytes - fullest,
        best=best.layout,
        best_s=predicted(ours).step_time_s,
        own_gap=own.gap,
        gap=found.gap,
        faster=share,
        error=math.sqrt(share * (1 - share) / len(times)),
        sampled=len(times),
        parts=lost_by(best_parts, time_parts(step_model_of(theirs))),
    )


def sampled_times_s(question: Question, count: int) -> Iterator[float]:
    """Closed-form step times of random legal layouts; those that do not fit are passed over."""
    q = question
    space = space_of(q)
    coefficients = price_space(q, space, closed_form)
    rows = np.flatnonzero(row_fits(space, coefficients)).tolist()
    weights = [len(space.variants(row)) for row in rows]
    draw = random.Random(SEED)
    for row in draw.choices(rows, weights, k=count):
        variant = draw.choice(space.variants(row))
        problem = stage_problem(space, coefficients, row, variant)
        _, plan = first_plan(problem)
        if plan is not None:
            yield plan.objective / NS_PER_S


def tables(found: list[Ranked]) -> str:
    """Both tables in Markdown."""
    return "\n".join([*_times(found), "", *_differences(found)])


def _times(found: list[Ranked]) -> Iterator[str]:
    yield (
        "| run | its layout | measured | ours | error | best we find | its step | gain | left open "
        "| faster |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for r in found:
        yield (
            f"| {r.lab.name}, {r.lab.gpus:,} GPUs | {r.layout.label} | {r.lab.measured_s:g} s "
            f"| {format_seconds(r.ours_s)} | {r.ours_s / r.lab.measured_s - 1:+.0%} "
            f"| {r.best.label} | {format_seconds(r.best_s)} | {1 - r.best_s / r.ours_s:.1%} "
            f"| {_open(r.own_gap)} / {_open(r.gap)} | {r.faster:.1%} ± {r.error:.1%} "
            f"of {r.sampled} |"
        )


def _open(gap: float) -> str:
    return f"{gap:.1%}" if gap else "proved"


def _differences(found: list[Ranked]) -> Iterator[str]:
    yield "| run | what its layout spends more | and less | source |"
    yield "|---|---|---|---|"
    for r in found:
        more = [(name, s) for name, s in r.parts.items() if s > 0][:3]
        less = [(name, s) for name, s in reversed(r.parts.items()) if s < 0][:2]
        told = [
            ", ".join(f"{PART_NAMES[name]} {format_seconds(abs(s))}" for name, s in part)
            for part in (more, less)
        ]
        yield f"| {r.lab.name} | {told[0]} | {told[1]} | {r.lab.source} |"


def main() -> None:
    """Measure every laboratory's layout and write or print the tables."""
    text = tables([ranked(lab) for lab in LABS])
    if "--print" in sys.argv[1:]:
        print(text)
    else:
        put(ROOT / "docs/lab_layouts.md", "lab layouts", text)


if __name__ == "__main__":
    check_usage(str(__doc__), "--print")
    main()
