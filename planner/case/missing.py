"""What a config leaves out, or states and nobody understands, where a price needs it."""

from meshplan.planner.case.reading import Fact

_SHOWN = 6  # things that are not understood, of one file
FLAGS = {
    "cluster": "--cluster",
    "gpus": "--gpus",
    "model": "--model",
    "seq_len": "--seq-len",
    "global_batch_size": "--global-batch",
    "micro_batch_size": "--micro-batch",
    "pipeline_parallel": "--pp",
    "packed_mean_length": "--packed-mean-length",
    "vocab_size": "--vocab-size",
}


EXAMPLES = {
    "cluster": "dgx-h100", "gpus": "64", "model": "llama-3.1-8b", "seq_len": "4096",
    "global_batch_size": "512", "micro_batch_size": "1", "pipeline_parallel": "4",
    "packed_mean_length": "512", "vocab_size": "128256",
}  # fmt: skip
"""What stands behind an option in a message that shows how to say it."""


class MissingFacts(ValueError):
    """A config that leaves out what a price needs, with no flag or settings file to say it, or
    that states something which is not understood (`unread`) and which changes the price.
    """

    def __init__(
        self, names: tuple[str, ...], unread: tuple[Fact, ...] = (), unknown_model: str = ""
    ) -> None:
        said = [_unread_text(unread)] if unread else []
        if unknown_model and "model" in names:
            said.append(f"{unknown_model} is not in the catalogue (--model takes a config.json)")
        super().__init__("; ".join([*said, self._missing(names)] if names else said))
        self.names = names
        self.line = unread[0].line if unread else 1

    @staticmethod
    def _missing(names: tuple[str, ...]) -> str:
        given = " ".join(f"{FLAGS[name]} {EXAMPLES[name]}" for name in names if name in FLAGS)
        keys = ", ".join(names)
        by = f"give {given} (examples) or set" if given else "set"
        return f"missing: {keys}; {by} {keys} in meshplan.toml or [tool.meshplan]"


def _unread_text(unread: tuple[Fact, ...]) -> str:
    """`not understood: NAME (why), NAME (why) and 3 more`, each reason once."""
    shown = ", ".join(str(fact.value) for fact in unread[:_SHOWN])
    more = f" and {len(unread) - _SHOWN} more" if len(unread) > _SHOWN else ""
    return f"not understood: {shown}{more}"
