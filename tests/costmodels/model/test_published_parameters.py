"""Parameter counts of the catalogue against published figures, each with its source.

`tests/data/published_parameters.csv` has one row per model:

    published                what the source prints; its last digit is the tolerance
    outside                  parameters in that figure that the model leaves out, said in `source`
    counts                   "all", or "without embeddings"
    active                   parameters per token as published, mixture-of-experts models only
    active_counts_embedding  whether that figure includes the embedding
"""

import csv
from decimal import Decimal
from pathlib import Path

import pytest

from meshplan.costmodels.model.bare_shape import model_from_shape
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import active_parameters, model_parameters
from meshplan.costmodels.model.towers.parameters import tower_parameters
from meshplan.hardware_profiles.load_models import load_model_config, model_names

PUBLISHED = Path(__file__).parents[2] / "data" / "published_parameters.csv"
ROWS = list(csv.DictReader(PUBLISHED.read_text(encoding="utf-8").splitlines()))
MODELS = {name: model_from_config(load_model_config(name), name) for name in model_names()}


def last_digit(text: str) -> float:
    """One unit of the last digit that `text` prints: 1e7 for "29.95e9", 1 for a whole count."""
    exponent = Decimal(text).as_tuple().exponent
    assert isinstance(exponent, int)
    return 10.0**exponent


@pytest.mark.parametrize("row", ROWS, ids=[row["model"] for row in ROWS])
def test_published_total(row: dict[str, str]) -> None:
    """A model has the published number of parameters, to the last digit that the source prints."""
    count = model_parameters(MODELS[row["model"]])
    tower = MODELS[row["model"]].tower
    ours = count.without_mtp + int(row["outside"]) + (tower_parameters(tower) if tower else 0)
    if row["counts"] == "without embeddings":
        ours -= count.embedding + count.head
    published = float(row["published"])
    print(f"{row['model']}: {ours:,} for {row['published']}: {ours / published - 1:+.4%}")
    assert abs(ours - published) < last_digit(row["published"])


MOE_ROWS = [row for row in ROWS if row["active"]]


@pytest.mark.parametrize("row", MOE_ROWS, ids=[row["model"] for row in MOE_ROWS])
def test_published_active(row: dict[str, str]) -> None:
    """A token visits the published number of parameters, to the last digit that is printed."""
    count = active_parameters(MODELS[row["model"]])
    ours = count.without_mtp
    if row["active_counts_embedding"] == "no":
        ours -= count.embedding
    print(f"{row['model']}: {ours:,} for {row['active']}: {ours / float(row['active']) - 1:+.2%}")
    assert abs(ours - float(row["active"])) < last_digit(row["active"])


def test_every_catalogue_model_has_a_published_total() -> None:
    """No model is in the catalogue unchecked; the three made for this project have 5 to 20 M."""
    made_here = {"tiny-llama", "tiny-moe", "tiny-mla"}
    assert set(MODELS) - made_here == {row["model"] for row in ROWS}
    for name in made_here:
        assert 5e6 < model_parameters(MODELS[name]).total < 20e6


def test_every_moe_model_has_a_published_active_count() -> None:
    """Total alone does not check top_k, so each routed model has an active figure too."""
    routed = {name for name, model in MODELS.items() if model.is_moe}
    assert routed - {"tiny-moe", "tiny-mla"} == {row["model"] for row in MOE_ROWS}


def test_deepseek_v3_checkpoint() -> None:
    """Main model, MTP module and its two vocabulary copies are the tensors of the checkpoint.

    Source: safetensors summary of deepseek-ai/DeepSeek-V3, BF16 3918786560 + FP8 680571043840; the
    router's correction biases (one per expert in 59 layers) are stored in FP32 beside the scales.
    """
    model = MODELS["deepseek-v3"]
    count = model_parameters(model)
    copies = count.embedding + count.head
    correction_biases = 59 * 256
    assert count.total + copies - correction_biases == 3_918_786_560 + 680_571_043_840


def test_deepseek_v3_split() -> None:
    """Embedding and head have 0.9e9 each, the MTP module 11.5e9 besides its projection.

    Source: README_WEIGHTS.md of deepseek-ai/DeepSeek-V3.
    """
    count = model_parameters(MODELS["deepseek-v3"])
    assert count.embedding == count.head == pytest.approx(0.9e9, rel=0.05)
    assert count.mtp - 2 * 7168**2 == pytest.approx(11.5e9, rel=0.001)


@pytest.mark.parametrize(
    ("name", "feed_forward", "attention_total", "vocabulary"),
    [("gpt-oss-120b", 114.71e9, 0.96e9, 1.16e9), ("gpt-oss-20b", 19.12e9, 0.64e9, 1.16e9)],
)
def test_gpt_oss_split(
    name: str, feed_forward: float, attention_total: float, vocabulary: float
) -> None:
    """Experts, attention and vocabulary are those of table 1 of the gpt-oss model card."""
    count = model_parameters(MODELS[name])
    assert abs(count.routed_experts + count.router - feed_forward) < 0.01e9
    assert abs(count.attention - attention_total) < 0.01e9
    assert abs(count.embedding + count.head - vocabulary) < 0.01e9


@pytest.mark.parametrize(
    ("label", "layers", "hidden", "heads", "billions"),
    [
        ("22B", 48, 6144, 64, 22),
        ("175B", 96, 12288, 96, 175),
        ("530B", 105, 20480, 128, 530),
        ("1T", 128, 25600, 160, 1000),
    ],
)
def test_korthikanti_sizes(label: str, layers: int, hidden: int, heads: int, billions: int) -> None:
    """A GPT block has 12 h^2 + 13 h parameters, and the four models have the sizes of their names.

    Source: formula, Narayanan et al. 2021, arXiv 2104.04473 equation 2; models, Korthikanti et al.
    2022, arXiv 2205.05198 table 3 (vocabulary 51200, sequence 2048).
    """
    shape = {"layers": layers, "hidden": hidden, "heads": heads, "ffn": 4 * hidden}
    model = model_from_shape(shape | {"vocab": 51200, "seq_len": 2048, "gated": False}, label)
    final_norm = 2 * hidden
    expected = layers * (12 * hidden**2 + 13 * hidden) + (51200 + 2048) * hidden + final_norm
    assert model_parameters(model).total == expected
    assert expected == pytest.approx(billions * 1e9, rel=0.01)
