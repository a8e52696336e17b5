"""Chains through two ranks: all that rank r does, and what rank s has left to do after that.

A rank that runs slowly late in the pipeline sends the last micro-batch up late, and one further up
then still has weight gradients and a reduction to do. One chunk per rank, F, I, W the passes of a
stage (I + W its backward), h the hop, f(s) the forwards that s has begun before its first backward:
for s <= r there is the chain

    F of micro-batch 0 down to the last rank              sum F + (S-1) h
    its I up to r                                         sum over j >= r of I_j + (S-1-r) h
    all that r does until its last I is done              (m-1) I_r + (m-f(r)) F_r + n(r) W_r
    that micro-batch's I up to s                          sum over s <= j < r of I_j + (r-s) h
    the W that s has left, and what it reduces            (m-n(s)) W_s + reduction of s

where f = min(m, S-s) (1f1b, zb_h1) or 1 (gpipe), and n(s) of the W precede the last I: m-1, or in
zb_h1, which leaves s of them for later, max(0, m-1-s); where W belongs to the backward, W_j comes
to I_j on the way up and (m-n) W_s is nothing. So it lasts

    fixed + sum over j of way_j + (turns_r + ends_s - sum over j < s of up_j)

with way = F + I, up = I + h, and a label that knows the largest of `ends_s - sum up` so far knows
all pairs. For r = s it is the chain of one rank (`planner.bounds.simulated`). Cuts of layers that
are coarse, one or two on a rank, are within 2 % of the longest of these chains (Qwen3-VL 235B on 64
ranks in zb_h1), where each chain that a simulation ends with holds for its own pair alone.
"""

from typing import NamedTuple

import numpy as np

from meshplan.costmodels.layout import Schedule
from meshplan.costmodels.layouts import Floats, Ints


class Relay(NamedTuple):
    """[stage] what each step adds to all of these chains, as above."""

    way: list[Floats]
    up: list[Floats]
    turns: list[Floats]
    ends: list[Floats]
    fixed_s: float

    @classmethod
    def of(
        cls, schedule: Schedule, m: int, passes: list[Floats], reduce: list[Floats], hop_s: float
    ) -> "Relay":
        """By stage [step, 3] F, I and W, what is waited for included, and [step] reductions."""
        pp, split = len(passes), schedule == "zb_h1"
        found = cls([], [], [], [], 2 * (pp - 1) * hop_s)
        for stage, (each, reduced) in enumerate(zip(passes, reduce, strict=True)):
            forward, input_grad, weight_grad = each.T
            begun = 1 if schedule == "gpipe" else min(m, pp - stage)
            before = max(0, m - 1 - stage) if split else m - 1
            back = input_grad if split else input_grad + weight_grad
            turns = (m - begun) * forward + (m - 1) * back
            found.way.append(forward + back)
            found.up.append(back + hop_s)
            found.turns.append(turns + before * weight_grad if split else turns)
            found.ends.append(reduced + (m - before) * weight_grad if split else reduced)
        return found

    @classmethod
    def nothing(cls, steps: list[int]) -> "Relay":
        """Of stages with so many steps."""
        none = [np.zeros(each) for each in steps]
        return cls(none, none, none, none, 0.0)


class Relayed(NamedTuple):
    """Of labels: what the way took so far, the ways up of its stages, the largest `ends - up` of
    one stage, and of two stages with `turns` too.
    """

    way: Floats
    up: Floats
    ends: Floats
    longest: Floats

    @classmethod
    def start(cls, fixed_s: float) -> "Relayed":
        """Of one label without a stage."""
        none, never = np.zeros(1), np.full(1, -np.inf)
        return cls(none + fixed_s, none, never, never)

    def take(self, some: Ints | slice) -> "Relayed":
        """Some of the labels."""
        return Relayed(*(each[some] for each in self))

    def onward(self, relay: Relay, stage: int, step: Ints) -> "Relayed":
        """Each label one step further."""
        ends = np.maximum(self.ends, relay.ends[stage][step] - self.up)
        longest = np.maximum(self.longest, ends + relay.turns[stage][step])
        way, up = self.way + relay.way[stage][step], self.up + relay.up[stage][step]
        return Relayed(way, up, ends, longest)

    def bound_s(self, way_s: Floats, turns_s: Floats) -> Floats:
        """Of all ways that begin so, of which the rest takes `way_s` at least and holds a step with
        so many `turns_s` at least.
        """
        bound: Floats = self.way + way_s + np.maximum(self.longest, self.ends + turns_s)
        return bound

    def costs(self) -> list[Floats]:
        """What is nowhere larger of a label that no way makes longer than another one."""
        return [self.way + self.longest, self.way + self.ends, self.way - self.up]
