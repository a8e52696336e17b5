"""What it costs in time that a plan fits with a stated probability, on twelve typical questions.

    python -m benchmarks.search.headroom    writes the table of docs/choice.md

Each question is solved with the memory that a layout may fill to fit with each probability, and
with all that the profile lets a rank use, as plans did until 2026-11-24.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from benchmarks.pages import ROOT, show
from benchmarks.usage import check_usage
from meshplan.costmodels.units import GIB, format_seconds
from meshplan.hardware_profiles.errors.memory_needs import FITS, chances_of
from meshplan.planner.answer.answer import case_at, solve
from meshplan.planner.answer.question import Arguments, ask
from meshplan.planner.case.memory_limit import with_usable
from meshplan.planner.case.predict import fits_probability, step_model_of
from meshplan.planner.search.result import NoLayoutFits

QUESTIONS = (
    Arguments(model="llama-3.1-8b", gpus=8, cluster="dgx-h100", seq_len="8192", global_batch=128),
    Arguments(model="llama-3.1-8b", gpus=64, cluster="dgx-h100", global_batch=1024),
    Arguments(model="llama-3.1-70b", gpus=64, cluster="dgx-h100", seq_len="8192", global_batch=512),
    Arguments(model="llama-3.1-70b", gpus=64, cluster="dgx-h100", global_batch=1024,
              engine="torchtitan"),
    Arguments(model="llama-3.1-70b", gpus=256, cluster="dgx-h100", seq_len="8192",
              global_batch=512, engine="megatron"),
    Arguments(model="mixtral-8x22b", gpus=128, cluster="dgx-h100", seq_len="8192",
              global_batch=512, engine="megatron"),
    Arguments(model="qwen3-30b-a3b", gpus=16, cluster="dgx-h100", global_batch=512),
    Arguments(model="qwen3-32b", gpus=32, cluster="aws-p5", global_batch=512),
    Arguments(model="deepseek-v3", gpus=1024, cluster="dgx-b200", global_batch=8192),
    Arguments(model="llama-3.1-405b", gpus=1024, cluster="dgx-h100", seq_len="8192",
              global_batch=512),
    Arguments(model="gpt3-175b", gpus=512, cluster="dgx-a100", seq_len="2048", global_batch=1536,
              engine="megatron"),
    Arguments(model="llama-3.1-8b", gpus=32, cluster="dgx-h100", seq_len="32k", global_batch=64,
              engine="nanotron"),
)  # fmt: skip
SHARES = (0.8, FITS, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question with the step of its fastest layout in all the memory, how probably that fits, and
    how much longer it takes to fit with each of `SHARES`; None where nothing does.
    """

    words: str
    free_gib: float
    step_time_s: float
    fits_probability: float
    slower: tuple[float | None, ...]


def asked_of(arguments: Arguments) -> Asked:
    """One question solved with each amount of memory."""
    asked = ask(arguments)
    question, profile = asked.question, asked.profile
    gpu_bytes, whole = profile.gpu.memory_bytes, replace(question, cluster=profile)
    fastest = solve(whole, 1).solutions[0]
    probable = fits_probability(step_model_of(case_at(whole, fastest.layout)))
    assert probable is not None
    chances, slower = chances_of(question.engine.name, profile.gpu.name), list[float | None]()
    for share in SHARES:
        usable = min(profile.capacity_bytes, gpu_bytes / chances.room(share))
        less = replace(question, cluster=with_usable(profile, usable))
        try:
            slower.append(solve(less, 1).solutions[0].step_time_s / fastest.step_time_s - 1)
        except NoLayoutFits:
            slower.append(None)
    a = arguments
    return Asked(
        words=f"{a.model}, {a.gpus} {profile.gpu.name}, {question.engine.name}",
        free_gib=(gpu_bytes - question.cluster.fillable_bytes) / GIB,
        step_time_s=fastest.step_time_s,
        fits_probability=probable,
        slower=tuple(slower),
    )


def table(found: Sequence[Asked]) -> Iterator[str]:
    """A line for each question, and the mean."""
    heads = " | ".join(f"to fit with {share:.0%}" for share in SHARES)
    yield f"| question | left free | fastest of all | fits with | {heads} |"
    yield f"|---|---|---|---|{'---|' * len(SHARES)}"
    for each in found:
        cells = " | ".join("nothing" if s is None else f"{s:+.1%}" for s in each.slower)
        yield (
            f"| {each.words} | {each.free_gib:.1f} GiB | {format_seconds(each.step_time_s)} | "
            f"{each.fits_probability:.0%} | {cells} |"
        )
    means = (
        [s for each in found if (s := each.slower[at]) is not None] for at in range(len(SHARES))
    )
    yield f"| mean | | | | {' | '.join(f'{mean(each):+.1%}' for each in means)} |"


def main() -> None:
    """The command."""
    found: list[Asked] = []
    for arguments in QUESTIONS:
        found.append(asked_of(arguments))
        print(found[-1], flush=True)
    show(ROOT / "docs/choice.md", "headroom", "\n".join(table(found)))


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
