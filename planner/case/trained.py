"""What a step trains, where that is not every weight: how much of the model, and in words."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.hf_config import QUANTIZATION, left_out
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.ranks.first_stage import tower_parameters_per_rank
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Lora, LoraTargets, Training
from meshplan.costmodels.units import format_count
from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.tunings import Tuning

TARGET_WORDS: dict[LoraTargets, str] = {
    "qkv": "query, key and value", "attention": "attention's projections",
    "all_linear": "all linear layers", "qv": "query and value",
    "attention_but_key": "attention's projections but the key's",
    "all_but_key": "all linear layers but the key's",
}  # fmt: skip
BASE_WORDS = {
    "bf16": "frozen weights not quantised",
    "int8": "frozen linear layers in int8, unpacked before each product (priced as the bytes that "
    "move)",
    "nf4": "frozen linear layers in nf4 with double quantisation, unpacked before each product "
    "(priced as the bytes that move)",
}


def optimizer_words(training: Training) -> str:
    """The optimizer, and its states where they are not what the engine usually keeps."""
    states = training.optimizer_states
    return f"{training.optimizer} with {states} states" if states else training.optimizer


def packed_words(training: Training) -> str:
    """How a sequence is packed, "" where it is one document."""
    mean = training.packed_mean_length
    return f", packed of documents of {mean:,}, each attending to itself" if mean else ""


def image_words(training: Training) -> str:
    """What of a sequence comes from images or sound, "" where nothing does."""
    images = training.images
    if images is None:
        return ""
    number = f", for {images.number} images" if images.number else ""
    tower = f"{'a frozen' if images.frozen else 'the'} {images.sense} tower"
    return f", {images.tokens:,} of each sequence's tokens from {tower}{number}"


class Job(Protocol):
    """A question, a case or a setting: what is trained, where, and by what."""

    @property
    def model(self) -> Model: ...
    @property
    def training(self) -> Training: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def engine(self) -> Engine: ...


def not_priced(config: Mapping[str, Any], model: Model, training: Training) -> Iterator[str]:
    """The parts of a model's configuration that no price holds, such as a tower, in words."""
    tower = model.tower.words if model.tower and training.images else None
    for part in left_out(config):
        if part != tower and not part.startswith(QUANTIZATION):
            yield f"the {part} is not priced"


def trained_parameters(job: Job) -> int:
    """Parameters of the whole model that a step updates."""
    if job.training.lora is None:
        tower = tower_parameters_per_rank(_setting(job), 1.0)
        return model_parameters(job.model).total + round(float(tower.dense))
    alone = Layout(stages=even_stages(job.model.num_layers, 1))
    return round(float(StepModel(_setting(job), alone).rank_parameters[0].dense))


def whole_parameters(job: Job) -> int:
    """Parameters of the model, its tower among them where images are trained on."""
    tower = tower_parameters_per_rank(_setting(job), 1.0)
    return model_parameters(job.model).without_mtp + round(float(tower.dense + tower.frozen))


def _setting(job: Job) -> Setting:
    return Setting(job.model, job.training, job.cluster, job.engine, Tuning())


def trained_line(job: Job) -> str:
    """What is trained, "" where every weight is."""
    lora = job.training.lora
    if lora is None:
        return ""
    trained, whole = trained_parameters(job), whole_parameters(job)
    share = f"{format_count(trained)} of {format_count(whole)} parameters, {trained / whole:.2%}"
    but = " but routed experts" if job.model.is_moe and lora.with_key == "all_linear" else ""
    return f"trained: {lora_words(lora)}{but} ({share}); {BASE_WORDS[lora.base_precision]}"


def lora_words(lora: Lora) -> str:
    """The adapters."""
    dropout = f" with dropout {lora.dropout:g}" if lora.dropout else ""
    return f"LoRA of rank {lora.rank}{dropout} on {TARGET_WORDS[lora.targets]}"
