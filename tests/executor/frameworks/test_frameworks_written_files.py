"""Files that a launch script writes itself, and that its program then reads."""

from pathlib import Path

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.executor.frameworks.shell.script import read_script
from meshplan.planner.case.reading import Reading, UnreadableConfig

PROGRAM = (
    "train.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2 "
    "--bf16 --max_seq_length 2048 --gradient_accumulation_steps 4\n"
)
FSDP = """cat > acc.yaml <<EOF
distributed_type: FSDP
num_processes: $N
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: SHARD_GRAD_OP
EOF
"""
ZERO = """STAGE=3
echo "{\\"zero_optimization\\": {\\"stage\\": $STAGE}, \\"bf16\\": {\\"enabled\\": true}}" > ds.json
"""
AXOLOTL = """cat <<'EOF' > run.yml
base_model: meta-llama/Llama-3.1-8B
sequence_len: 4096
micro_batch_size: 1
sample_packing: true
deepspeed: zero.json
datasets: [{path: x}]
EOF
cat <<EOF > zero.json
{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}
EOF
axolotl train run.yml
"""
SWIFT = """cat > sft.yaml <<EOF
model: Qwen/Qwen3-8B
tuner_type: full
max_length: 4096
deepspeed: zero3
EOF
NPROC_PER_NODE=8 swift sft sft.yaml
"""


def read(folder: Path, text: str) -> Reading:
    """`text` as a script in `folder`."""
    return read_config(text, str(folder / "run.sh"))


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        pytest.param(f"N=16\n{FSDP}accelerate launch --config_file ./acc.yaml {PROGRAM}",
                     {"zero_stage": 2, "gpus": 16}, id="Accelerate's YAML"),
        pytest.param(f"{ZERO}deepspeed --num_gpus 8 {PROGRAM[:-1]} --deepspeed ds.json\n",
                     {"zero_stage": 3, "gpus": 8}, id="DeepSpeed's JSON by echo"),
        pytest.param(AXOLOTL, {"zero_stage": 2, "seq_len": 4096, "model": "llama-3.1-8b"},
                     id="axolotl's YAML, and the JSON that it names"),
        pytest.param(SWIFT, {"zero_stage": 3, "model": "qwen3-8b", "gpus": 8}, id="ms-swift's"),
    ],
)  # fmt: skip
def test_what_a_script_writes_is_what_its_program_reads(
    tmp_path: Path, text: str, stated: dict[str, object]
) -> None:
    """The files are nowhere but in the script."""
    reading = read(tmp_path, text)
    assert {name: reading.facts[name].value for name in stated} == stated
    assert reading.unread == ()


def test_the_file_that_is_written_replaces_the_one_that_lies_there(tmp_path: Path) -> None:
    """The script writes it before it starts the program."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1}}')
    text = f"{ZERO}deepspeed --num_gpus 8 {PROGRAM[:-1]} --deepspeed ds.json\n"
    assert read(tmp_path, text).facts["zero_stage"].value == 3
    assert read(tmp_path, text.replace("> ds", "> other")).facts["zero_stage"].value == 1


def test_what_a_written_file_leaves_to_the_environment_is_named(tmp_path: Path) -> None:
    """`$N` of the YAML is nobody's."""
    with pytest.raises(UnreadableConfig, match=r"^acc\.yaml: .*num_processes.*\$N"):
        read(tmp_path, f"{FSDP}accelerate launch --config_file acc.yaml {PROGRAM}")


@pytest.mark.parametrize(
    ("lines", "files"),
    [
        ("echo a > f\necho b >> f", {"f": "a\nb\n"}),
        ("echo a > f\necho b > f", {"f": "b\n"}),
        ("echo a >> f", {}),
        ("echo a > f\nsed -i s/a/b/ f", {"f": "b\n"}),
        ("echo a > f\nsed -i 1d f", {}),
        ("echo a > f\njq . g > f", {}),
        ("echo -e 'a\\tb' > f", {}),
        (f"X={'a' * 2**16}\necho $X$X > f\necho $X$X >> f\necho b >> f\necho c >> f", {}),
    ],
)
def test_only_files_whose_text_is_known_are_kept(lines: str, files: dict[str, str]) -> None:
    """What goes on from a file that is not known, or what another program makes, is not known."""
    assert read_script(lines).files == files


LLAMA_FACTORY = """model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
finetuning_type: full
cutoff_len: 2048
bf16: true
deepspeed: {}
"""
PLAIN_AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
datasets: [{{path: x}}]
sequence_len: 2048
deepspeed: {}
"""


@pytest.mark.parametrize(
    ("text", "name", "stage", "offloads"),
    [
        (LLAMA_FACTORY, "examples/deepspeed/ds_z3_config.json", 3, None),
        (LLAMA_FACTORY, "/app/LLaMA-Factory/examples/deepspeed/ds_z2_offload_config.json", 2, True),
        (PLAIN_AXOLOTL, "deepspeed_configs/zero1.json", 1, None),
        (PLAIN_AXOLOTL, "/workspace/axolotl/deepspeed_configs/zero2.json", 2, True),
    ],
)
def test_files_that_a_trainer_brings_along(
    tmp_path: Path, text: str, name: str, stage: int, offloads: bool | None
) -> None:
    """By their names, where none of that name lies there; a note says so."""
    path = tmp_path / "sft.yaml"
    reading = read_config(text.format(name), str(path))
    offload = reading.facts.get("optimizer_offload")
    assert (reading.facts["zero_stage"].value, offload and offload.value) == (stage, offloads)
    assert reading.unread == ()
    assert any("the trainer's own file of that name" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (PLAIN_AXOLOTL, "my_deepspeed_configs/zero1.json"),
        (PLAIN_AXOLOTL, "deepspeed_configs/zero9.json"),
        (PLAIN_AXOLOTL, "examples/deepspeed/ds_z3_config.json"),
        (LLAMA_FACTORY, "ds_z3_config.json"),
    ],
)
def test_other_names_are_not_guessed(tmp_path: Path, text: str, name: str) -> None:
    """Another folder, another name, or another trainer's."""
    reading = read_config(text.format(name), str(tmp_path / "sft.yaml"))
    assert "the ZeRO stage is in that file" in reading.unread[0].value


def test_a_file_of_that_name_is_read_itself(tmp_path: Path) -> None:
    """Somebody's own zero1.json is of stage 3."""
    (tmp_path / "deepspeed_configs").mkdir()
    own = tmp_path / "deepspeed_configs" / "zero1.json"
    own.write_text('{"zero_optimization": {"stage": 3}}')
    text = PLAIN_AXOLOTL.format("deepspeed_configs/zero1.json")
    assert read_config(text, str(tmp_path / "sft.yaml")).facts["zero_stage"].value == 3


@pytest.mark.parametrize(
    ("force", "optimizer", "notes"),
    [("true", "adamw", 1), ("false", "adamw8bit", 0)],
)
def test_an_optimizer_on_the_host_is_deepspeeds_own(
    tmp_path: Path, force: str, optimizer: str, notes: int
) -> None:
    """Accelerate puts DeepSpeedCPUAdam in place of bitsandbytes', unless the JSON keeps it."""
    offload = '{"stage": 2, "offload_optimizer": {"device": "cpu"}}'
    (tmp_path / "ds.json").write_text(
        f'{{"zero_force_ds_cpu_optimizer": {force}, "zero_optimization": {offload}}}'
    )
    text = PLAIN_AXOLOTL.format("ds.json") + "optimizer: adamw_bnb_8bit\n"
    reading = read_config(text, str(tmp_path / "sft.yaml"))
    assert reading.facts["optimizer"].value == optimizer
    assert sum("DeepSpeed's Adam" in note for note in reading.notes) == notes
