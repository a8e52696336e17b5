"""Cuts of which each stage stays below a limit: found exactly where there is one."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from compositions import compositions
from nightly import cases
from simulated_oracle import DENSE, PINNED, random_question

from meshplan.costmodels.prices.passes import pass_seconds
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.bounds.simulated import Passes
from meshplan.planner.bounds.stage_chains import StageChains, cut_bounds
from meshplan.planner.bounds.stage_memory import LayoutStages
from meshplan.planner.problem.same_pipeline import SamePipeline, run_as
from meshplan.planner.search.rows.priced_space import closed_form, price_space, space_of
from meshplan.planner.space.pins import parse_pins

PATTERNS = ((0, 0, 0, 1, 0), (0, 1, 0, 1, 0), (1, 0, 0, 1, 0))
HEAVY = replace(DENSE, ffn=32_768)
SLOWER = 50
MEMORIES_KIB = (9_000_000, 10_000_000, 11_000_000, 100_000_000)


def pipelines(seed: int, slower: float = SLOWER) -> Iterator[tuple[SamePipeline, Passes]]:
    """Of three and four ranks, with a heavy layer here and there. Those between the first and the
    last wait for twice as many messages, which are slow: where a light one takes all the time that
    is left, a heavy one takes more.
    """
    drawn = random_question(seed)
    link = drawn.cluster.network
    slow = {name: rate / slower for name, rate in link.bus_bandwidth.model_dump().items()}
    link = link.model_copy(update={"bus_bandwidth": link.bus_bandwidth.model_copy(update=slow)})
    cluster = drawn.cluster.model_copy(update={"network": link, "gpus_per_node": 3})
    model = replace(drawn.model, kinds=(DENSE, HEAVY), pattern=PATTERNS[seed // 3 % 3])
    q = replace(
        drawn, gpus=12, cluster=cluster, model=replace(model, mtp_layers=0),
        engine=load_engine(("native", "generic", "torchtitan")[seed % 3]),
        training=replace(drawn.training, global_batch_size=24),
        pins=parse_pins({**PINNED, "pipeline_parallel": "3..", "virtual_stages": "1"}),
    )  # fmt: skip
    space = space_of(q)
    space = space.take(np.arange(0, len(space.layouts), 23))
    prices, passes = price_space(q, space, closed_form), pass_seconds(space.layouts, q.setting)
    for row in range(len(space.layouts)):
        for variant in space.variants(row):
            at = np.array([row])
            same = run_as(space, prices, at, variant)
            yield same, Passes.of(passes, at, same)


def longest_s(same: SamePipeline, passes: Passes, counts: tuple[int, ...]) -> float:
    """The longest chain through a stage of a cut."""
    chains, memory = StageChains(same, passes), LayoutStages(same)
    stage, end = np.arange(same.pp), np.cumsum(counts)
    where = np.zeros(same.pp, np.int64), stage, end - counts, end
    return float(chains.bounds_s(*where, memory.beyond_s(*where)).max())


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(cases(9, nightly=60)))
def test_the_bound_of_all_cuts_is_not_above_that_of_any(seed: int) -> None:
    """A stage that took all layers which it could left a heavy one to the next, which must hold one
    and cannot; with fewer on the first there is a cut, which was proved not to be.
    """
    for same, passes in pipelines(seed):
        fewest = [same.fewest_layers(stage) for stage in range(same.pp)]
        every = compositions(len(same.pattern), fewest)
        least_s = min(longest_s(same, passes, counts) for counts in every)
        if np.isfinite(least_s):
            above_s = least_s * (1 + 1e-6)
            assert cut_bounds(same, passes, np.zeros(1), above_s)[0] <= least_s
            for below_s in (least_s * (1 - 1e-6), least_s / 9):
                assert cut_bounds(same, passes, np.zeros(1), below_s)[0] == below_s


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(cases(9, nightly=60)))
def test_the_bound_of_a_list_is_that_of_its_best_split_or_the_limit(seed: int) -> None:
    """Splits are let go by what costs little to find, at any limit and in any memory."""
    for same, passes in islice(pipelines(seed, slower=1), 6):
        fewest = [same.fewest_layers(stage) for stage in range(same.pp)]
        splits = tuple(compositions(len(same.pattern), fewest))
        for cap_kib in MEMORIES_KIB:
            listed = replace(same, splits=splits, prices=replace(same.prices, cap_kib=cap_kib))
            steps = sorted(longest_s(listed, passes, counts) for counts in splits)
            for limit_s in {0.99 * steps[0], *(1.01 * step_s for step_s in steps[:3])} - {np.inf}:
                found_s = cut_bounds(listed, passes, np.zeros(1), limit_s)[0]
                assert found_s == min(steps[0], limit_s)
