"""What is said of what a model trains with beside its layers."""

import pytest

from meshplan.costmodels.training import Images, Training
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.planner.answer.models import read_model
from meshplan.planner.case.trained import not_priced


@pytest.mark.parametrize(
    ("name", "images", "said"),
    [
        ("qwen3-vl-8b", None, ["the vision tower is not priced"]),
        ("qwen3-vl-8b", Images(tokens=1024), []),
        ("llama-3.1-8b", None, []),
    ],
)
def test_a_tower_is_priced_with_images_alone(
    name: str, images: Images | None, said: list[str]
) -> None:
    """Without images it is left out, which is said."""
    training = Training(seq_len=4096, global_batch_size=8, images=images)
    assert list(not_priced(load_model_config(name), read_model(name)[1], training)) == said
