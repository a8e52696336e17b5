"""YAML with the files that its defaults name, by Hydra's rules and NeMo RL's; scripts that name it.

The expected entries are those that Hydra 1.3.2 composes of the same files.
"""

from pathlib import Path

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.executor.frameworks.documents.composed import Composed, composed
from meshplan.planner.case.reading import Reading, Start, UnreadableConfig

FILES = {
    "a.yaml": "defaults:\n  - model: big\n  - db@store.db: mysql\n  - optional missing: nothing\n"
    "  - _self_\n  - server: apache\n  - override hydra/job_logging: none\n"
    "x: 1\nstore: {db: {port: 5, empty: {}}}\nmodel: {size: 3}\n",
    "model/big.yaml": "# @package model\nsize: 7\nopt: {lr: 1, wd: null}\n",
    "model/small.yaml": "size: 2\n",
    "db/mysql.yaml": "defaults:\n  - engine: isam\n  - common\n  - _self_\nport: 3306\n",
    "db/common.yaml": "port: 1\nhost: h\n",
    "db/engine/isam.yaml": "kind: isam\n",
    "server/apache.yaml": "defaults:\n  - /db@backup: mysql\n  - https\n"
    "  - /model@_global_.other: big\nport: 80\n",
    "server/https.yaml": "# @package _global_\nssl: true\nserver: {secure: yes}\n",
    "b.yaml": "defaults: [a, {model@second: big}, base_b]\nx: {y: 2}\n",
    "base_b.yaml": "x: 5\n",
    "child.yaml": "defaults: sub/parent.yaml\ntrain: null\nmodel: {tp: 4}\nkeep: ???\n"
    "gone:\n  _override_: true\n  b: 2\n",
    "sub/parent.yaml": "defaults: [grand.yaml]\ntrain: {steps: 5}\nmodel: {tp: 1, pp: 2}\nkeep: 9\n"
    "gone: {a: 1}\n",
    "sub/grand.yaml": "model: {tp: 8, cp: 3}\n",
    "loop.yaml": "defaults: [loop]\n",
    "lost.yaml": "defaults: [{model: nowhere}]\nx: 1\n",
}
DATABASE = {"port": 3306, "host": "h", "engine.kind": "isam"}
EXPECTED: dict[str, object] = {
    "x": 1, "model.size": 3, "model.opt.lr": 1, "store.db.port": 5, "store.db.host": "h",
    "store.db.engine.kind": "isam", "server.port": 80, "ssl": True, "server.secure": True,
    "other.size": 7, "other.opt.lr": 1,
    **{f"server.backup.{name}": value for name, value in DATABASE.items()},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of configurations."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def _composed(folder: Path, name: str, **choices: str | None) -> Composed:
    return composed(FILES[name], str(folder / name), choices)


def _values(whole: Composed) -> dict[str, object]:
    return {name: fact.value for name, fact in whole.found.items() if fact.value is not None}


def test_groups_packages_and_places_are_hydras(folder: Path) -> None:
    assert _values(_composed(folder, "a.yaml")) == EXPECTED


def test_a_file_beside_it_and_a_section_in_a_values_place(folder: Path) -> None:
    said = _values(_composed(folder, "b.yaml"))
    second = {"second.size": 7, "second.opt.lr": 1}
    rest = {name: value for name, value in EXPECTED.items() if name != "x"}
    assert said == {**rest, **second, "x.y": 2}


def test_a_command_line_chooses_other_files_and_leaves_some_out(folder: Path) -> None:
    said = _values(_composed(folder, "a.yaml", model="small", server=None))
    assert (said["model.size"], "model.opt.lr" in said, "server.port" in said) == (3, False, False)


def test_parents_are_merged_as_nemo_rl_does(folder: Path) -> None:
    """Null replaces a section, `???` nothing, and a marked section its parent's whole."""
    whole = _composed(folder, "child.yaml")
    assert _values(whole) == {"model.tp": 4, "model.pp": 2, "model.cp": 3, "keep": 9, "gone.b": 2}
    assert whole.files == ("parent.yaml", "grand.yaml")
    assert {fact.line for name, fact in whole.found.items() if name == "model.pp"} == {1}


def test_what_is_not_there_is_left_and_what_has_no_end_is_refused(folder: Path) -> None:
    assert "model: nowhere" in str(_composed(folder, "lost.yaml").left[0].value)
    with pytest.raises(UnreadableConfig, match="name each other"):
        _composed(folder, "loop.yaml")


CONF = """\
defaults:
  - sizes: {size}
trainer: {{num_nodes: 1, devices: 8, precision: bf16}}
model:
  mcore_gpt: true
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 2
  encoder_seq_length: ${{oc.env:LENGTH,2048}}
  optim: {{name: distributed_fused_adam}}
"""
SIZES = """\
# @package model
num_layers: {layers}
hidden_size: 512
ffn_hidden_size: 2048
num_attention_heads: 8
"""
PROGRAM = '@hydra_runner(config_path="conf", config_name="gpt")\ndef main(cfg):\n    pass\n'


def _script(tmp_path: Path, more: str, program: str = "train_gpt_sft.py") -> Reading:
    files = {"conf/gpt.yaml": CONF.format(size="small"), "conf/sizes/small.yaml":
             SIZES.format(layers=4), "conf/sizes/large.yaml": SIZES.format(layers=8),
             f"{program}": PROGRAM}  # fmt: skip
    for name, text in files.items():
        (tmp_path / "nlp" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "nlp" / name).write_text(text)
    (tmp_path / ".git").mkdir(parents=True)
    text = f"python nlp/{program} {more} model.pipeline_model_parallel_size=2\n"
    path = tmp_path / "run.sh"
    path.write_text(text)
    return read_config(text, str(path), start=Start(environment={"LENGTH": "4096"}))


@pytest.mark.parametrize(
    ("more", "layers", "tensor"),
    [
        ("--config-name=gpt", 4, 2),
        ("--config-path=conf --config-name gpt.yaml sizes=large", 8, 2),
        ("--config-name=gpt ++model.tensor_model_parallel_size=4", 4, 4),
        ("--config-name=gpt ~model.tensor_model_parallel_size", 4, None),
    ],
)
def test_a_script_is_read_with_the_file_that_it_names(
    tmp_path: Path, more: str, layers: int, tensor: int | None
) -> None:
    """Groups that a word chooses, entries that it replaces or takes away, the environment."""
    reading = _script(tmp_path, more)
    said = {name: fact.value for name, fact in reading.facts.items()}
    assert (said.get("tensor_parallel"), said["pipeline_parallel"]) == (tensor, 2)
    assert (said["seq_len"], said["gpus"], said["zero_stage"]) == (4096, 8, 1)
    assert reading.model_config
    assert reading.model_config["num_hidden_layers"] == layers
    assert any("small.yaml" in note or "large.yaml" in note for note in reading.notes)


def test_a_program_of_another_loss_is_named(tmp_path: Path) -> None:
    """NeMo-Aligner's: its file has the keys of any other."""
    for program in ("train_gpt_ppo_actor.py", "train_reward_model.py", "train_gpt_dpo.py"):
        reading = _script(tmp_path / program, "--config-name=gpt", program)
        assert any(program in str(fact.value) for fact in reading.unread)
