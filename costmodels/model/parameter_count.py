"""Parameters of a layer or a model, apart by what they do."""

from dataclasses import fields

from meshplan.costmodels.elementwise import Adds
from meshplan.hardware_profiles.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount(Adds):
    """Parameters by what they do; the parts never overlap and `total` is all of them."""

    embedding: int = 0
    head: int = 0
    attention: int = 0
    recurrent: int = 0
    dense_ffn: int = 0
    routed_experts: int = 0
    shared_experts: int = 0
    router: int = 0
    norms: int = 0
    traced: int = 0
    mtp: int = 0

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return sum(getattr(self, f.name) for f in fields(self))

    @property
    def without_mtp(self) -> int:
        """What published totals count: everything but the multi-token-prediction modules."""
        return self.total - self.mtp
