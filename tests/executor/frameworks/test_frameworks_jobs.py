"""Jobs and forks of 45 repositories read on 2026-11-27: what starts a run, and words of a fork.

Each case is the few lines of a file that decided it, with the repository it was found in.
"""

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.missing import MissingFacts
from meshplan.planner.case.reading import IllegalConfig, NothingToRead, Start, UnreadableConfig
from meshplan.planner.case.resolve import check_levels, resolve
from meshplan.planner.case.settings import Settings

GPT = (
    "pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 4 --hidden-size 512 "
    "--num-attention-heads 8 --seq-length 512 --micro-batch-size 1 --global-batch-size 64 --bf16"
)
AZURE = f"""\
command: >-
  python {GPT.replace(" --", chr(10) + "  --")}
compute: azureml:bloom
resources:
  instance_count: 1
"""
CONTAINER = """\
spec:
  containers:
  - name: train
    command: ["torchrun", "--nproc_per_node=8"]
    args: [{words}]
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        # Azure/azureml-examples Bloom-Pretrain/src/deepspeed-BLOOM-AML-SDKv2.yaml: each of its
        # lines was a command of its own, and the precision fp32
        pytest.param(AZURE, 2, id="folded"),
        pytest.param(f"run: |\n  export A=1\n  torchrun {GPT}\n", 3, id="literal, at its line"),
        pytest.param(f"name: a\nrun: bash -c 'torchrun {GPT}'\n", 2, id="on its key's line"),
        pytest.param(f'job:\n  args: ["bash", "-c", "torchrun {GPT}"]\n', 2, id="behind -c"),
        pytest.param(
            CONTAINER.format(words=", ".join(f'"{word}"' for word in GPT.split())), 5,
            id="a list of words",
        ),
        pytest.param(f"a: 1\n---\nrun: torchrun {GPT}\n", 3, id="the second document"),
    ],
)  # fmt: skip
def test_the_command_of_a_job_is_read_as_the_shell_reads_it(text: str, line: int) -> None:
    """All arguments of one command, at the line where it stands."""
    reading = read_config(text, "job.yaml")
    found = {name: reading.facts[name].value for name in ("tensor_parallel", "precision")}
    assert found == {"tensor_parallel": 2, "precision": "bf16"}
    assert reading.facts["seq_len"].line == line
    assert not reading.others


def test_a_container_takes_its_arguments_behind_its_command() -> None:
    """The launcher stands in the one list, the program in the other."""
    words = ", ".join(f'"{word}"' for word in GPT.split())
    assert read_config(CONTAINER.format(words=words), "job.yaml").facts["gpus"].value == 8


def test_a_word_of_a_list_may_hold_spaces() -> None:
    """It is one word, and no command of the shell's."""
    words = [*GPT.split(), "--data-path", "my data", "--save", "$(touch x)"]
    listed = ", ".join(f'"{word}"' for word in words)
    reading = read_config(f"args: [{listed}]\n", "job.yaml")
    assert reading.facts["global_batch_size"].value == 64


def test_a_document_that_only_mentions_a_flag_starts_nothing() -> None:
    """A comment, or a key."""
    text = "# --tensor-model-parallel-size 8\nlayers: 4\n"
    with pytest.raises(NothingToRead, match="no command in this document"):
        read_config(text, "notes.yaml", "megatron")


def test_a_job_that_is_no_yaml_is_refused_in_one_line() -> None:
    """A template, say."""
    with pytest.raises(UnreadableConfig, match="not YAML"):
        read_config(f"run: {{{{ x }}: [torchrun {GPT}\n", "job.yaml")


@pytest.mark.parametrize(
    ("start", "gpus"),
    [
        pytest.param("mpirun -np 16 -x A=1 python", 16, id="mpirun -np"),
        pytest.param("mpiexec --np=16 python", 16, id="mpiexec --np="),
        pytest.param("srun -N 2 -n 16 python -u", 16, id="srun -n"),
        pytest.param("srun -n16 --exclusive python", 16, id="srun -n16"),
        pytest.param("srun --ntasks 16 python", 16, id="srun --ntasks"),
        pytest.param("srun -N2 --ntasks-per-node=8 python", 16, id="2 nodes x 8 tasks"),
        pytest.param("#SBATCH --ntasks=16\nsrun python", 16, id="the job's tasks"),
        pytest.param("#SBATCH --gpus=16\ntorchrun", 16, id="the job's GPUs"),
        pytest.param("#SBATCH -G a100:16\ntorchrun", 16, id="of a kind"),
        pytest.param("#SBATCH -n 16\n#SBATCH --gpus-per-task=1\ntorchrun", 16, id="of a task"),
        pytest.param("#PBS -l select=2:ncpus=64:ngpus=8\ntorchrun", 16, id="PBS"),
        pytest.param("#PBS -l select=2:ncpus=64\ntorchrun", None, id="PBS, no GPUs"),
        pytest.param("#SBATCH -N 2\n#SBATCH --gres=gpu:8\ntorchrun", 16, id="of a node"),
        pytest.param("#SBATCH --ntasks=16\npython", None, id="no srun: one process"),
        pytest.param("srun -N 2 -n 2 torchrun --nnodes 2 --nproc-per-node 8", 16, id="torchrun's"),
        pytest.param("srun -n 2 torchrun", None, id="2 x what torchrun starts"),
        pytest.param("srun -n $N python", None, id="left open"),
    ],
)
def test_processes_that_a_launcher_starts_are_the_gpus(start: str, gpus: int | None) -> None:
    """Where nothing between it and the program starts more of them."""
    found = read_config(f"{start} {GPT}\n", "run.sh").facts.get("gpus")
    assert (found and found.value) == gpus


@pytest.mark.parametrize(
    ("start", "program", "gpus"),
    [
        ("#SBATCH -N 7\n#SBATCH --ntasks-per-node=2\nsrun -l", "RANK=$SLURM_PROCID python", 14),
        ("srun -N 2 -n 16", "cd x; python", 16),
        ("mpirun -np 4 /usr/bin/env", "python", 4),
        ("srun -N 2 -n 2", "torchrun --nnodes 2 --nproc_per_node 8", 16),
        ("srun -n 2", "torchrun", None),
        ("#SBATCH --ntasks=16\nenv", "python", None),
        ("srun -n 4 true; env", "python", None),
    ],
)
def test_the_processes_of_a_shell_that_a_launcher_starts(
    start: str, program: str, gpus: int | None
) -> None:
    """As many as without the shell: each of them runs its program."""
    found = read_config(f"{start} bash -c '{program} {GPT}'\n", "run.sh").facts.get("gpus")
    assert (found and found.value) == gpus


def test_what_a_shell_is_started_with_ends_with_it() -> None:
    """A program behind it runs in one process again."""
    script = f"srun -n 4 bash -c 'cd x'\npython {GPT}\n"
    assert "gpus" not in read_config(script, "run.sh").facts


@pytest.mark.parametrize(
    ("devices", "nodes", "gpus"),
    [("[0, 1]", 2, 4), ("[0]", 1, 1), ("8", 2, 16), ("-1", 2, None)],
)
def test_nemo_counts_the_devices_that_a_file_lists(
    devices: str, nodes: int, gpus: int | None
) -> None:
    """-1 is all that a node has, which the file does not say."""
    text = (
        f"trainer:\n  devices: {devices}\n  num_nodes: {nodes}\n  precision: bf16\n"
        "model:\n  tensor_model_parallel_size: 1\n  micro_batch_size: 1\n  optim:\n    name: adam\n"
    )
    found = read_config(text, "nemo.yaml").facts.get("gpus")
    assert (found and found.value) == gpus


def test_all_gpus_of_a_machine_are_left_to_the_option() -> None:
    """NVIDIA/TensorRT-Model-Optimizer examples/gpt-oss/configs/zero3.yaml."""
    text = (
        "distributed_type: DEEPSPEED\nnum_processes: gpu\nnum_machines: 1\nmixed_precision: bf16\n"
        "deepspeed_config:\n  zero_stage: 3\n"
    )
    assert "gpus" not in read_config(text, "zero3.yaml").facts


def test_processes_that_a_command_counts_are_left_to_the_option() -> None:
    """aws-samples/sagemaker-distributed-training-workshop run_training_sft.sh: unreadable."""
    text = (
        "accelerate launch --num_processes $(nvidia-smi --list-gpus | wc -l) --use_deepspeed "
        "--zero_stage 2 train.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 "
        "--per_device_train_batch_size 2 --max_seq_length 2048\n"
    )
    reading = read_config(text, "run.sh")
    assert "gpus" not in reading.facts
    assert reading.facts["zero_stage"].value == 2


def test_a_group_that_words_change_says_the_rest() -> None:
    """NVIDIA/NeMo-Megatron-Launcher examples/training/gpt/h100/20b_fp8_8node.sh: priced as the
    settings' model, without a word of the file.
    """
    words = (
        "training.trainer.num_nodes=8 training.model.micro_batch_size=2 "
        "training.model.global_batch_size=64 training.model.tensor_model_parallel_size=2"
    )
    reading = read_config(f"python3 main.py training=gpt3/20b stages=[training] {words}\n", "a.sh")
    assert [str(fact.value)[:19] for fact in reading.unread] == ["training='gpt3/20b'"]


@pytest.mark.parametrize(
    ("flag", "error"),
    [
        ("--recompute-granularity full --recompute-method chunk", MissingFacts),
        ("--recompute-granularity half", MissingFacts),
        ("--use-distributed-optimizer --zero-stage 7 --deepspeed", IllegalConfig),
    ],
)
def test_a_word_of_a_fork_is_not_called_illegal(flag: str, error: type[Exception]) -> None:
    """A choice by words may be a fork's; of numbers there are no others."""
    with pytest.raises(error, match="known are"):
        read_config(f"torchrun --nproc-per-node 8 {GPT} {flag}\n", "run.sh")


@pytest.mark.parametrize(
    ("flags", "groups"),
    [
        ("--group-query-attention --num-query-groups 4", 4),
        ("--group-query-attention", 1),  # its default beside the switch
        ("--num-query-groups 4", 8),  # idle without it
        ("", 8),
    ],
)
def test_groups_of_queries(flags: str, groups: int) -> None:
    """NVIDIA/Megatron-LM megatron/training/arguments.py, megatron/core transformer_config.py."""
    config = read_config(f"torchrun {GPT} {flags}\n", "run.sh").model_config
    assert config is not None
    assert config["num_key_value_heads"] == groups


@pytest.mark.parametrize(
    ("flags", "said"),
    [("--num-experts 8 --swiglu", True), ("--num-experts 8 --swiglu --moe-router-topk 1", False)],
)
def test_how_many_experts_a_token_has_is_said_where_it_is_assumed(flags: str, said: bool) -> None:
    """Zyphra/Megatron-LM examples/moe_1p3B_8E_bare_r0.sh: its fork takes one."""
    notes = read_config(f"torchrun {GPT} {flags}\n", "run.sh").notes
    assert any("2 experts for each token" in note for note in notes) is said


@pytest.mark.parametrize(
    ("gpus", "incomplete"),
    [pytest.param(8, True, id="one node"), pytest.param(16, False, id="two nodes")],
)
def test_levels_of_context_parallelism_within_a_node_are_not_priced(
    gpus: int, incomplete: bool
) -> None:
    """deep-spin/Megatron-LM-pretrain gpt3_mr_mcore_te_tp1_pp2_cp4_a2a_p2p: called illegal."""
    flags = f"--context-parallel-size {gpus} --cp-comm-type a2a+p2p"
    text = f"torchrun --nproc-per-node {gpus} {GPT.replace('size 2', 'size 1', 1)} {flags}\n"
    given = Settings(cluster="dgx-h100", vocab_size=32000)
    reading = read_config(text, "run.sh")
    case = resolve(reading, given, Settings())
    assert case.layout.context_kind == "hierarchical"
    if not incomplete:
        check_levels(case, reading)
        return
    with pytest.raises(MissingFacts, match="the 8 ranks are within one node"):
        check_levels(case, reading)


TITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = {tp}
{switch} = true
"""


@pytest.mark.parametrize(
    ("switch", "tp", "unread", "noted"),
    [
        ("disable_loss_parallel", 8, 1, 0),
        ("disable_loss_parallel", 1, 0, 0),  # of nothing
        ("enable_async_tensor_parallel", 8, 0, 1),  # janEbert/torchtitan llama3_405b.toml
        ("enable_async_tensor_parallel", 1, 0, 0),
    ],
)
def test_switches_of_tensor_parallelism_are_said(
    switch: str, tp: int, unread: int, noted: int
) -> None:
    """All logits on each rank are bytes that no price holds; pieces beside exchanges, seconds."""
    reading = read_config(TITAN.format(switch=switch, tp=tp), "llama3.toml")
    assert len(reading.unread) == unread
    assert sum(switch in note for note in reading.notes) == noted


def test_a_number_that_waits_for_a_variable_is_asked_for() -> None:
    """aws-neuron/neuronx-nemo-megatron test.sh: called no whole number."""
    words = "model.tensor_model_parallel_size=2 model.micro_batch_size=1 trainer.devices=8"
    text = f"GBS=$((NTASKS*32))\npython a.py {words} model.global_batch_size=$GBS\n"
    with pytest.raises(UnreadableConfig, match="--env NTASKS=VALUE"):
        read_config(text, "run.sh")


CASE = "MODEL_ARGS:\n" + "".join(
    f"  {flag}: {value}\n"
    for flag, value in (
        ("--num-layers", 24), ("--hidden-size", 1024), ("--num-attention-heads", 16),
        ("--micro-batch-size", 4), ("--global-batch-size", 128), ("--seq-length", 512),
        ("--tensor-model-parallel-size", 4), ("--bf16", "true"),
    )
)  # fmt: skip


def test_a_test_case_names_its_model_by_its_folder() -> None:
    """rioyokotalab/optimal-sparsity test_cases/bert/bert_nightly_...: read as a GPT."""
    with pytest.raises(NothingToRead, match="'bert'"):
        read_config(CASE, "tests/functional_tests/test_cases/bert/nightly/model_config.yaml")
    reading = read_config(CASE, "tests/functional_tests/test_cases/gpt/x/model_config.yaml")
    assert any("taken to train a GPT" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("folder", "gpus"),
    [
        ("gpt3_tp4_dgx_a100_2N8G", 16),
        ("gpt3_tp4_1N8G_mcore_fp8", 8),
        ("gpt3_345m_8t_release", None),
    ],
)
def test_the_folder_of_a_test_case_says_its_gpus(folder: str, gpus: int | None) -> None:
    """deep-spin/Megatron-LM-pretrain's recipe of the cases `..._1N8G` says 1 node of 8 GPUs."""
    path = f"tests/functional_tests/test_cases/gpt/{folder}/model_config.yaml"
    reading = read_config(CASE, path)
    said = reading.facts.get("gpus")
    assert (said.value if said else None) == gpus
    assert any(f"says {gpus} GPUs" in note for note in reading.notes) == (gpus is not None)


@pytest.mark.parametrize(("mode", "said"), [("inference", "nothing"), ("rl", "in turn")])
def test_a_test_case_that_does_not_train_is_skipped(mode: str, said: str) -> None:
    """flagos-ai/Megatron-LM-FL test_cases/gpt/gpt_dynamic_inference_...: read as a training run."""
    path = "tests/functional_tests/test_cases/gpt/x/model_config.yaml"
    with pytest.raises(NothingToRead, match=f"MODE {mode}.*{said}"):
        read_config(f"MODE: {mode}\n{CASE}", path)
    assert read_config(f"MODE: pretraining\n{CASE}", path).facts


def test_a_test_case_of_a_nemo_recipe_is_refused_by_name() -> None:
    """Megatron-LM test_cases/gpt-nemo/*: its keys were named one by one as not known."""
    keys = "  trainer.num_nodes: 1\n  trainer.strategy.tensor_model_parallel_size: 2\n"
    with pytest.raises(UnreadableConfig, match="NeMo 2 recipe: not read"):
        read_config(f"MODEL_ARGS:\n{keys}  data.micro_batch_size: 1\n", "model_config.yaml")


@pytest.mark.parametrize(
    ("flags", "gradient"),
    [
        ("--fp16", 2.0),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", 4.0),
        ("--bf16", 4.0),  # for which Megatron sets it itself
        ("--bf16 --grad-reduce-in-bf16", 2.0),
    ],
)
def test_gradients_have_the_bits_that_megatron_gives_them(flags: str, gradient: float) -> None:
    """NVIDIA/Megatron-LM megatron/training/arguments.py: with fp16 they were counted with 32."""
    text = f"torchrun --nproc-per-node 8 {GPT.replace('--bf16', flags)}\n"
    given = Settings(cluster="dgx-h100", vocab_size=32000)
    state = resolve(read_config(text, "run.sh"), given, Settings()).engine.state
    assert (state.gradient_bytes, state.reduce_bytes) == (gradient, gradient)


SKY = """\
num_nodes: 4
resources:
  accelerators: {cards}
envs:
  TP: {degree}
run: |
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE {gpt}
"""
POD = """\
containers:
- env: [{{name: TP, value: "{first}"}}, {{name: GPUS, value: "8"}}]
  args: ["bash", "-c", "torchrun --nproc_per_node $GPUS {gpt}"]
- env: [{{name: TP, value: "{second}"}}]
"""
ASKS = GPT.replace("size 2", "size $TP", 1)


@pytest.mark.parametrize("cards", ["H100:8", "{H100: 8}"])
def test_what_skypilot_sets_is_read(cards: str) -> None:
    reading = read_config(SKY.format(cards=cards, degree=4, gpt=ASKS), "job.yaml")
    assert reading.facts["tensor_parallel"].value == 4
    assert reading.facts["gpus"].value == 32


def test_the_variables_of_a_container_are_read() -> None:
    reading = read_config(POD.format(first=4, second=4, gpt=ASKS), "pod.yaml")
    assert (reading.facts["tensor_parallel"].value, reading.facts["gpus"].value) == (4, 8)


def test_a_variable_that_containers_set_otherwise_stays_open() -> None:
    with pytest.raises(UnreadableConfig, match=r"\$TP.*--env TP=VALUE"):
        read_config(POD.format(first=4, second=2, gpt=ASKS), "pod.yaml")


def test_the_start_wins_over_the_document() -> None:
    text = SKY.format(cards="H100:8", degree=4, gpt=ASKS)
    reading = read_config(text, "job.yaml", start=Start(environment={"TP": "2"}))
    assert reading.facts["tensor_parallel"].value == 2
