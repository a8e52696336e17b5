"""The families that are read, each a few lines over the vocabulary of `family.Family`.

Each line is read from the family's `configuration_<model_type>.py` and `modeling_<model_type>.py`
in huggingface/transformers 5.24 (`models/<model_type>/`); `python -m benchmarks.models.families`
counts the parameters of its default configuration there and here.
"""

from dataclasses import replace

from meshplan.costmodels.model.class_defaults import class_defaults
from meshplan.costmodels.model.families.dense import DENSE
from meshplan.costmodels.model.families.experts import EXPERTS
from meshplan.costmodels.model.families.gpt import GPT_LIKE
from meshplan.costmodels.model.families.latent import LATENT
from meshplan.costmodels.model.families.recurrent import RECURRENT
from meshplan.costmodels.model.families.remote import REMOTE
from meshplan.costmodels.model.family import Family

FAMILIES: dict[str, Family] = {
    name: replace(family, defaults=(*family.defaults, *class_defaults(name)))
    for name, family in (DENSE | GPT_LIKE | LATENT | EXPERTS | RECURRENT | REMOTE).items()
}
for _whole in (
    "llama4",
    "gemma3",
    "qwen2_vl",
    "qwen2_5_vl",
    "minimax_m3_vl",
):  # older files state the text part flat
    FAMILIES[_whole] = FAMILIES[f"{_whole}_text"]
FAMILIES["step3p7"] = FAMILIES["step3p5"]
FAMILIES["minimax_m3"] = FAMILIES["minimax_m3_vl_text"]
for _whole in ("inkling_mm_model", "inkling_model"):  # as the released files call it
    FAMILIES[_whole] = FAMILIES["inkling_text"]
FAMILIES["step3_vl"] = FAMILIES["step3_text"]  # whose text part names no type
