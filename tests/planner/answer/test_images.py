"""Images in a question: what is asked, refused, written into the plan and read again."""

import json
from pathlib import Path

import pytest
from called import run

from meshplan.costmodels.layout import InvalidLayout
from meshplan.costmodels.training import Images
from meshplan.executor.frameworks.export_notes import training_unsaid
from meshplan.planner.answer.question import Arguments, Asked, BadQuestion, ask
from meshplan.planner.case.plan_file import Plan, read_plan
from meshplan.planner.case.trained import trained_parameters, whole_parameters

VISION, JOINER, TEXT = 576_388_336, 160_496_896, 8_190_735_360
"""Parameters of Qwen3-VL-8B's tower with its joiners; of these 4 x (4608 x 4608 + 4608 x 4096 +
8704) + 2 x 1152 + 3 x 2 x 4608; and of its language model."""


def asked(model: str = "qwen3-vl-8b", engine: str = "megatron-bridge", **said: object) -> Asked:
    """A question of 16 H100."""
    return ask(Arguments(
        model=model, gpus=16, cluster="dgx-h100", seq_len="8192", global_batch=64, engine=engine,
        **said,  # type: ignore[arg-type]
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"images": 2}, "--images is for a vision or audio tower; add --image-tokens"),
        ({"frozen": "vision"}, "--frozen is for a vision or audio tower"),
        ({"audio_tokens": "1k"}, "its tower takes --image-tokens only"),
        ({"image_tokens": "1k", "audio_tokens": "1k"}, "takes --image-tokens only"),
        ({"image_tokens": "many"}, "--image-tokens 'many' is not a number of tokens"),
        ({"image_tokens": "1k", "frozen": "text"}, "--frozen 'text' is not known"),
        ({"image_tokens": "1k", "frozen": "audio"}, "--frozen audio: .* has the vision tower"),
        (
            {"image_tokens": "1k", "model": "llama-3.1-8b"},
            "its configuration has no vision or audio tower",
        ),
        ({"image_tokens": "512m"}, "--image-tokens 536870912 is not between"),
    ],
)
def test_what_cannot_be_asked_is_one_line(said: dict[str, str], words: str) -> None:
    """The value, the rule and a fix."""
    with pytest.raises(BadQuestion, match=words) as refused:
        asked(**said)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("engine", ["native", "torchtitan", "nanotron", "llm-foundry", "mlperf"])
def test_an_engine_without_a_known_place_is_refused_by_name(engine: str) -> None:
    """Never priced as if it had one."""
    with pytest.raises(InvalidLayout, match="places a vision tower is not known"):
        asked(engine=engine, image_tokens="1024")


def test_what_is_trained_is_counted() -> None:
    """Text alone, all of it, all but the tower, adapters alone; without images the tower is named
    as not priced.
    """
    text, whole = asked(), asked(image_tokens="1024")
    frozen = asked(image_tokens="1024", frozen="vision")
    assert any("the vision tower is not priced; --image-tokens" in note for note in text.notes)
    assert not any("not priced" in note for note in whole.notes)
    assert trained_parameters(text.question) == whole_parameters(text.question) == TEXT
    assert trained_parameters(whole.question) == whole_parameters(whole.question) == TEXT + VISION
    assert trained_parameters(frozen.question) == TEXT + JOINER
    assert whole_parameters(frozen.question) == TEXT + VISION
    lora = asked(image_tokens="1024", lora_rank=8).question
    assert trained_parameters(lora) == trained_parameters(asked(lora_rank=8).question)


TOWERS = Path(__file__).parents[2] / "costmodels" / "model" / "tower_configs.json"


def test_sound_is_priced_as_images_are(tmp_path: Path) -> None:
    """Voxtral: a clip of 30 seconds is 375 tokens; where the engine shards any module alone."""
    entry = json.loads(TOWERS.read_text())["voxtral"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(entry["config"]))
    text, heard = (
        asked(model=str(path), engine="automodel", **said) for said in ({}, {"audio_tokens": "750"})
    )
    assert any("the audio tower is not priced; --audio-tokens 375" in note for note in text.notes)
    assert not any("not priced" in note for note in heard.notes)
    assert heard.question.training.images == Images(tokens=750, sense="audio")
    assert whole_parameters(heard.question) == entry["parameters"]
    with pytest.raises(
        InvalidLayout, match=r"clip tokens 400: 1 clips of .* give 375 tokens each; use 375"
    ):
        asked(model=str(path), engine="automodel", audio_tokens="400")
    with pytest.raises(InvalidLayout, match="places an audio tower is not known"):
        asked(model=str(path), audio_tokens="375")
    with pytest.raises(BadQuestion, match="takes --audio-tokens only"):
        asked(model=str(path), engine="automodel", image_tokens="375")


def test_a_plan_with_images_is_written_read_and_checked(tmp_path: Path) -> None:
    """The plan file holds what was asked; `check` prices it so, an export says what it lacks."""
    path = tmp_path / "plan.yaml"
    said = run(
        "plan", "qwen3-vl-8b", "--gpus", "16", "--cluster", "dgx-h100", "--seq-len", "8192",
        "--global-batch", "64", "--image-tokens", "2048", "--images", "4", "--frozen", "vision",
        "--top", "1", "-o", str(path),
    )  # fmt: skip
    assert said.exit_code == 0, said.output
    words = "2,048 of each sequence's tokens from a frozen vision tower, for 4 images"
    assert words in " ".join(said.stdout.split())
    plan = read_plan(path)
    assert plan.training.images == Images(tokens=2048, number=4, frozen=True)
    assert Plan.from_yaml(plan.to_yaml()) == plan
    checked = run("check", str(path))
    assert checked.exit_code == 0, checked.output
    assert [each.name for each in training_unsaid(plan.training)] == ["training.images"]
