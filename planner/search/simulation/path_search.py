"""One layout of one chunk per rank that may be cut anywhere: the likeliest cut is simulated, and
its longest chain says which is the likeliest then (`planner.cuts.path_cuts`).
"""

from collections.abc import Callable

from meshplan.costmodels.layout import Stage
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.planner.cuts import budget as costs
from meshplan.planner.cuts.known_chains import KnownChains, Shape, actions_of
from meshplan.planner.cuts.path_cuts import PathCuts
from meshplan.planner.search.found import SETTLED
from meshplan.planner.search.simulation.open_layouts import Open

MOST_CUTS = 200


@dataclass(frozen=True, slots=True)
class PathSearch:
    """The cuts of one layout; `judged` is the whole simulation of one, infinite where it does not
    fit, and `no_mix_fits` says whether that holds whatever it recomputes. What is done is charged
    to `tally`, and chains are learnt for layouts of the same `shape`.
    """

    cuts: PathCuts
    shape: Shape
    chains: KnownChains
    tally: costs.Tally
    judged: Callable[[tuple[Stage, ...]], float]
    no_mix_fits: Callable[[tuple[Stage, ...]], bool]

    def settled(self, layout: Open, limit_s: Callable[[], float], most_passes: int) -> list[Open]:
        """Simulate what may be below the limit, which may fall meanwhile; the layout, with the
        bounds of what stays open.
        """
        cuts, left, seen = self.cuts, list[Open](), set[tuple[Stage, ...]]()
        several = len(layout.variant.modes) > 1
        for known in self.chains.of(self.shape):
            cuts.know(known)
        bound_s = layout.bound_s
        while True:
            below_s = limit_s()
            least_s, stages, work = cuts.least(below_s, most_passes, self.tally.left)
            self.tally.left -= work
            bound_s = max(bound_s, least_s)
            if bound_s >= below_s:
                return left
            if stages is None or self.tally.ended or len(seen) >= MOST_CUTS:
                return [*left, layout._replace(bound_s=bound_s)]
            self.tally.left -= costs.LOOKED_AT
            self.tally.spend(self.shape)
            step_s, again = cuts.times.step_s(stages), stages in seen
            found_s = self.judged(stages) if step_s < below_s else step_s
            slower = found_s > step_s / SETTLED
            if slower and several and not self.no_mix_fits(stages):
                left.append(layout._replace(bound_s=step_s))  # a slower mix may fit
            if again or slower or not self._learnt(stages):
                cuts.forbid(stages)
            seen.add(stages)

    def _learnt(self, stages: tuple[Stage, ...]) -> bool:
        """Whether the longest chain of a cut is known now: of a short step."""
        actions = actions_of(self.shape)
        if actions > costs.MOST_CHAINED:
            return False
        self.tally.left -= costs.CHAINED * actions
        self.chains.keep(self.shape, self.cuts.learn(stages))
        return True
