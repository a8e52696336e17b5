"""Each figure and setting of a question moved down and up: which of them moves the step most.

    swing = (longest - shortest of: moved down, as planned, moved up) / seconds of the plan

seconds  of as many tokens as a step of the plan has, so that a longer batch is no slower for being
         longer; of the plan that is proved anew for each moved question
batch    moved to the nearest multiple of the plan's replicas x micro-batch, so that what is seen is
         its size and not how it divides; `sequence` to a multiple of 256 x context-parallel ranks
"""

from collections.abc import Iterator

from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.answer.question import Asked
from meshplan.planner.case.plan_file import Plan
from meshplan.planner.whatif.asking import Answers, Asking, ask_each, beside_file
from meshplan.planner.whatif.changes import Change
from meshplan.planner.whatif.figures import FIGURES, fastest_matmul, matters

SEQUENCE_UNIT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One figure or setting, moved down and up."""

    name: str
    words: str
    down: Asking
    up: Asking

    def moved(self, tokens: int, before_s: float) -> tuple[float | None, float | None]:
        """By which fraction each end changes the seconds; None where it has no plan."""
        ends = (each.same_tokens_s(tokens) for each in (self.down, self.up))
        low, high = (None if s is None else s / before_s - 1 for s in ends)
        return low, high

    def swing(self, tokens: int, before_s: float) -> float:
        """How far apart the seconds are, the plan's own among them; infinite where one end has no
        plan.
        """
        low, high = self.moved(tokens, before_s)
        if low is None or high is None:
            return float("inf")
        return max(low, high, 0.0) - min(low, high, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tornado:
    """The plan's question as it is, and the arms, the longest first.

    unseen  figures that a plan of this question cannot see: the network of a single node
    """

    by: float
    before: Asking
    arms: tuple[Arm, ...]
    unseen: tuple[str, ...]

    @property
    def askings(self) -> tuple[Asking, ...]:
        """All questions, the plan's own first."""
        return (self.before, *(end for arm in self.arms for end in (arm.down, arm.up)))


def tornado(asked: Asked, plan: Plan, by: float, answers: Answers) -> Tornado:
    """Every figure and setting moved by the fraction `by`."""
    moves = list(_moves(asked, plan, by))
    flat = [Change(), *(change for _, _, pair in moves for change in pair)]
    before, *found = ask_each(asked, flat, answers)
    ends = iter(found)
    arms = [Arm(name=name, words=words, down=next(ends), up=next(ends)) for name, words, _ in moves]
    step_s = before.step_time_s
    if step_s is not None:
        arms.sort(key=lambda arm: -arm.swing(before.tokens, step_s))
    seen = {arm.name for arm in arms}
    unseen = tuple(figure.words for name, figure in FIGURES.items() if name not in seen)
    return Tornado(by=by, before=beside_file(before, plan), arms=tuple(arms), unseen=unseen)


def _moves(asked: Asked, plan: Plan, by: float) -> Iterator[tuple[str, str, tuple[Change, Change]]]:
    """Name, words, and the changes down and up."""
    q = asked.question
    offloads = bool({"optimizer_offload", "activation_offload"} & set(q.pins.axes))
    for name, figure in FIGURES.items():
        if matters(name, q.cluster, q.gpus, offloads=offloads):
            up = 1 + by
            if name == "matmul" and q.cluster.kernels and not q.cluster.kernels.is_measured:
                up = min(up, fastest_matmul(q.cluster))
            ends = (Change(factors={name: 1 - by}), Change(factors={name: up}))
            yield name, figure.words, ends
    la, training = plan.layout, q.training
    unit = la.data_parallel * la.micro_batch_size
    if batches := around(training.global_batch_size, by, unit):
        low, high = (Change(global_batch_size=end) for end in batches)
        yield "global_batch_size", "sequences of a step", (low, high)
    if lengths := around(training.seq_len, by, SEQUENCE_UNIT * la.context_parallel):
        low, high = (Change(seq_len=end) for end in lengths)
        yield "seq_len", "tokens of a sequence", (low, high)


def around(value: int, by: float, unit: int) -> tuple[int, int] | None:
    """The multiples of `unit` nearest to so much less and more; None where none is less."""
    low = min(round(value * (1 - by) / unit) * unit, value - unit)
    high = max(round(value * (1 + by) / unit) * unit, value + unit)
    return (low, high) if low > 0 else None


def factor_of(change: Change, before: Asked) -> float:
    """The factor by which a change of one thing really moves it."""
    training = before.question.training
    if change.factors:
        (factor,) = change.factors.values()
        return factor
    if change.seq_len is not None:
        return change.seq_len / training.seq_len
    assert change.global_batch_size is not None
    return change.global_batch_size / training.global_batch_size
