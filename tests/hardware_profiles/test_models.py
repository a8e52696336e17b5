"""The catalogue of models: names, files, folders, and what is said when there is none."""

import json
import math
from pathlib import Path

import pytest

from meshplan.hardware_profiles.load_models import (
    MAX_CONFIG_BYTES,
    UnknownModel,
    finite_config,
    load_model_config,
    model_names,
)


def test_names_are_sorted_and_lower_case() -> None:
    """Names are what people type: lower case, digits, dots and dashes, in alphabetical order."""
    names = model_names()
    assert names == sorted(names)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") for name in names)


@pytest.mark.parametrize(
    "name",
    [
        *("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-4-scout", "llama-4-maverick"),
        *("qwen2.5-7b", "qwen3-32b", "qwen3-235b-a22b", "mistral-7b", "mixtral-8x7b"),
        *("mixtral-8x22b", "deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "kimi-k2"),
        *("gpt-oss-20b", "gpt-oss-120b", "gemma-2-9b", "gemma-3-27b", "smollm3-3b", "olmo-2-7b"),
        *("gpt3-175b", "gpt-neox-20b", "mpt-7b", "bloom-176b", "nemotron-4-340b"),
        *("ultrascale-1b", "ultrascale-405b", "tiny-llama", "tiny-moe", "tiny-mla"),
    ],
)
def test_promised_models_are_there(name: str) -> None:
    """The models that the documentation names load by name, and say their family and source."""
    config = load_model_config(name)
    assert isinstance(config["model_type"], str)
    assert isinstance(config["_source"], str)


def test_file_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path to a config.json, to its folder, and `.` inside that folder read the same file."""
    config = {"model_type": "llama", "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_model_config(tmp_path / "config.json") == config
    assert load_model_config(str(tmp_path)) == config
    monkeypatch.chdir(tmp_path)
    assert load_model_config(".") == config


def test_catalogue_name_wins_over_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that happens to be called like a catalogue model is reached as `./name` only."""
    (tmp_path / "mpt-7b").write_text('{"model_type": "mine"}')
    monkeypatch.chdir(tmp_path)
    assert load_model_config("mpt-7b")["model_type"] == "mpt"
    assert load_model_config("./mpt-7b")["model_type"] == "mine"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama-3.1-8", "close names: llama-3.1-8b"),
        ("mistralai/Mistral-7B-v0.3", "hf download mistralai/Mistral-7B-v0.3 config.json"),
        ("Qwen/Qwen3-32B-AWQ", "hf download"),
        ("deepseekv3", "close names: deepseek-v3"),
        ("Qwen3-30B", "close names: qwen3-30b-a3b"),
        ("zzzz", "`meshplan models` lists the names"),
        ("", "no model ''"),
        ("a" * 5000, "no model 'aaa"),
        ("nul\0byte", "no model"),
    ],
)
def test_unknown_name(name: str, words: str) -> None:
    """An unknown name is answered with close ones, or with the command that lists them."""
    with pytest.raises(UnknownModel, match=words) as refusal:
        load_model_config(name)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{not json", "is not a JSON file: Expecting property name"),
        (b"\xff\xfe\x00\x01\x80", "is not a JSON file"),
        (b"[1, 2]", "not an object"),
        (b"[" * 200_000, "is not a JSON file"),
        (b" " * (MAX_CONFIG_BYTES + 1), "larger than 4 MiB"),
    ],
)
def test_unreadable_file(tmp_path: Path, content: bytes, words: str) -> None:
    """A file that is not the JSON of one model, or far too large, gets one line with its path."""
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UnknownModel, match=words) as refusal:
        load_model_config(path)
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_folder_without_a_config(tmp_path: Path) -> None:
    """A folder that holds no config.json is answered with the path that was looked for."""
    with pytest.raises(UnknownModel, match=r"config\.json: No such file.*; a folder must hold"):
        load_model_config(tmp_path)


@pytest.mark.parametrize(
    ("repository", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("https://huggingface.co/Qwen/Qwen3-32B", "qwen3-32b"),
        ("Qwen3-8B-Base", "qwen3-8b"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3"),
    ],
)
def test_a_repository_that_the_catalogue_has(repository: str, name: str) -> None:
    """By its name less what names a tuning, or as one of the same sizes."""
    assert load_model_config(repository) == load_model_config(name)


def test_infinities_are_written_as_transformers_writes_them() -> None:
    """Wherever they stand, with their sign; no number is named by its field."""
    config = {"a": math.inf, "b": [1.5, -math.inf], "c": {"d": math.inf, "e": "x"}}
    more, less = {"__float__": "Infinity"}, {"__float__": "-Infinity"}
    assert finite_config(config, "m") == {"a": more, "b": [1.5, less], "c": {"d": more, "e": "x"}}
    with pytest.raises(UnknownModel, match=r"m: the field 'c\.d' is NaN"):
        finite_config({"c": {"d": math.nan}}, "m")
