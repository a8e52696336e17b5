"""Questions whose gradients take longer than backwards hide."""

from dataclasses import replace

from meshplan.planner.search.rows.priced_space import Question


def with_slow_collectives(question: Question, times: float) -> Question:
    """On a cluster whose collectives but for exchanges of tokens take so much longer."""
    own = question.cluster.network.bus_bandwidth
    names = "all_reduce", "reduce_scatter", "all_gather"
    slower = own.model_copy(update={name: getattr(own, name) / times for name in names})
    links = {
        name: getattr(question.cluster, name).model_copy(update={"bus_bandwidth": slower})
        for name in ("node", "network")
    }
    return replace(question, cluster=question.cluster.model_copy(update=links))
