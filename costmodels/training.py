"""What the user wants trained, layout apart: sequence, batch, number formats, optimizer."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from meshplan.hardware_profiles.dataclass import dataclass

Precision = Literal["fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "mxfp8_experts"]
Optimizer = Literal["adamw", "adamw8bit", "muon", "sgd"]
OptimizerStates = Literal["fp32", "bf16"]
LoraTargets = Literal["qkv", "attention", "all_linear", "qv", "attention_but_key", "all_but_key"]
_WITHOUT_KEY: dict[LoraTargets, LoraTargets] = {
    "qv": "qkv", "attention_but_key": "attention", "all_but_key": "all_linear",
}  # fmt: skip
BasePrecision = Literal["bf16", "int8", "nf4"]


MOST_SEQ_LEN, MOST_SEQUENCES = 2**27, 2**30
MOST_IMBALANCE = 1024  # the busiest experts cannot hold more than all tokens
MOST_RANK = 2**14


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapters are trained, and every other weight is frozen (LoRA, 2106.09685).

    rank            r: beside a frozen k x n weight, A of k x r and B of r x n
    targets         what has adapters: "qkv", query, key and value; "attention", all projections of
                    what mixes tokens; "all_linear", those and dense feed-forwards and shared
                    experts. "qv", "attention_but_key" and "all_but_key" are these without the key
                    where it has a weight and an adapter of its own (not in a latent, nor where
                    one adapter is beside all three). The embedding, the head, the router and routed
                    experts have none
    dropout         the probability with which an adapter's input is dropped before A; any above 0
                    costs the same: a copy and a mask of each adapted input
    base_precision  what the frozen weights of linear layers are kept in: "bf16", as without
                    adapters; "nf4" and "int8", quantised (QLoRA, 2305.14314)
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    rank: Annotated[int, Field(gt=0, le=MOST_RANK)]
    targets: LoraTargets = "all_linear"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    base_precision: BasePrecision = "bf16"

    @property
    def with_key(self) -> LoraTargets:
        """The targets, and the key among them."""
        return _WITHOUT_KEY.get(self.targets, self.targets)

    @property
    def but_key(self) -> bool:
        """Whether the key is left out."""
        return self.targets in _WITHOUT_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """What of a sequence comes from images, or from sound, through the model's tower.

    tokens   of each sequence, as the language model counts them
    number   images that they come from, equally large ones; None: what one image gives where the
             tower says it, else one image
    frozen   the tower is not trained; its joiner is
    sense    which tower
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    tokens: Annotated[int, Field(gt=0, le=MOST_SEQ_LEN)]
    number: Annotated[int, Field(gt=0, le=MOST_SEQ_LEN)] | None = None
    frozen: bool = False
    sense: Literal["vision", "audio"] = "vision"

    def number_of(self, tokens_each: int) -> int:
        """Images of a sequence, where each gives `tokens_each` (0: it depends on its size)."""
        return self.number or (max(self.tokens // tokens_each, 1) if tokens_each else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training job.

    seq_len            tokens of a sequence
    global_batch_size  sequences per optimizer step
    precision          the format of the matmuls' inputs; attention, norms and the head stay 16 bit
                       under fp8; "mxfp8_experts": of those of routed experts alone
    optimizer          what state it keeps is said in `memory`
    optimizer_states   "bf16": AdamW on 16-bit weights themselves, with 16-bit gradients, moments
                       of 16 bits (8 under adamw8bit) and no fp32 copy; "fp32": the copy and
                       moments in 32 bits; None: as the engine does
    expert_imbalance   tokens of the busiest expert group over the mean (1 = balanced or forced
                       balance)
    packed_mean_length
                       tokens of the documents that a sequence is packed of, each attending to
                       itself alone, all as long as each other: of uneven ones attention's work, the
                       sum of their squares, is more; None: a sequence is one document
    lora               what is trained beside frozen weights, None: all weights are trained
    images             what of a sequence comes from images, None: nothing, and a tower of the model
                       has no part in the training
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # as `Layout`, it is read from plan files

    seq_len: Annotated[int, Field(gt=0, le=MOST_SEQ_LEN)]
    global_batch_size: Annotated[int, Field(gt=0, le=MOST_SEQUENCES)]
    precision: Precision = "bf16"
    optimizer: Optimizer = "adamw"
    expert_imbalance: Annotated[float, Field(ge=1, le=MOST_IMBALANCE)] = 1.0
    optimizer_states: OptimizerStates | None = None
    packed_mean_length: Annotated[int, Field(gt=0, le=MOST_SEQ_LEN)] | None = None
    lora: Lora | None = None
    images: Images | None = None

    @property
    def document_len(self) -> int:
        """Tokens that attend to each other."""
        return min(self.packed_mean_length or self.seq_len, self.seq_len)

    @property
    def global_batch_tokens(self) -> int:
        """Tokens per optimizer step."""
        return self.seq_len * self.global_batch_size
