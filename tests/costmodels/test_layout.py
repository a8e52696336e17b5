"""Rules that a layout must obey, whoever runs it."""

from dataclasses import replace

import pytest

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage, check_layout
from meshplan.costmodels.model.transformer import Attention, Experts, Layer, Model
from meshplan.costmodels.training import Training

ATTENTION = Attention(heads=4, kv_heads=4, head_dim=8, v_head_dim=8)
MODEL = Model(
    name="m", hidden=32, vocab=64, kinds=(Layer(attention=ATTENTION, ffn=64),), pattern=(0,) * 4
)
TRAINING = Training(seq_len=32, global_batch_size=8)


def layout(*layers: int) -> Layout:
    """A pipeline of these stages."""
    return Layout(pipeline_parallel=len(layers), stages=tuple(map(Stage, layers)))


def test_a_middle_stage_holds_a_layer() -> None:
    """The first stage may hold the embedding alone and the last the head; no other may be empty."""
    check_layout(layout(0, 2, 2, 0), MODEL, TRAINING)
    with pytest.raises(InvalidLayout, match="stage 1 of 3 is empty"):
        check_layout(layout(2, 0, 2), MODEL, TRAINING)


@pytest.mark.parametrize("of_images", [0, 1])
@pytest.mark.parametrize(("ffn", "etp", "legal"), [(96, 3, True), (64, 2, True), (64, 3, False)])
def test_expert_tensor_parallel_divides_the_experts_ffn(
    ffn: int, etp: int, legal: bool, of_images: int
) -> None:
    """64 columns are no three equal parts, be they of text's experts or of images'."""
    experts = Experts(experts=4, top_k=2, ffn=ffn)
    if of_images:
        experts = replace(experts, ffn=96 * etp, of_images=ffn)
    attention = replace(ATTENTION, heads=6, kv_heads=6)
    model = replace(MODEL, kinds=(Layer(attention=attention, experts=experts),))
    cut = replace(layout(4), tensor_parallel=6, expert_tensor_parallel=etp)
    if legal:
        check_layout(cut, model, TRAINING)
    else:
        with pytest.raises(InvalidLayout, match=f"experts' ffn {ffn} does not divide by .* {etp}"):
            check_layout(cut, model, TRAINING)
