"""What files leave to their start: a script's environment, a trainer's launcher, a recipe."""

import subprocess
from pathlib import Path

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.executor.frameworks.shell.script import read_script
from meshplan.planner.case.reading import Start, UnreadableConfig
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import check_paths
from meshplan.planner.check.output import as_table, full_text
from meshplan.planner.check.verdicts import Finding
from tests.support.hand_priced import TOOLS

SIZED = """#!/bin/bash
SIZE=$2
if [ $SIZE = small ]; then
  LAYERS=4
elif [ $SIZE = large ]; then
  LAYERS=48
fi
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers ${LAYERS} --hidden-size 1024 \\
  --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \\
  --micro-batch-size 1 --global-batch-size 16 --tensor-model-parallel-size ${TP} --bf16
"""


def test_a_script_says_what_it_is_started_with_and_takes_it() -> None:
    """48 layers follow from the second argument, the degree is the environment's."""
    with pytest.raises(UnreadableConfig, match=r"--env 2=VALUE --env LAYERS=VALUE \(2: its"):
        read_config(SIZED, "run.sh")
    with pytest.raises(UnreadableConfig, match="--env TP=VALUE"):
        read_config(SIZED, "run.sh", None, Start(environment={"2": "large"}))
    start = Start(environment={"2": "large", "TP": "4"})
    reading = read_config(SIZED, "run.sh", None, start)
    assert reading.model_config is not None
    assert reading.model_config["num_hidden_layers"] == 48
    assert (reading.facts["tensor_parallel"].value, reading.facts["gpus"].value) == (4, 8)
    assert "TP" not in "".join(reading.notes)


def test_a_default_of_what_a_launcher_sets_is_said(tmp_path: Path) -> None:
    """NVIDIA/Megatron-LM examples/mixtral/train_mixtral_8x7b_distributed.sh: on the one node that
    is its default its degrees are illegal; that sbatch says the nodes was not said.
    """
    path = tmp_path / "run.sh"
    launch = SIZED.partition("\nfi\n")[2].replace("${LAYERS}", "48")
    more = " --pipeline-model-parallel-size 4 --vocab-size 50304\n"
    nodes = "NNODES=${SLURM_NNODES:-1}\nTP=${TP:-4}\n"
    path.write_text(nodes + launch.replace("torchrun", "torchrun --nnodes $NNODES").rstrip() + more)
    (found,) = check_paths([path], TOOLS, Settings(cluster="dgx-h100"))
    assert found.verdict == "illegal"
    assert any(note.startswith("line 1: SLURM_NNODES") for note in found.notes)
    assert not any("--env TP" in note for note in found.notes)
    start = {"environment": {"SLURM_NNODES": "4"}}
    (found,) = check_paths([path], TOOLS, Settings(cluster="dgx-h100", **start))
    assert found.verdict == "fits"
    assert not any("SLURM_NNODES" in note for note in found.notes)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("(N=${NNODES:-2}; echo $N)", ["line 1: NNODES is not set"], id="a subshell"),
        pytest.param("N=${NNODES:-all}", [], id="no number"),
        pytest.param("NNODES=4; N=${NNODES:-2}", [], id="not the default"),
    ],
)
def test_only_a_number_that_is_taken_is_said(line: str, said: list[str]) -> None:
    """Once, wherever it is taken."""
    notes = [note for note in read_script(f"{line}\n").notes if "its default" in note]
    assert [note[:25] for note in notes] == said


@pytest.mark.parametrize(
    "line",
    [
        "IFS=',' read -r A B C <<< '2,4,8'",
        "IFS=, read A B <<< '1,2,3'",
        "IFS=, read A B C <<< '1, 2,,'",
        "X='1  2 3'; read -r A B <<< \"$X\"",
        "IFS=, read -ra A <<< '1,2,'; B=${A[1]}; C=${#A[@]}",
        "IFS=', ' read A B C <<< ' 1 , 2  3'",
        "read A B C < /dev/null <<< '5 6'",
    ],
)
def test_a_here_string_is_read_as_bash_reads_it(line: str) -> None:
    """The names have the values that bash gives them."""
    script = f'{line}\nprog "[$A]" "[$B]" "[$C]"'
    ours = [str(word.value) for word in read_script(f"A= B= C=\n{script}").commands[-1][1:]]
    shown = f'prog() {{ printf "%s\\n" "$@"; }}\n{script}'
    bash = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True)
    assert "\n".join(ours) + "\n" == bash.stdout


def test_a_here_string_of_what_is_unknown_sets_nothing() -> None:
    """The name stays visible, as that of any variable that nothing sets."""
    script = read_script('A=1\nread A <<< "$FROM"\nprog $A')
    assert [word.value for word in script.commands[-1]] == ["prog", "$A"]


BRIDGE = """#!/bin/bash
for CONFIG in "2,4,True" "4,2,False"; do
  IFS=',' read -r TP PP SP <<< "$CONFIG"
  ARGS="train.micro_batch_size=1 train.global_batch_size=32 \\
    model.tensor_model_parallel_size=$TP model.pipeline_model_parallel_size=$PP \\
    model.sequence_parallel=$SP"
  torchrun --nproc_per_node=8 --nnodes=2 run_recipe.py --recipe llama3_8b_{kind}_config $ARGS
done
"""


def test_each_launch_of_a_bridge_script_is_a_case() -> None:
    """Two rounds of its loop, of 16 GPUs each; what a recipe sets is said."""
    first = read_config(BRIDGE.replace("{kind}", "pretrain"), "run.sh")
    cases = [first, *first.others]
    degrees = [
        (c.facts["tensor_parallel"].value, c.facts["pipeline_parallel"].value) for c in cases
    ]
    assert degrees == [(2, 4), (4, 2)]
    assert [c.facts["gpus"].value for c in cases] == [16, 16]
    assert [c.facts["zero_stage"].value for c in cases] == [1, 1]
    assert not first.unread
    left = {"virtual_stages", "context_parallel", "expert_parallel", "recompute", "stages"}
    assert first.left_to_recipe.keys() == left


def test_a_verdict_says_what_it_assumes_of_a_recipe(tmp_path: Path) -> None:
    """Nothing where the overrides state it all, or an option does; a dense model has no experts."""
    said = "train.micro_batch_size=1 train.global_batch_size=32 "
    said += "model.tensor_model_parallel_size=2 model.pipeline_model_parallel_size=1 "
    more = "model.context_parallel_size=1 model.recompute_granularity=null"
    given = Settings(cluster="dgx-h100", model="llama-3-8b", seq_len=8192)
    script = "torchrun --nproc_per_node=8 run_recipe.py --recipe llama3_8b_pretrain_config " + said
    found = _started(tmp_path, script, given)
    left = "context_parallel_size, recompute_granularity"
    assert f"; assumed: the recipe leaves {left} at 1 or none" in full_text(found)
    assert "fits (assumed)" in as_table([found], width=200)
    assert _started(tmp_path, script + more, given).assumed == ""
    replayed = given.model_copy(update={"recompute": "full"})
    left = "context_parallel_size"
    assert _started(tmp_path, script, replayed).assumed == f"the recipe leaves {left} at 1 or none"


@pytest.mark.parametrize("kind", ["peft", "vl_3b_sft"])
def test_adapters_and_towers_of_a_recipe_are_named(kind: str) -> None:
    """What its name says is trained and the overrides do not state."""
    (fact,) = read_config(BRIDGE.replace("{kind}", kind), "run.sh").unread
    assert kind in str(fact.value)


TRL = """model_name_or_path: meta-llama/Llama-3.1-8B
dataset_num_proc: 4
bf16: true
max_seq_length: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
gradient_checkpointing: true
"""
ZERO3 = """compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 3
  offload_optimizer_device: none
mixed_precision: fp16
num_machines: 2
num_processes: 16
"""
FSDP = """distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
num_processes: 8
"""


def _checked(folder: Path, launcher: str | None, trainer: str = TRL) -> tuple[str, str | None, str]:
    (folder / "sft.yaml").write_text(trainer)
    given = Settings(cluster="dgx-h100", launched_by=launcher)
    (found,) = check_paths([folder / "sft.yaml"], TOOLS, given)
    return found.verdict, found.label, found.text


def test_a_trainer_is_judged_by_the_file_that_launches_it(tmp_path: Path) -> None:
    """ZeRO-3 on 16 GPUs, FSDP's stage 2 on 8; the trainer's own batch and precision."""
    (tmp_path / "zero3.yaml").write_text(ZERO3)
    (tmp_path / "fsdp.yaml").write_text(FSDP)
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}'
    )
    verdict, _, text = _checked(tmp_path, None)
    assert verdict == "incomplete"
    assert "--launched-by FILE" in text
    assert _checked(tmp_path, str(tmp_path / "zero3.yaml"))[1] == "dp16 zero3 mbs2 recompute-full"
    assert _checked(tmp_path, str(tmp_path / "fsdp.yaml"))[1] == "dp8 zero2 mbs2 recompute-full"
    assert "missing: gpus" in _checked(tmp_path, str(tmp_path / "ds.json"))[2]
    start = Start(launched_by=str(tmp_path / "zero3.yaml"))
    reading = read_config(TRL, "sft.yaml", None, start)
    assert reading.engine == "deepspeed"  # `max_seq_length` is of an older TRL
    assert reading.facts["precision"].value == "bf16"
    assert reading.facts["num_micro_batches"].value == 8
    none = read_config(TRL, "sft.yaml", None, Start(launched_by="none"))
    assert (none.facts["zero_stage"].value, none.unread) == (0, ())


@pytest.mark.parametrize("named", [False, True], ids=["it does not name one", "it names its own"])
def test_only_a_launcher_that_is_not_taken_is_noted(tmp_path: Path, named: bool) -> None:
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}'
    )
    own = f"deepspeed: {tmp_path / 'ds.json'}\n" if named else ""
    (tmp_path / "sft.yaml").write_text(TRL + own)
    given = Settings(cluster="dgx-h100", gpus=8, launched_by=str(tmp_path / "ds.json"))
    (found,) = check_paths([tmp_path / "sft.yaml"], TOOLS, given)
    assert found.label == "dp8 zero1 mbs2 recompute-full"
    assert any("--launched-by changes nothing" in note for note in found.notes) is named


def test_a_launcher_that_says_otherwise_or_nothing_is_told(tmp_path: Path) -> None:
    """Another accumulation stops the trainer; a file of another kind, and none, say no sharding."""
    counted = ZERO3.replace("  zero_stage", "  gradient_accumulation_steps: 4\n  zero_stage")
    (tmp_path / "four.yaml").write_text(counted)
    (tmp_path / "else.yaml").write_text("a: 1\n")
    verdict, _, text = _checked(tmp_path, str(tmp_path / "four.yaml"))
    assert verdict == "incomplete"
    assert "gradient_accumulation_steps 8" in text
    for name in ("else.yaml", "absent.yaml"):
        verdict, _, text = _checked(tmp_path, str(tmp_path / name))
        assert verdict == "unreadable"
        assert f"--launched-by {tmp_path / name}: " in text


COMMAND = """#!/bin/bash
MBS=${MBS:-2}
%s train.py --model_name_or_path meta-llama/Llama-3.1-8B --model_max_length 2048 --bf16 True \\
  --per_device_train_batch_size $MBS --gradient_accumulation_steps=4 \\
  --gradient_checkpointing True --learning_rate 2e-5 %s
"""


def _started(folder: Path, script: str, given: Settings) -> Finding:
    (folder / "run.sh").write_text(script)
    (found,) = check_paths([folder / "run.sh"], TOOLS, given)
    return found


@pytest.mark.parametrize(
    ("launcher", "more", "expected"),
    [
        ("torchrun --nproc_per_node=4", '--fsdp "full_shard auto_wrap"', "dp4 zero3 mbs2"),
        ("torchrun --nproc_per_node=4 --nnodes=2", "", "dp8 zero0 mbs2"),
        ("accelerate launch --config_file conf/zero3.yaml", "", "dp16 zero3 mbs2"),
        ("accelerate launch --config_file conf/zero3.yaml --num_processes 4", "", "dp4 zero3 mbs2"),
        ("deepspeed --num_gpus 8", "--deepspeed conf/ds.json", "dp8 zero1 mbs2"),
        ("deepspeed --num_gpus=4 --num_nodes 2", "", "dp8 zero0 mbs2"),
        ("deepspeed --include localhost:0,2", "--deepspeed conf/ds.json", "dp2 zero1 mbs2"),
        ("deepspeed --include=a:0,1@b:0,1,2,3@a:01,4,5", "", "dp8 zero0 mbs2"),
        ("deepspeed --include a@a:0,2", "", "dp2 zero0 mbs2"),
    ],
)
def test_a_trainers_command_is_read(
    tmp_path: Path, launcher: str, more: str, expected: str
) -> None:
    """Its arguments, and the files that it names, found below the script's folder."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "zero3.yaml").write_text(ZERO3)
    (tmp_path / "conf" / "ds.json").write_text('{"zero_optimization": {"stage": 1}}')
    found = _started(tmp_path, COMMAND % (launcher, more), Settings(cluster="dgx-h100"))
    assert found.label == f"{expected} recompute-full", found.text


@pytest.mark.parametrize(
    ("launcher", "more", "said"),
    [
        ("accelerate launch", "", "--launched-by FILE"),
        ("accelerate launch --config_file no.yaml", "", "--config_file 'no.yaml'"),
        ("torchrun --nproc_per_node=4", "--vision_tower clip", "vision_tower"),
        ("torchrun --nproc_per_node=4", "--torch_dtype float16", "torch_dtype"),
        ("torchrun --nproc_per_node=4", "--deepspeed $CONFIG", "--env CONFIG=VALUE"),
    ],
)
def test_what_a_trainers_command_leaves_open_is_named(
    tmp_path: Path, launcher: str, more: str, said: str
) -> None:
    """Never priced as if it shards nothing, or trains what it does not."""
    given = Settings(cluster="dgx-h100", gpus=4)
    found = _started(tmp_path, COMMAND % (launcher, more), given)
    assert found.verdict in ("incomplete", "unreadable")
    assert said in found.text


OPEN = """#!/bin/bash
deepspeed --include localhost:$DEVICES train.py --model_name_or_path ./checkpoints/$VERSION \\
  --model_max_length $LENGTH --per_device_train_batch_size $MBS --bf16 True \\
  --gradient_accumulation_steps $STEPS --gradient_checkpointing $RECOMPUTE
"""


def test_what_options_say_need_not_be_in_the_environment(tmp_path: Path) -> None:
    """Model, length and batch of a script's start are the options'; its other variables are asked
    for: 64 sequences on 8 GPUs of micro-batch 2 are 4 of them, and no count of the file's is told.
    """
    given = Settings(
        cluster="dgx-h100", gpus=8, model="llama-3.1-8b", seq_len=4096, global_batch_size=64,
        micro_batch_size=2,
    )  # fmt: skip
    asked = _started(tmp_path, OPEN, given)
    assert (asked.verdict, "--env RECOMPUTE=VALUE" in asked.text) == ("unreadable", True)
    said = given.model_copy(update={"environment": {"RECOMPUTE": "True"}})
    found = _started(tmp_path, OPEN, said)
    assert found.label == "dp8 zero0 mbs2 recompute-full", found.text
    assert not [note for note in found.notes if "of the file" in note]
    short = _started(tmp_path, OPEN, said.model_copy(update={"seq_len": None}))
    assert "--model_max_length is '$LENGTH'" in short.text
    assert "--env LENGTH=VALUE" in short.text


def test_lengths_and_batches_that_options_say_of_a_megatron_script() -> None:
    """A script's own words stay, and win over what a settings file fills in."""
    text = (
        SIZED.replace("$2", "large").replace("${TP}", "2").replace("16 --tensor", "$GBS --tensor")
    )
    with pytest.raises(UnreadableConfig, match="--env GBS=VALUE"):
        read_config(text, "run.sh", None, Start(instead=frozenset(("seq_len",))))
    start = Start(instead=frozenset(("seq_len", "global_batch_size")))
    reading = read_config(text, "run.sh", None, start)
    assert reading.facts["seq_len"].value == 2048
    assert not {"global_batch_size", "num_micro_batches"} & reading.facts.keys()


def test_a_shape_that_the_model_says() -> None:
    """Where `--model` says the shape, the layers of the script's start are not asked for."""
    text = SIZED.replace("${TP}", "2")
    reading = read_config(text, "run.sh", None, Start(instead=frozenset(("model",))))
    assert (reading.model_config, reading.facts["tensor_parallel"].value) == (None, 2)
    with pytest.raises(UnreadableConfig, match="--env LAYERS=VALUE"):
        read_config(text, "run.sh", None, Start(instead=frozenset(("seq_len",))))
