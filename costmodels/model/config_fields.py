"""Reading the fields of a model description by type, with one clear line for whatever is wrong."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from meshplan.hardware_profiles.dataclass import dataclass

MAX_LAYERS = 10_000
MAX_COUNT = 2**31 - 1
MAX_NUMBER = 1e15


class UnsupportedModel(ValueError):
    """A model that cannot be priced, or a description that does not say enough to price it."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one model description; `name` opens every message.

    Each reader takes the names that different families give to one field.
    A field that is null counts as absent, a flag that is null as false. `asked` collects the names
    of the fields that were asked for: what is left was not understood.
    """

    config: Mapping[str, object]
    name: str
    asked: set[str] = field(default_factory=set, compare=False, repr=False)

    def changed(self, fields: Mapping[str, object]) -> "Fields":
        """The same description but for `fields`."""
        return replace(self, config={**self.config, **fields}) if fields else self

    def renamed(self, names: Mapping[str, str]) -> "Fields":
        """The same description, whose fields of these older names have their newer ones."""
        self.asked.update(names)
        known = {names.get(key, key): value for key, value in self.config.items()}
        return replace(self, config=known)

    def refuse(self, reason: str) -> UnsupportedModel:
        """The error to raise when this model cannot be priced because of `reason`."""
        return UnsupportedModel(f"{self.name}: {reason}")

    def present(self, *keys: str) -> tuple[str, object] | None:
        """The first of `keys` that the description has, with its value."""
        self.asked.update(keys)
        for key in keys:
            value = self.config.get(key)
            if value is not None:
                return key, value
        return None

    def states(self, *keys: str) -> bool:
        """Whether the description has any of `keys`, be it null."""
        return any(key in self.config for key in keys)

    def count(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`; `default` when absent, if there is one.

        A description may give it under several of the names, but only one value.
        """
        found = {key: self._whole(key, least) for key in keys if self.present(key)}
        self.asked.update(keys)
        if not found:
            if default is None:
                raise self.refuse(f"the field {' or '.join(map(repr, keys))} is missing")
            return default
        (first, value), *others = found.items()
        for key, other in others:
            if other != value:
                raise self.refuse(f"{key} is {other}, but by its other name {first} {value}")
        return value

    def _whole(self, key: str, least: int) -> int:
        value = self.config[key]
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]  # the same for each layer (Hunyuan)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.refuse(f"{key} is {shown(value)}, not a whole number")
        if not least <= value <= MAX_COUNT:
            raise self.refuse(f"{key} is {shown(value)}, not between {least} and {MAX_COUNT}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false; `default` when absent, false when null, as Python's code reads it."""
        found = self.present(key)
        if found is None:
            return default and not self.states(key)
        if not isinstance(found[1], bool):
            raise self.refuse(f"{key} is {shown(found[1])}, not true or false")
        return found[1]

    def either(self, *keys: str, default: bool) -> bool:
        """The first of several names of one flag that the description has."""
        found = self.present(*keys)
        return self.flag(found[0], default) if found else default and not self.states(*keys)

    def whole(self, key: str, default: int) -> int:
        """A whole number of any sign; `default` when absent."""
        found = self.present(key)
        if found is None:
            return default
        if type(found[1]) is not int or abs(found[1]) > MAX_COUNT:
            raise self.refuse(f"{key} is {shown(found[1])}, not a whole number")
        return found[1]

    def number(self, *keys: str) -> float | None:
        """A number of at least 0, None when absent."""
        found = self.present(*keys)
        if found is None:
            return None
        key, value = found
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(f"{key} is {shown(value)}, not a number")
        if not 0 <= value <= MAX_NUMBER:  # a NaN is not in between either
            raise self.refuse(f"{key} is {shown(value)}, not between 0 and {MAX_NUMBER:g}")
        return float(value)

    def _of_kind(self, keys: Sequence[str], fits: Callable[[Any], bool], kind: str) -> Any:
        """The first of `keys` that the description has, None when absent; it must be a `kind`."""
        found = self.present(*keys)
        if found is not None and not fits(found[1]):
            raise self.refuse(f"{found[0]} is {shown(found[1])}, not {kind}")
        return found and found[1]

    def word(self, *keys: str) -> str | None:
        """A text, None when absent."""
        value: str | None = self._of_kind(keys, lambda v: isinstance(v, str), "a word")
        return value

    def _list(self, key: str, of: type, kind: str) -> tuple[Any, ...] | None:
        value = self._of_kind(
            [key], lambda v: isinstance(v, list) and all(type(each) is of for each in v), kind
        )
        return None if value is None else tuple(value)

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of words, None when absent."""
        return self._list(key, str, "a list of words")

    def counts(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers, None when absent."""
        return self._list(key, int, "a list of whole numbers")

    def section(self, key: str) -> "Fields | None":
        """A nested object, None when absent."""
        value = self._of_kind([key], lambda v: isinstance(v, dict), "an object")
        return None if value is None else Fields(value, self.name)

    def sections(self, key: str) -> tuple["Fields", ...]:
        """A list of nested objects; empty when absent."""
        values = self._list(key, dict, "a list of objects") or ()
        return tuple(Fields(each, self.name) for each in values)

    @property
    def hidden(self) -> int:
        """The width of the residual stream (`n_embd` GPT-2, `d_model` MPT, `n_embed` BLOOM)."""
        return self.count("hidden_size", "n_embd", "d_model", "n_embed", "embedding_dim")

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.count(
            "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"
        )

    @property
    def num_layers(self) -> int:
        """Layers of the stack, at most `MAX_LAYERS`."""
        layers = self.count("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks")
        if layers > MAX_LAYERS:
            raise self.refuse(f"{layers} layers; at most {MAX_LAYERS} are priced")
        return layers

    def each_layers(self, key: str) -> tuple[int, ...]:
        """A whole number for each layer, or one for all of them."""
        if not isinstance(self.config.get(key), list):
            return (self.count(key),) * self.num_layers
        numbers = self.counts(key) or ()
        if len(numbers) != self.num_layers or min(numbers) < 1 or max(numbers) > MAX_COUNT:
            raise self.refuse(f"{key} is not a list of {self.num_layers} layers' whole numbers")
        return numbers

    def divide(self, whole: int, parts: int, what: str) -> int:
        """`whole` / `parts`, which must come out even."""
        if whole % parts:
            raise self.refuse(f"{what}: {whole} does not divide by {parts}")
        return whole // parts


def names(text: str) -> frozenset[str]:
    """The words of a text, which names many fields or types in few lines."""
    return frozenset(text.split())


def shown(value: object) -> str:
    """`value` as a message shows it: one line, never long."""
    if isinstance(value, dict) and value.keys() == {"__float__"}:  # as transformers 5 writes it
        value = value["__float__"]
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'section'} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
