"""How many GPUs a file of NeMo or Megatron-Bridge states."""

from meshplan.executor.frameworks.documents.values import Values
from meshplan.planner.case.reading import Fact


def gpus_of_file(values: Values, *, nemo: bool) -> Fact | None:
    """GPUs; of NeMo only where the file states the nodes, which its launcher else says."""
    each, nodes = _devices(values), values.count("num_nodes")
    if each is None or (nodes is None and nemo):
        return None
    return Fact(each.value * (nodes.value if nodes else 1), each.line)


def _devices(values: Values) -> Fact | None:
    """The GPUs of a node: a number, or a list of their indices; none for -1, all that it has
    (Lightning-AI/pytorch-lightning src/lightning/fabric/utilities/device_parser.py).
    """
    names = ("devices", "num_gpus_per_node")
    stated = values.get(*names)
    if stated is not None and isinstance(stated.value, list) and stated.value:
        return Fact(len(stated.value), stated.line)
    count = values.count(*names, least=-1)
    return count if count and count.value > 0 else None
