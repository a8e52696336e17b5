"""Priced layouts against their simulation, drawn as `benchmarks.search.fidelity` draws them."""

import random

import pytest

from benchmarks.search.fidelity import Distance, distances, draw

QUESTION = ("llama-3.2-1b", 32, 4096, 256, "dgx-a100")
BOUNDS = {  # docs/search.md: closed form / simulation - 1
    "one rank": (-1e-6, 1e-6),
    "1f1b": (-0.05, 0.30),
    "interleaved_1f1b": (-0.15, 0.55),
    "zb_h1": (-0.06, 0.25),
    "zb_v": (-0.14, 0.37),
    "dualpipe_v": (-0.12, 0.10),
}


@pytest.fixture(scope="module")
def found() -> list[Distance]:
    """Random layouts of the two engines with every schedule, each cut in two ways."""
    rng = random.Random(0)
    return [
        each
        for engine in ("native", "generic")
        for each in distances(draw(QUESTION, engine, 120, 0), rng)
    ]


@pytest.mark.parametrize("schedule", BOUNDS)
def test_step_times_are_within_the_stated_bounds(schedule: str, found: list[Distance]) -> None:
    """No schedule is priced further from its simulation than docs/search.md says."""
    times = [each.time for each in found if each.schedule == schedule]
    print(f"{schedule}: {len(times)} layouts, {min(times):+.1%} to {max(times):+.1%}")
    assert len(times) >= 5
    least, most = BOUNDS[schedule]
    assert least <= min(times)
    assert max(times) <= most


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("engine", "question"),
    [
        pytest.param("megatron-bridge", QUESTION, id="buffers that outlive their use"),
        pytest.param(
            "megatron-bridge", ("deepseek-v3", 512, 4096, 2048, "dgx-h800"),
            id="those of every kind of layer on every rank, the head's beside whatever it replays",
        ),
        pytest.param(
            "native", ("mixtral-8x7b", 128, 4096, 512, "dgx-h100"),
            id="gradients of experts that arrive over fewer ranks than the others'",
        ),
    ],
)  # fmt: skip
def test_what_is_held_for_a_moment_is_not_underestimated(engine: str, question) -> None:
    """Priced ranks of random layouts hold what simulated ones do, or more."""
    drawn = draw(question, engine, 60, 0)
    least = min(distances(drawn, random.Random(0)), key=lambda each: each.least_memory)
    assert least.least_memory >= -1e-6, least


def test_memory_is_not_underestimated(found: list[Distance]) -> None:
    """Also where weight products are put off: priced ranks hold what simulated ones do, or more."""
    least = min(found, key=lambda each: each.least_memory)
    assert least.least_memory >= -1e-6, least
