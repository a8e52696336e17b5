"""The GPUs that a job's document asks for: those of each container, times its replicas.

    resources: {limits: {nvidia.com/gpu: 8}}  a container's (Kubernetes, "Schedule GPUs")
    resourcesPerNode, numNodes                Kubeflow Trainer's TrainJob
    replicas, parallelism                     of Kubeflow's replica specs, Volcano's tasks, a Job's
                                              pods: as often all that stands below
    numProcPerNode, nprocPerNode              Kubeflow's processes of a node, one for each GPU that
                                              is used, whatever a container has
    leaderWorkerTemplate.size                 not read: no number is known then

Not known where a number is not plain (a template's `{{ ... }}`), or two documents ask for GPUs.
"""

import re
from collections.abc import Iterator

import yaml

from meshplan.planner.case.reading import Fact

_CARDS = ("nvidia.com/gpu", "amd.com/gpu")
_TIMES = ("replicas", "parallelism", "numNodes")
_PROCESSES = ("numProcPerNode", "nprocPerNode")
_OF_CARDS = ("auto", "gpu")  # as many processes as a container has GPUs
_ASKS = ("resources", "resourcesPerNode")
_NOT_COUNTED = ("initContainers", "leaderWorkerTemplate")
_NUMBER = re.compile(r"[0-9]{1,5}")
_MOST = 100_000  # nodes looked at


def gpus_of_job(documents: list[yaml.Node | None]) -> Fact | None:
    """All GPUs, at the line of the first container that asks for some; 0 where some are asked for
    and their number is not known, None where none are.
    """
    asked = [[*_asked(document)] for document in documents if document is not None]
    of_one = [facts for facts in asked if facts]
    if not of_one:
        return None
    counts = [count for count, _ in of_one[0]]
    known = [count for count in counts if count is not None]
    is_known = len(of_one) == 1 and len(known) == len(counts)
    return Fact(sum(known) if is_known else 0, min(line for _, line in of_one[0]))


def _asked(document: yaml.Node) -> Iterator[tuple[int | None, int]]:
    """Of each container that asks for GPUs: how many all its replicas have, and the line."""
    pending: list[tuple[yaml.Node, int | None, yaml.Node | None]] = [(document, 1, None)]
    looked_at = 0
    while pending and (looked_at := looked_at + 1) <= _MOST:
        node, times, processes = pending.pop()
        if isinstance(node, yaml.SequenceNode):
            pending += [(each, times, processes) for each in node.value]
        elif isinstance(node, yaml.MappingNode):
            named = {str(key.value): value for key, value in node.value}
            for name in _TIMES:
                times = _product(times, named.get(name))
            processes = next((named[name] for name in _PROCESSES if name in named), processes)
            for name, value in named.items():
                if name in _ASKS:
                    yield from _of_resources(value, times, processes)
                elif name == "leaderWorkerTemplate":
                    yield None, value.start_mark.line + 1
                elif name not in _NOT_COUNTED:
                    pending.append((value, times, processes))


def _of_resources(
    node: yaml.Node, times: int | None, processes: yaml.Node | None
) -> Iterator[tuple[int | None, int]]:
    """What a container's `resources` ask for: its limits, which are its requests too for GPUs; of
    them as many as there are `processes`.
    """
    of_cards = processes is None or str(processes.value) in _OF_CARDS
    if not isinstance(node, yaml.MappingNode):
        return
    named = {str(key.value): value for key, value in node.value}
    stated = named.get("limits") or named.get("requests")
    if isinstance(stated, yaml.MappingNode):
        for key, value in stated.value:
            if str(key.value) in _CARDS:
                yield _product(times, value if of_cards else processes), key.start_mark.line + 1


def _product(times: int | None, node: yaml.Node | None) -> int | None:
    """`times` the number of `node`, where it is there; None where one of them is no plain one."""
    if node is None or times is None:
        return times
    text = str(node.value) if isinstance(node, yaml.ScalarNode) else ""
    return times * int(text) if _NUMBER.fullmatch(text) else None
