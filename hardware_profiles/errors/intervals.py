"""The interval around a prediction that 8 of 10 runs fall into, learnt from runs left out of fits.

    low, high   exp(-e / skew) and exp(e skew) times the prediction, never nearer than `NOISE`
    e           the 80th percentile of the errors of left-out runs, weighted, the predicted run
                itself counted among them as infinitely far off (split conformal prediction: Vovk
                et al. 2005; Lei et al., arXiv 1604.04173; with weights Tibshirani et al., arXiv
                1904.06019), so that few runs give a wide interval
    error       of a run: ln(measured / predicted) / skew where it took longer than predicted,
                ln(predicted / measured) x skew where it did not; of a dense run that counts for a
                model with experts times the scale of these (`SPREADS`)

The reader's run may be like runs of the same engine, or come from a source unlike all others. So
two kinds of left-out runs count, with these weights:

    runs of the engine on the GPU family   1 / (1 + r (m - 1)) each where their source has m of
                                           them, with its layout and with its source left out half
                                           of it: runs of one source are wrong together. Where r
                                           (`WITHIN`) of being far off is shared within a source, m
                                           runs are worth m / (1 + r (m - 1)) (design effect: Kish,
                                           Survey Sampling, 1965), of step times three at most
    sources that were left out as a whole  the same for each source, `SAME_ENGINE` times as much for
                                           those of the same engine; together as many runs as are
                                           missing to `ENOUGH`, at least `BORROWED`. For an engine
                                           without constants of its own only those sources count
                                           whose engine was left out with them

Of both, runs of another kind of model count `UNLIKE` as much for a step time, and so do those in 8
bits and fewer for those in 16, and these for them.

What the errors of a source showed is often mended, so they are smaller afterwards than those of the
next source will be. Of a run of which the first prediction is known (`first_predictions.csv`) its
first error counts, not today's.

Both rules were chosen by ranges that had seen only what came before each batch of new sources
(`python -m benchmarks.accuracy.backtest`).

Where no run of the engine covers the prediction (its GPU family, precision, kind of model, that
kind on that family, or more than `FARTHER` times the GPUs of its largest run), the error cannot be
smaller than where one does: there e is also at least that of the left-out sources alone, and where
no run of any engine covers it at least that of engines without constants.

Where fewer than `SOURCES` left-out sources state a quantity, they make no interval alone: with the
reader's source counted among them as the farthest off, the percentile would be the farthest run of
all, or beyond (conformal prediction over sources: Dunn et al., arXiv 1809.07441; Lee et al., arXiv
2306.06342). There e is the larger of their plain percentile and that of step times, which dozens of
sources state [assumed: no quantity is predicted better].

Sources that nothing was fitted to took longer than first predicted by up to 46 % (90th percentile,
each source alike) and shorter by up to 17 %, runs of known sources 10 and 13 %: so step times have
a skew, memory none. Of models with experts it is 76 and 18 % (30 sources), of dense ones 31 and 16
% (73): experts reach 1.6 times as far, at a larger skew (`SPREADS`; of the first 20 and 42 sources
alone they would be 1.6 and 1.65 too). What is known of experts counts for dense models as it is.

Step times of runs whose experts exchange tokens between nodes by all-to-all are a kind of their
own: no network's all-to-all at their sizes is published, and 22 runs took 1.2 to 2.5 times as long
as predicted. They do not count for other runs. Their own e is at least the percentile of such runs
of the engine on the GPU family together with such left-out sources, all alike; other left-out
sources count beside them as the number of runs that is missing to `ENOUGH`, at least `BORROWED`.

For models with a recurrent state runs of such models alone count; no constant was fitted to any of
them. (`python -m benchmarks.accuracy.coverage` counts how often intervals hold.)

`python -m benchmarks.accuracy.intervals` writes the ratios.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from typing import Literal

import numpy as np

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.engines import fitted_as
from meshplan.hardware_profiles.errors.asked import Asked, Covered, covered
from meshplan.hardware_profiles.errors.left_out_errors import (
    ALIKE,
    BORROWED,
    ENOUGH,
    Like,
    Spread,
    Vector,
    alike,
    farther_of,
    first_errors,
    is_narrow,
    lent_weights,
    own_weights,
    percentile,
    scaled,
    sources_alike,
)
from meshplan.hardware_profiles.errors.left_out_runs import Ratio, first_step_times, ratios

UNLIKE = 0.3
SPREADS = {"dense": Spread(1.2), "state": Spread(1.2), "experts": Spread(1.65, 1.6)}
SOURCES = 9  # n of which 0.8 (n + 1) are less than all: 0.8 x 10 = 8
NOISE = 0.03
"""Repeats of one layout with many steps differ by 1 to 3 % (docs/accuracy.md)."""

STATE = "state"
BETWEEN_NODES = "experts' all-to-all between nodes"
WIDE = "generic"
"""The engine whose constants are learnt from all others."""

UNKNOWN = 2.0
"""exp(e) of what no run was ever left out of: a CPU's memory, say [assumed]."""

Quantity = Literal["step_time", "reserved"]


@dataclass(frozen=True, slots=True)
class Interval:
    """Factors on a prediction between which 8 of 10 runs lie.

    runs     of the engine on the GPU family that say so
    outside  what of the prediction none of the engine's runs covers
    """

    low: float
    high: float
    runs: int
    outside: tuple[str, ...] = ()

    @property
    def error_fraction(self) -> float:
        """|predicted / measured - 1| at the farther end."""
        return max(abs(1 / self.low - 1), abs(1 / self.high - 1))


def step_time_interval(asked: Asked) -> Interval:
    """Around a step time."""
    return interval(_shipped("step_time", asked.model == STATE), asked)


def reserved_interval(asked: Asked) -> Interval:
    """Around the reserved memory."""
    return interval(_shipped("reserved", asked.model == STATE), asked)


def reserved_range(reserved: float, around: Interval, device: float) -> tuple[float, float]:
    """Between which 8 of 10 runs reserve, in the unit of `reserved` and of what the `device` has:
    no run holds more than that, so the upper end is beyond it only where the prediction is.
    """
    return reserved * around.low, max(reserved, min(reserved * around.high, device))


@dataclass(frozen=True, eq=False)
class Evidence:
    """Left-out runs that state `what`; `between_nodes`: those of them that say nothing of others;
    `times`: all of them, which state their step time; `first`: the ratio of step times of some
    when they were first predicted; `spreads`: how errors lie, by kind of model.
    """

    known: tuple[Ratio, ...]
    what: Quantity
    between_nodes: tuple[Ratio, ...] = ()
    times: "Evidence | None" = None
    first: Mapping[str, float] = field(default_factory=dict)
    spreads: Mapping[str, Spread] = field(default_factory=dict)


def evidence_of(
    left_out: Iterable[Ratio], what: Quantity, first: Mapping[str, float] | None = None
) -> Evidence:
    """The runs among `left_out` that state it, and their `first` ratios of step times."""
    runs = tuple(left_out)
    if what == "step_time":
        apart = tuple(run for run in runs if run.between_nodes)
        known = tuple(run for run in runs if not run.between_nodes)
        return Evidence(known, what, apart, first=first or {}, spreads=SPREADS)
    stated = tuple(run for run in runs if getattr(run, what) is not None)
    return Evidence(stated, what, times=replace(evidence_of(runs, "step_time"), spreads={}))


@cache
def _shipped(what: Quantity, of_states: bool) -> Evidence:
    """Models with a state are a world of their own: no constant was fitted to any of them."""
    left_out = (each for each in ratios() if (each.model == STATE) == of_states)
    return evidence_of(left_out, what, first_step_times())


def interval(evidence: Evidence, asked: Asked) -> Interval:
    """What `evidence` says of one prediction."""
    like = _like(asked, UNLIKE if evidence.what == "step_time" else 1.0)
    own, _ = _counted(evidence, asked.engine, asked.gpu)
    outside = _covered_by(evidence, fitted_as(asked.engine)).outside(asked)
    errors = [_near(evidence, like)]
    if outside:
        errors += [_of_sources(evidence, like)]
        if _covered_by(evidence, ANY_ENGINE).outside(asked):
            errors += [_of_strangers(evidence, like)]
    if asked.between_nodes and evidence.between_nodes:
        errors += [_between_nodes(evidence, like)]
        outside += (BETWEEN_NODES,) * (not _own_of(evidence.between_nodes, asked.engine, asked.gpu))
    skew = evidence.spreads.get(asked.model, ALIKE).skew
    longer, shorter = max(errors) * skew, max(errors) / skew
    low, high = math.exp(-max(shorter, NOISE)), math.exp(max(longer, NOISE))
    return Interval(low, high, len(own), outside)


def _like(asked: Asked, other: float) -> Like:
    return Like(asked.engine, asked.gpu, asked.model, is_narrow(asked.precision), other)


ANY_ENGINE = ""


@cache
def _covered_by(evidence: Evidence, fitted: str) -> Covered:
    """What the runs of one engine, by whose constants it is priced, cover, or those of any."""
    every = (*evidence.known, *evidence.between_nodes)
    return covered(every if fitted == ANY_ENGINE else _of_engine(every, fitted))


@cache
def _near(evidence: Evidence, like: Like) -> float:
    """The 80th percentile of errors of the engine's runs there with the sources that they borrow,
    of these alone where there are none.
    """
    own, sources = _counted(evidence, like.engine, like.gpu)
    return _quantile(evidence, own, sources, like) if own else _of_sources(evidence, like)


@cache
def _of_sources(evidence: Evidence, like: Like) -> float:
    """Of the sources that the engine's runs borrow, alone."""
    _, sources = _counted(evidence, like.engine, like.gpu)
    return _alone(evidence, sources, like, _of_sources)


@cache
def _of_strangers(evidence: Evidence, like: Like) -> float:
    """Of sources whose engine has no constants of its own."""
    return _alone(evidence, _strangers(evidence.known), like, _of_strangers)


def _alone(
    evidence: Evidence, sources: Sequence[Ratio], like: Like,
    same: Callable[[Evidence, Like], float],
) -> float:  # fmt: skip
    """Of `sources`; where they are few no less than the `same` of step times."""
    found = _quantile(evidence, [], sources, like)
    if evidence.times is None or not _is_few(sources):
        return found
    return max(found, same(evidence.times, like))


def _is_few(sources: Iterable[Ratio]) -> bool:
    """Whether so few sources are no interval's: with one farther off the percentile is the farthest
    run of all.
    """
    return len({ratio.suite for ratio in sources}) < SOURCES


@cache
def _counted(evidence: Evidence, engine: str, gpu: str) -> tuple[list[Ratio], list[Ratio]]:
    """Runs of the engine on the GPU family, and the left-out sources that they borrow from."""
    known = evidence.known
    same = _of_engine(known, engine)
    own = _own_of(known, engine, gpu)
    if not any(ratio.left_out == "layout" for ratio in same):
        return own, _strangers(known)
    return own, [ratio for ratio in _whole_sources(known) if _of_fitted_engine(ratio)]


@cache
def _between_nodes(evidence: Evidence, like: Like) -> float:
    """What runs that exchange experts' tokens between nodes say, with what they borrow: the 80th
    percentile of errors, 0 where no run does.
    """
    own = _own_of(evidence.between_nodes, like.engine, like.gpu)
    sources = [ratio for ratio in _whole_sources(evidence.between_nodes) if ratio not in own]
    others = _whole_sources(evidence.known)
    if not own and not sources:
        return 0.0
    weights = np.concatenate([own_weights(own, evidence.what), sources_alike(sources)])
    lent = scaled(sources_alike(others), max(BORROWED, ENOUGH - float(weights.sum())))
    runs = (*own, *sources, *others)
    return _percentile(evidence, runs, np.concatenate([weights, lent]), like.model)


def _own_of(known: Sequence[Ratio], engine: str, gpu: str) -> list[Ratio]:
    """Runs of the engine on the GPU family."""
    same = _of_engine(known, engine)
    return [ratio for ratio in same if (ratio.engine, ratio.gpu) == (engine, gpu)]


def _whole_sources(known: Iterable[Ratio]) -> list[Ratio]:
    """Sources that were left out as a whole."""
    return [ratio for ratio in known if ratio.left_out != "layout"]


def _of_engine(known: Sequence[Ratio], engine: str) -> list[Ratio]:
    """Runs of the engine; what was left out with its engine says nothing of its constants."""
    constants = fitted_as(engine)
    same = [ratio for ratio in known if fitted_as(ratio.engine) == constants]
    fitted = any(ratio.left_out == "layout" for ratio in same)
    return [ratio for ratio in same if ratio.left_out != "framework"] if fitted else same


def _strangers(known: Sequence[Ratio]) -> list[Ratio]:
    """Left-out sources whose engine has no constants of its own."""
    return [ratio for ratio in _whole_sources(known) if not _of_fitted_engine(ratio)]


def _of_fitted_engine(ratio: Ratio) -> bool:
    """Whether constants of the engine's own, learnt elsewhere, predicted this left-out source."""
    return ratio.left_out == "source" and ratio.engine != WIDE


def _quantile(
    evidence: Evidence, own: Sequence[Ratio], sources: Sequence[Ratio], like: Like
) -> float:
    """The weighted 80th percentile of errors, the run that is asked about counted as one that is
    farther off than all, but for few sources alone of what step times tell beside them; `UNKNOWN`
    of nothing.
    """
    runs = [*own, *sources]
    if not runs:
        return math.log(UNKNOWN)
    few = evidence.times is not None and not own and _is_few(sources)
    near = own_weights(own, evidence.what) * alike(own, like)
    lent = lent_weights(sources, like, float(near.sum()))
    weights = np.concatenate([near, lent])
    return _percentile(evidence, runs, weights, like.model, farther=not few)


def _percentile(
    evidence: Evidence, runs: Sequence[Ratio], weights: Vector, model: str, *, farther: bool = True
) -> float:
    """Of the runs' first errors, as far as this kind of model has them."""
    errors = first_errors(runs, evidence.what, evidence.first, evidence.spreads)
    return percentile(errors * farther_of(runs, model, evidence.spreads), weights, farther=farther)
