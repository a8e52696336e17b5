"""Files that say the same in another layout are the same format with the same facts."""

import json

import pytest
import yaml

from meshplan.executor.frameworks import read_config, recognise
from meshplan.executor.frameworks.documents.laid_out import laid_out
from meshplan.planner.case.reading import Reading, UnreadableConfig

TITAN = """\
[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 1
seq_len = 4096

[parallelism]
tensor_parallel_degree = 2
"""
DOTTED = """\
model.name = "llama3"
model.flavor = "8B"
training.local_batch_size = 1
training.seq_len = 4096
parallelism.tensor_parallel_degree = 2
"""
INLINE = """\
model = {name = "llama3", flavor = "8B"}
training = {local_batch_size = 1, seq_len = 4096}
parallelism = {tensor_parallel_degree = 2}
"""
YAMLS = {
    "nanotron": """\
parallelism: {dp: 2, tp: 2, pp: 1}
tokens: {micro_batch_size: 1, sequence_length: 2048, batch_accumulation_per_replica: 2}
""",
    "accelerate": """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
num_machines: 1
fsdp_config: {fsdp_version: 2}
""",
    "torchtune": """\
model: {_component_: torchtune.models.llama3_1.llama3_1_8b}
optimizer: {_component_: torch.optim.AdamW}
batch_size: 2
dtype: bf16
""",
    "llama-factory": """\
model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
finetuning_type: full
per_device_train_batch_size: 2
cutoff_len: 2048
bf16: true
""",
    "gpt-neox": """\
pipe_parallel_size: 1
model_parallel_size: 2
num_layers: 12
hidden_size: 768
num_attention_heads: 12
seq_length: 2048
train_micro_batch_size_per_gpu: 4
""",
}
REFUSED = """\
out_dir: out
precision: bf16-true
train:
  global_batch_size: 8
  micro_batch_size: 1
"""


def _said(reading: Reading) -> dict[str, object]:
    return {name: fact.value for name, fact in reading.facts.items()}


@pytest.mark.parametrize(
    "text", [pytest.param(DOTTED, id="dotted"), pytest.param(INLINE, id="inline")]
)
def test_dotted_keys_and_inline_tables_are_the_tables_that_they_stand_for(text: str) -> None:
    plain, other = read_config(TITAN, "a.toml"), read_config(text, "a.toml")
    assert other.framework == "torchtitan"
    assert _said(other) == _said(plain)
    assert _said(plain)["tensor_parallel"] == 2
    at = next(n for n, line in enumerate(text.splitlines(), 1) if "tensor_parallel" in line)
    assert other.facts["tensor_parallel"].line == at


@pytest.mark.parametrize("indent", [None, 2], ids=["one line", "in lines"])
@pytest.mark.parametrize("name", YAMLS)
def test_yaml_written_as_json_is_the_same_configuration(name: str, indent: int | None) -> None:
    plain = read_config(YAMLS[name], "a.yaml")
    text = json.dumps(yaml.safe_load(YAMLS[name]), indent=indent)
    found = recognise("a.yaml", text)
    assert found is not None
    assert found.name == name
    assert _said(found.read(text, "a.yaml", None)) == _said(plain)


def test_what_is_refused_by_name_is_so_in_any_layout() -> None:
    with pytest.raises(UnreadableConfig) as plain:
        read_config(REFUSED, "a.yaml")
    with pytest.raises(UnreadableConfig) as other:
        read_config(json.dumps(yaml.safe_load(REFUSED)), "a.yaml")
    assert "no config format" not in str(plain.value)
    assert str(other.value) == str(plain.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("a.yaml", '{"hello": "world"}', id="another program's"),
        pytest.param("a.yaml", '{"parallelism": {"dp": 2}', id="not closed"),
        pytest.param("a.toml", "parallelism = {dp = 2", id="TOML not closed"),
        pytest.param("a.yaml", "[" * 500 + "'", id="too deep"),
        pytest.param("a.txt", '{"parallelism": {"dp": 2}, "tokens": {}}', id="no YAML"),
    ],
)
def test_other_files_stay_unrecognised(name: str, text: str) -> None:
    assert recognise(name, text) is None


def test_the_plain_layout_has_a_key_a_line() -> None:
    text = '{"a": {"b": 1, "c": [1, "two"]}, "d": "x: y"}'
    assert laid_out("a.yaml", text) == "a:\n  b: 1\n  c:\n  - 1\n  - two\nd: 'x: y'\n"
    assert laid_out("a.toml", "a.b.c = 1\nx = {y = 'z'}\n") == '[a]\n[a.b]\nc = 1\n[x]\ny = "z"'
