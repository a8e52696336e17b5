"""How engines cut layers into stages when nobody says, against their own published layouts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.stage_split import (
    split_blocks,
    split_by_cost,
    split_evenly,
    stages_with,
)
from meshplan.hardware_profiles.load_models import load_model_config


def model_of(name: str) -> Model:
    return model_from_config(load_model_config(name), name)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        pytest.param("ultrascale-1b", 11, id="1B: 11 of 16 layers"),
        pytest.param("ultrascale-8b", 18, id="8B: 18 of 32 layers"),
        pytest.param("ultrascale-70b", 41, id="70B: 41 of 80 layers"),
    ],
)
def test_nanotron_gives_the_first_stage_more(name: str, first: int):
    """Published: the playbook's first of two stages, the head weighing on the second."""
    model = model_of(name)
    assert split_by_cost(model, 2) == (first, model.num_layers - first)


@pytest.mark.parametrize(
    ("stages", "older", "newer"),
    [
        pytest.param(2, (11, 5), (10, 6), id="16 layers + a head of 4: shares of 10"),
        pytest.param(4, (6, 5, 5, 0), (5, 5, 5, 1), id="shares of 5"),
    ],
)
def test_a_stage_ends_at_its_share_or_beyond(
    stages: int, older: tuple[int, ...], newer: tuple[int, ...]
):
    """A layer of the 1B costs 4 x 2048^2 + 3 x 2048 x 8192 = 67.1e6, its head 2048 x 131072, four
    times that. Published: rank 0 of four stages on 64 GPUs keeps 6.86 GiB before the change and
    6.18 after, a layer's 10 + 12 / 16 bytes a parameter less: 0.67.
    """
    model = model_of("ultrascale-1b")
    assert split_by_cost(model, stages) == older
    assert split_by_cost(model, stages, ends_at_share=True) == newer


def test_megatron_counts_the_ends_as_layers():
    """Llama 3.1 405B (2407.21783): 126 layers, embedding and head are 16 x 8."""
    assert split_evenly(126, 16, ends_count=True) == (7, *(8,) * 14, 7)


@pytest.mark.parametrize(
    ("layers", "stages", "ends_count", "expected"),
    [
        pytest.param(32, 4, True, (8, 8, 8, 8), id="what divides is even"),
        pytest.param(10, 4, False, (2, 3, 3, 2), id="the rest to the middle"),
        pytest.param(5, 1, True, (5,), id="one stage"),
    ],
)
def test_split_evenly_by_hand(layers: int, stages: int, ends_count: bool, expected):
    """Layers over stages, away from embedding and head."""
    assert split_evenly(layers, stages, ends_count=ends_count) == expected


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        pytest.param(40, 2, (21, 19), id="43 = 22 + 21 blocks"),
        pytest.param(40, 4, (10, 11, 11, 8), id="43 = 11 11 11 10"),
        pytest.param(60, 8, (7, *(8,) * 6, 5), id="63 = 7 x 8 + 7"),
        pytest.param(4, 7, (0, 1, 1, 1, 1, 0, 0), id="ends on stages of their own"),
    ],
)
def test_blocks_at_the_ends_count_as_layers(layers: int, stages: int, expected: tuple[int, ...]):
    """By hand, of one block before the layers (embedding) and two behind (norm, head)."""
    assert split_blocks(layers, stages, (1, 2)) == expected


@given(st.integers(1, 200), st.integers(1, 64), st.integers(0, 3), st.integers(0, 3))
def test_blocks_are_cut_evenly(layers: int, stages: int, before: int, behind: int):
    """No layer is lost; layers as many as blocks are longer first, which blocks at the ends shorten
    and nothing else.
    """
    plain = split_blocks(before + layers + behind, stages, (0, 0))
    assert list(plain) == sorted(plain, reverse=True)
    assert plain[0] - plain[-1] <= 1
    counts = split_blocks(layers, stages, (before, behind))
    assert (len(counts), sum(counts)) == (stages, layers)
    gone = [whole - left for whole, left in zip(plain, counts, strict=True)]
    assert min(gone) >= 0
    assert sum(gone) == before + behind


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        pytest.param(4, (16, 16, 16, 13), id="(61 + 3) / 4 = 16, 16 - 3"),
        pytest.param(8, (*(8,) * 7, 5), id="(61 + 3) / 8 = 8, 8 - 3"),
        pytest.param(16, (*(4,) * 15, 1), id="(61 + 3) / 16 = 4, 4 - 3"),
        pytest.param(32, (*(2,) * 30, 1, 0), id="(61 + 3) / 32 = 2: module before the heads"),
    ],
)
def test_a_module_counts_at_the_end(stages: int, expected: tuple[int, ...]):
    """DeepSeek-V3: 61 layers as Megatron-Bridge lays them out with MTP, 4 to 16 stages."""
    assert split_evenly(61, stages, ends_count=True, mtp_layers=1) == expected


@given(
    layers=st.integers(1, 200), stages=st.integers(1, 32), ends_count=st.booleans(),
    modules=st.integers(0, 2),
)  # fmt: skip
def test_no_layer_is_lost(layers: int, stages: int, ends_count: bool, modules: int):
    """Stages hold all layers between them, as alike as the ends allow."""
    counts = split_evenly(layers, stages, ends_count=ends_count, mtp_layers=modules)
    assert sum(counts) == layers
    assert len(counts) == stages
    assert min(counts) >= 0
    if not modules:
        assert max(counts) - min(counts) <= (2 if ends_count else 1)


@given(stages=st.integers(1, 16))
def test_cost_split_loses_no_layer(stages: int):
    """Every layer has one stage under nanotron's rule too."""
    model = model_of("ultrascale-8b")
    assert sum(split_by_cost(model, stages)) == model.num_layers


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_stages_recompute_alike(recompute: str):
    """All layers of all stages, or none."""
    for stage in stages_with((3, 0, 5), recompute):
        assert stage.selective_layers == (stage.layers if recompute == "selective" else 0)
        assert stage.full_layers == (stage.layers if recompute == "full" else 0)
