"""How Megatron-LM and Megatron-Bridge say what brings tokens to experts and queries to keys.

    context_kind  cp_comm_type p2p, all_gather, a2a, a2a+p2p; of the last also
                  hierarchical_context_parallel_sizes: ranks of a node, nodes
    dispatcher    moe_token_dispatcher_type alltoall, or flex with
                  moe_flex_dispatcher_backend deepep (its default), hybridep
    exposed       gradients without overlap_grad_reduce, weights without overlap_param_gather

Of what is not said here the engine's own habit is priced: kinds that differ by layer, and
allgather.

Source: NVIDIA/Megatron-LM@d2c5e8b4 `megatron/core/transformer/transformer_config.py`.
"""

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.seconds.process_groups import axis_stride
from meshplan.executor.frameworks.documents.values import Values, put
from meshplan.executor.frameworks.export_notes import Answer
from meshplan.hardware_profiles.engine_schema import Dispatcher
from meshplan.hardware_profiles.kernel_habits import ContextKind
from meshplan.planner.case.reading import CannotSay, Fact
from meshplan.planner.case.resolve import engine_named

KINDS: dict[str, ContextKind] = {
    "p2p": "ring",
    "all_gather": "all_gather",
    "a2a": "all_to_all",
    "a2a+p2p": "hierarchical",
}
BACKENDS: dict[str, Dispatcher] = {"deepep": "deepep", "hybridep": "hybridep"}


def exchange_settings(answer: Answer) -> dict[str, object]:
    """The settings of the kinds that the layout states."""
    return _context_settings(answer) | _dispatch_settings(answer.layout)


def _context_settings(answer: Answer) -> dict[str, object]:
    la = answer.layout
    if la.context_parallel == 1 or not la.context_kind:
        return {}
    theirs = {ours: name for name, ours in KINDS.items()}[la.context_kind]
    if la.context_kind != "hierarchical":
        return {"cp_comm_type": theirs}
    order = engine_named("megatron").legality.rank_order
    stride = float(axis_stride(la, "cp", order))
    on_node = min(la.context_parallel, max(1, int(answer.gpus_per_node // stride)))
    sizes = [str(on_node), str(la.context_parallel // on_node)]
    return {"cp_comm_type": theirs, "hierarchical_context_parallel_sizes": sizes}


def _dispatch_settings(la: Layout) -> dict[str, object]:
    if la.expert_parallel == 1 or not la.dispatcher:
        return {}
    if la.dispatcher == "all_to_all":
        return {"moe_token_dispatcher_type": "alltoall"}
    return {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": la.dispatcher}


def exchange_facts(values: Values, facts: dict[str, Fact]) -> list[str]:
    """Adds the kinds that a configuration states to `facts`; notes for what is taken as usual."""
    notes = _context_facts(values, facts)
    if facts.get("expert_parallel", Fact(1, 1)).value > 1:
        put(facts, dispatcher=_dispatcher(values))
    return notes


def _context_facts(values: Values, facts: dict[str, Fact]) -> list[str]:
    stated = values.found.get("cp_comm_type")
    if stated is None or facts.get("context_parallel", Fact(1, 1)).value == 1:
        return []
    words = stated.value if isinstance(stated.value, list) else [stated.value]
    kinds = {str(word) for word in words}
    if len(kinds) != 1 or not kinds <= set(KINDS):
        return []  # judged with the flags that nobody read
    kind = KINDS[kinds.pop()]
    values.asked.add("cp_comm_type")
    put(facts, context_kind=Fact(kind, stated.line))
    sizes = values.found.get("hierarchical_context_parallel_sizes")
    if kind != "hierarchical" or sizes is None:
        return []
    values.asked.add("hierarchical_context_parallel_sizes")
    return [f"line {sizes.line}: levels of context parallelism are priced as a node's ranks, nodes"]


def _dispatcher(values: Values) -> Fact | None:
    kind = values.found.get("moe_token_dispatcher_type")
    older = values.found.get("moe_enable_deepep")
    word = str(kind.value) if kind else ""
    if kind is None or word not in ("alltoall", "flex"):
        return None
    backend = values.found.get("moe_flex_dispatcher_backend")
    library = str(backend.value) if backend and backend.value is not None else "deepep"
    if word == "flex" and library not in BACKENDS:
        return None
    read = {"moe_token_dispatcher_type", "moe_flex_dispatcher_backend"} & values.found.keys()
    values.asked.update(read | ({"moe_enable_deepep"} if older else set()))
    return Fact("all_to_all" if word == "alltoall" else BACKENDS[library], kind.line)


def dispatch_unsaid(engine: str, answer: Answer) -> list[CannotSay]:
    """Experts that were priced with a dispatcher that Megatron does not bring along, where the
    layout leaves it open.
    """
    la, dispatch = answer.layout, engine_named(engine).kernels.dispatch
    if la.dispatcher or la.expert_parallel == 1 or dispatch == "all_to_all":
        return []
    why = (
        "priced as DeepEP dispatches; alltoall is written, which needs nothing installed. "
        "With DeepEP: --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep"
    )
    return [CannotSay("dispatch", dispatch, why)]


def exposed(values: Values, *, usual: bool) -> tuple[str, ...]:
    """What replicas exchange beside nothing; `usual`: whether it is hidden where none is named."""
    if values.on("use_torch_fsdp2"):  # which prefetches whatever the switches say
        return ()
    said = (values.flag("overlap_grad_reduce"), values.flag("overlap_param_gather"))
    reduced, gathered = (usual if fact is None else bool(fact.value) for fact in said)
    return ("data_reduce",) * (not reduced) + ("weight_gather",) * (not gathered)
