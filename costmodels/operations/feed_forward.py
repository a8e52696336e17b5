"""The dense feed-forward of a layer on one rank, and the communication around the matmuls.

    t      tokens of a micro-batch on this rank
    h      hidden
    f      feed-forward columns on this rank
    size   2 t h, the bytes of the gathered activation that tensor parallel communicates

Each half of a layer enters its matmuls once and leaves them once. With sequence parallel that is an
all-gather and a reduce-scatter forward and, backward, a reduce-scatter, an all-gather, and a second
all-gather of the input for the weight gradient (Korthikanti et al. 2022, section 4.2.2); without
it, one all-reduce per direction, written here as the reduce-scatter and all-gather that it is made
of.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from meshplan.costmodels.elementwise import Condition, Number, where
from meshplan.costmodels.layout import CONTEXT_KINDS, DISPATCHERS
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.operations.kinds import (
    Communication,
    Matmul,
    Module,
    Operation,
    Pointwise,
)
from meshplan.costmodels.operations.rank_share import Shard, is_kind
from meshplan.costmodels.operations.remade import remade
from meshplan.hardware_profiles.dataclass import dataclass
from meshplan.hardware_profiles.kernel_habits import ContextKind, KernelHabits

GELU_OPERATORS = 10  # of Megatron-LM's and transformers', forward (`KernelHabits.own_gelu`)


ENTERING_EACH = ("columns", "sequence")
"""Plans of `KernelHabits.dtensor` in which no gather is shared."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where operations are listed for: the model, one rank's share of it, the engine's kernels.

    itemsize  bytes of one number of an activation or weight: 2, in fp32 training 4
    cp_ranks_per_node, ep_ranks_per_node
              ranks of a group of context parallelism, and of experts, that are on one node
    experts_alone
              of products those of routed experts alone have the training's format, where it has 8
              bits or fewer
    """

    model: Model
    shard: Shard
    kernels: KernelHabits
    itemsize: float = 2.0
    cp_ranks_per_node: Number = 1.0
    ep_ranks_per_node: Number = 1.0
    experts_alone: bool = False

    @property
    def bytes_per_logit(self) -> Number:
        """Bytes for each logit at the loss's peak; fp32 training works in place on one copy."""
        if self.itemsize != 2.0:
            return self.itemsize
        whole = self.kernels.logits_bytes
        return where(self.shard.tp > 1, self.kernels.cut_logits_bytes or whole, whole)

    @property
    def entering_casts(self) -> tuple[Number, Number]:
        """`Matmul.cast_shares` of a layer whose input is gathered."""
        return self._own_share, 1.0

    @property
    def leaving_casts(self) -> tuple[Number, Number]:
        """The same of a layer whose output's gradient is gathered."""
        return 1.0, self._own_share

    @property
    def _own_share(self) -> Number:
        shard = self.shard
        return shard.tokens_outside / shard.tokens if self.kernels.gathers_cast else 1.0

    def meets_keys_by(self, kind: ContextKind) -> Condition:
        """Whether context-parallel ranks meet all keys by `kind`."""
        index, usual = CONTEXT_KINDS.index(kind), self.kernels.context == kind
        return is_kind(self.shard.context_kind, index, usual=usual)

    @property
    def sends_single_copies(self) -> Condition:
        """Whether a token is sent once to each node and rank, and not once to each expert."""
        every, usual = DISPATCHERS.index("all_to_all"), self.kernels.dispatch == "all_to_all"
        return np.logical_not(is_kind(self.shard.dispatcher, every, usual=usual))

    @property
    def gathers_routing(self) -> Condition:
        """Whether HybridEP brings tokens to experts (`operations.routing_maps`)."""
        index, usual = DISPATCHERS.index("hybridep"), self.kernels.dispatch == "hybridep"
        return is_kind(self.shard.dispatcher, index, usual=usual)

    def joined(self, weights: int) -> int:
        """`Matmul.joined` of a product of so many weights."""
        return 1 if self.kernels.adapts_joined else weights

    @property
    def stream_bytes(self) -> Number:
        """One tensor of the residual stream on this rank: 2 h of each token outside the matmuls."""
        return self.itemsize * self.shard.tokens_outside * self.model.hidden

    @property
    def gathered_bytes(self) -> Number:
        """The input of the matmuls, gathered over the tensor-parallel ranks: 2 t h."""
        return self.itemsize * self.shard.tokens * self.model.hidden


def dense_feed_forward(site: Site, f: Number, module: Module = "mlp") -> Iterator[Operation]:
    """Up (and gate), activation, down, for `f` columns on this rank."""
    t, h, up = site.shard.tokens, site.model.hidden, 2 if site.model.gated else 1
    yield Matmul(
        name="up", m=t, n=up * f, k=h, saved_bytes=site.itemsize * t * up * f,
        modules=("linear", module), cast_shares=site.entering_casts, joined=site.joined(up),
        apart=(f, f) if up == 2 else (),
    )  # fmt: skip
    yield remade(site.kernels, activation(site, t * f, module))
    yield Matmul(
        name="down", m=t, n=h, k=f, modules=("linear", module), cast_shares=site.leaving_casts
    )


def activation(
    site: Site, elements: Number, module: Module, *, weighed: bool = False, clamped: bool = False
) -> Pointwise:
    """SwiGLU (reads gate and up) or GELU over `elements` outputs.

    weighed  each row times its router's weight, in the same kernel
    clamped  gate and up, which lie in turns, are clamped first (gpt-oss)
    """
    if clamped and not site.kernels.fused_gated:
        return _clamped_apart(site, elements, module)
    inputs = 2 if site.model.gated else 1
    fused = site.kernels.fused_gated
    extra = 0 if fused or not site.model.gated else 1  # silu(gate) is its own tensor
    moved: tuple[float, ...] = (inputs + 1 + 2 * extra, 2 * inputs + 1 + 3 * extra)
    kernels = 3 if extra else 1
    if not site.model.gated and site.kernels.own_gelu:
        moved, kernels = site.kernels.own_gelu, GELU_OPERATORS
    own = own_operators(site, kernels)
    name = "weighed_swiglu" if weighed else "swiglu"
    return Pointwise(
        name="activation",
        forward_bytes=site.itemsize * elements * moved[0],
        backward_bytes=site.itemsize * elements * moved[1],
        kernels=kernels,
        issued_share=1.0 - own / kernels,
        operators=(own, own),
        measured_as=(name, f"{name}_backward") if site.model.gated else ("silu", "silu"),
        saved_bytes=site.itemsize * elements * (1 + extra),
        modules=(module, "pointwise"),
    )


def own_operators(site: Site, kernels: int, modules: int = 1) -> int:
    """Of so many kernels of so many modules, those that the host issues as PyTorch's own operators:
    where even norms are made of them, all but one a module, whose call is the engine's launch.
    """
    return 0 if site.kernels.fused_norm else kernels - modules


def _clamped_apart(site: Site, elements: Number, module: Module) -> Pointwise:
    """gpt-oss' activation by PyTorch's own kernels, in numbers of 16 bits read and written; every
    second number of a row takes the read of both. Two clamps 3 each, scale 2, sigmoid 2, product 3,
    addcmul 4; backward the gradients of addcmul 3 + 3 and their sum 3, of the product 3 + 3,
    sigmoid 3, scale 2, sum 3, two clamps 4 each, two halves into zeros 5 each, their sum 6. Kept
    are both clamped halves, the sigmoid, its product and the output (pytorch/torchtitan@b5bcd76
    torchtitan/models/gpt_oss/moe.py swiglu; counted, not measured).
    """
    return Pointwise(
        name="activation", forward_bytes=17 * site.itemsize * elements,
        backward_bytes=47 * site.itemsize * elements, kernels=6,
        saved_bytes=5 * site.itemsize * elements, modules=(module, "pointwise"),
    )  # fmt: skip


def gather_tokens(site: Site, name: str, module: Module = "linear") -> Communication:
    """Into the matmuls: all-gather with sequence parallel, else nothing forward, all-reduce
    backward.
    """
    return _tensor_communication(site, name, module, entering=True)


def gather_attention(site: Site, products: int) -> Communication:
    """The same before attention, where so many products read it."""
    apart = site.kernels.reduces_each == "all"
    return entering_each(site, gather_tokens(site, "attention_input"), products, apart=apart)


def gather_feed_forward(site: Site) -> Communication:
    """The same before the feed-forward, whose gate and up may be products apart."""
    found = gather_tokens(site, "feed_forward_input", "mlp")
    if not site.model.gated:
        return found
    return entering_each(site, found, 2, apart=site.kernels.reduces_each != "")


def entering_each(site: Site, found: Communication, products: int, *, apart: bool) -> Communication:
    """Under DTensor's ColwiseParallel alone each product enters for itself: it gathers its input,
    keeps it, and sends its gradient. Of a layer without sequence parallel torch 2.13's
    CommDebugMode counts two collectives forward and five backward, with it seven forward
    (`benchmarks.engine.dtensor_host`). Elsewhere gradients alone may be sent `apart`.
    """
    if site.kernels.dtensor not in ENTERING_EACH:
        each = where(site.shard.sequence_parallel > 0, 1, products) if apart else 1
        return replace(found, backward_count=found.backward_count * each)
    return replace(
        found,
        forward_count=found.forward_count * products,
        backward_count=found.backward_count * products,
        regathers=found.regathers * products,
        saved_bytes=found.saved_bytes * where(site.shard.sequence_parallel > 0, products, 1),
    )


def scatter_tokens(site: Site, name: str, module: Module = "linear") -> Communication:
    """Out of the matmuls: reduce-scatter with sequence parallel, else all-reduce."""
    return _tensor_communication(site, name, module, entering=False)


def _tensor_communication(
    site: Site, name: str, module: Module, *, entering: bool
) -> Communication:
    sharded, keeps = site.shard.sequence_parallel > 0, site.kernels.saves_gathered
    size = site.gathered_bytes
    kept = where(site.shard.tp > 1, size, 0.0) if entering and keeps else 0.0
    # with sequence parallel, entering gathers its input again for the weight gradient, unless kept
    gather = 0.5 if site.kernels.gathers_cast else 1.0
    regathers = gather if entering and not keeps else 0.0
    backward_sharded = (1.0 + regathers) if entering else gather
    return Communication(
        name=name,
        axis="tp",
        kind="all_gather" if entering else "reduce_scatter",
        size_bytes=size,
        forward_count=where(sharded, gather if entering else 1.0, 0.0 if entering else 2.0),
        backward_count=where(sharded, backward_sharded, 2.0 if entering else 0.0),
        regathers=where(sharded, regathers, 0.0),
        hidden_by="linear",
        modules=(module,),
        saved_bytes=kept,
        scattered_bytes=0.0 if entering else where(sharded, site.stream_bytes, 0.0),
    )
