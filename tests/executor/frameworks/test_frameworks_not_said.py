"""What published files state that was once read as something else, or as nothing.

Each case is a few lines of ours that state the same as the file that its comment names.
"""

import pytest

from meshplan.executor.frameworks import read_config, recognise
from meshplan.planner.case.reading import (
    IllegalConfig,
    NothingToRead,
    Recompute,
    UnreadableConfig,
)

PLAIN_FSDP = "distributed_type: FSDP\nnum_machines: 4\nnum_processes: 32\nfsdp_config:\n  "
ACCELERATE = PLAIN_FSDP + "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  "
SECOND = "fsdp_version: 2\n  "
DEEPSPEED = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3%s}%s}'
GRAPHED = (
    "from torchtitan.trainer import Trainer\n"
    "from torchtitan.config import ParallelismConfig, TrainingConfig\n\n\n"
    "def llama3_8b() -> Trainer.Config:\n"
    "    return Trainer.Config(parallelism=ParallelismConfig(), training=TrainingConfig("
    "local_batch_size=1, seq_len=8192, {}), loss=ChunkedCELoss.Config())\n"
)
TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 2048\n'


@pytest.mark.parametrize(
    ("config", "stage", "copies"),
    [
        # huggingface/trl trl/accelerate_configs/fsdp1.yaml (Apache-2.0)
        ("fsdp_reshard_after_forward: FULL_SHARD", 3, None),
        # what accelerate 1.15's launcher and plugin make of each (its other key is not taken)
        pytest.param("fsdp_reshard_after_forward: SHARD_GRAD_OP", 3, None, id="FSDP2's key"),
        pytest.param(SECOND + "fsdp_reshard_after_forward: false", 2, None, id="FSDP2"),
        pytest.param(SECOND + "fsdp_sharding_strategy: SHARD_GRAD_OP", 3, None, id="FSDP1's key"),
        pytest.param(SECOND + "fsdp_sharding_strategy: HYBRID_SHARD", 3, None, id="nor copies"),
        pytest.param("sharding_strategy: SHARD_GRAD_OP", 2, None, id="fsdp_ is added"),
        ("fsdp_sharding_strategy: 3", 0, None),
        pytest.param("fsdp_sharding_strategy: HYBRID_SHARD", 3, 4, id="32 / 4 machines share"),
        pytest.param("fsdp_sharding_strategy: 5", 2, 4, id="HYBRID_SHARD_ZERO2 by its number"),
    ],
)
def test_a_strategy_of_fsdp_says_stage_and_copies(
    config: str, stage: int, copies: int | None
) -> None:
    """FSDP1's strategies under either name, as names and as numbers; hybrid ones copy by node."""
    reading = read_config(ACCELERATE + config + "\n", "a.yaml")
    said = reading.facts.get("shard_replicas")
    assert reading.facts["zero_stage"].value == stage
    assert (said.value if said else None) == copies
    assert reading.engine == "accelerate"
    assert not reading.unread
    other = "reshard_after_forward: S" in config or SECOND + "fsdp_sharding" in config
    assert ("is not taken by accelerate" in " ".join(reading.notes)) == other


def test_the_first_names_of_precision() -> None:
    """`fp16: true` was Accelerate's before `mixed_precision`."""
    reading = read_config("distributed_type: MULTI_GPU\nnum_processes: 4\nfp16: true\n", "a.yaml")
    assert reading.facts["precision"].value == "fp16"


def test_a_bare_no_is_plain_data_parallelism() -> None:
    """YAML reads `distributed_type: NO` as false (mlcommons/training llama2_70b_lora)."""
    reading = read_config("distributed_type: NO\nnum_processes: 1\n", "a.yaml")
    assert reading.facts["zero_stage"].value == 0
    assert not reading.unread


@pytest.mark.parametrize("version", ["3", "0", "two"])
def test_a_version_of_fsdp_that_is_none_is_illegal(version: str) -> None:
    text = PLAIN_FSDP + f"fsdp_version: {version}\n"
    with pytest.raises(IllegalConfig, match=r"fsdp_version is .*known are 1, 2") as error:
        read_config(text, "a.yaml")
    assert error.value.line == text.count("\n")


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_weights_on_the_host_count_under_zero_3_alone(stage: int) -> None:
    below = f'"stage": {stage}, "offload_param": {{"device": "cpu"}}'
    text = DEEPSPEED.replace('"stage": 3%s', below) % ""
    launcher = (
        f"distributed_type: DEEPSPEED\ndeepspeed_config: {{zero_stage: {stage}, "
        "offload_param_device: cpu}\n"
    )
    for name, written in (("a.json", text), ("a.yaml", launcher)):
        reading = read_config(written, name)
        assert not reading.unread
        assert any("offload_param" in note and "stage 3 only" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        # huggingface/smollm vision/smolvlm2/scripts/zero3pp.json (Apache-2.0)
        ("a.json", DEEPSPEED % (', "zero_hpz_partition_size": 8', ""), "zero_hpz_partition_size"),
        # stanford-crfm/mistral conf/deepspeed/z3-offload-conf.json (Apache-2.0)
        ("a.json", DEEPSPEED % (', "cpu_offload_params": true', ""), "weights on the host"),
        # huggingface/accelerate examples/deepspeed_config_templates/zero_stage3_offload_config.json
        ("a.json", DEEPSPEED % (', "offload_param": {"device": "cpu"}', ""), "offload_param"),
        ("a.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, "
         "offload_param_device: cpu}\n", "offload_param_device"),
        ("a.yaml", ACCELERATE + "fsdp_offload_params: true\n", "fsdp_offload_params"),
        ("a.json", DEEPSPEED % ("", ', "data_types": {"grad_accum_dtype": "bf16"}'), "grad_accum"),
        # TurkuNLP/Megatron-DeepSpeed tests/ds_config_cl.json
        ("a.json", DEEPSPEED % ("", ', "curriculum_learning": {"enabled": true}'), "curriculum"),
        ("a.json", DEEPSPEED % ("", ', "of_a_later_release": {"size": 2}'), "of_a_later_release"),
        ("a.yaml", "distributed_type: MEGATRON_LM\nmegatron_lm_config: {tp: 8}\n", "MEGATRON_LM"),
        ("a.yaml", PLAIN_FSDP + "fsdp_auto_wrap_policy: NO_WRAP\n", "auto_wrap_policy"),
        ("a.yaml", PLAIN_FSDP + "fsdp_version: 2\n", "one unit"),
        ("a.yaml", ACCELERATE + "fsdp_of_a_later_release: 2\n", "later_release"),
        # huggingface/trl examples/accelerate_configs/alst_ulysses_4gpu.yaml (Apache-2.0)
        ("a.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n"
         "parallelism_config: {parallelism_config_sp_size: 2}\n", "sp_size 2"),
        # pytorch/torchtitan experiments/flux (BSD-3-Clause)
        ("a.toml", TITAN + '[encoder]\nt5_encoder = "x"\n[parallelism]\n', "encoder"),
        # huggingface/nanotron examples/mamba (Apache-2.0)
        ("a.yaml", "parallelism: {dp: 2}\ntokens: {}\nmodel:\n  model_config:\n    d_model: 8\n",
         "model_config"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_named(name: str, text: str, named: str) -> None:
    """Keys that change memory, batch or layout leave nothing to price, and are named."""
    (fact, *_) = read_config(text, name).unread
    assert any(each in str(fact.value) for each in named.split("|"))


@pytest.mark.parametrize(
    "more",
    [
        ', "curriculum_learning": {"enabled": false}',
        ', "flops_profiler": {"enabled": true, "profile_step": 1}',
        ', "data_types": {"grad_accum_dtype": "fp32"}',
        ', "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}',
        ', "bf16": {"enabled": "auto"}, "of_a_later_release": "auto"',
    ],
)
def test_what_changes_nothing_is_not_named(more: str) -> None:
    """A section that is off, a log, a default, and what Hugging Face fills in."""
    assert not read_config(DEEPSPEED % ("", more), "a.json").unread


def test_the_old_names_of_torchtitan_are_read() -> None:
    """Degrees in [training] and [experimental], `batch_size`, accumulation: as flame has them."""
    text = TITAN + (
        "batch_size = 32\ngradient_accumulation_steps = 4\ntensor_parallel_degree = 2\n"
        "data_parallel_shard_degree = 8\n[experimental]\ncontext_parallel_degree = 2\n"
    )
    facts = read_config(text, "a.toml", "torchtitan").facts
    said = {name: facts[name].value for name in ("micro_batch_size", "num_micro_batches",
            "tensor_parallel", "data_parallel", "context_parallel")}  # fmt: skip
    assert said == {"micro_batch_size": 32, "num_micro_batches": 4, "tensor_parallel": 2,
                    "data_parallel": 8, "context_parallel": 2}  # fmt: skip


@pytest.mark.parametrize(("local", "rounds"), [(8, 1), (4, 2), (3, 0), (16, 0)])
def test_a_local_batch_of_torchtitan_divides_the_global_one(local: int, rounds: int) -> None:
    """32 sequences of four replicas: local x 4 x rounds, or its trainer stops (train.py)."""
    text = TITAN + (
        f"local_batch_size = {local}\nglobal_batch_size = 32\n[parallelism]\n"
        "data_parallel_shard_degree = 4\npipeline_parallel_degree = 2\n"
    )
    if not rounds:
        with pytest.raises(IllegalConfig, match=f"local_batch_size {local} x 4 replicas"):
            read_config(text, "a.toml", "torchtitan")
        return
    reading = read_config(text, "a.toml", "torchtitan")
    assert any("several times" in note for note in reading.notes) is (rounds > 1)


def test_a_file_of_inference_trains_nothing() -> None:
    """NeMo's inference and converters have a trainer and no optimizer."""
    text = "trainer: {devices: 8}\ntensor_model_parallel_size: 8\npipeline_model_parallel_size: 1\n"
    with pytest.raises(NothingToRead, match="it trains nothing"):
        read_config(text, "a.yaml", "bridge")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("_target_: verl.workers.config.RolloutConfig\ntensor_model_parallel_size: 2\n", "verl"),
        ("rlhf_type: grpo\ntensor_model_parallel_size: 2\nmicro_batch_size: 1\n", "ms-swift"),
        # hiyouga/LLaMA-Factory examples/megatron/qwen2_vl_full.yaml (Apache-2.0)
        (
            "finetuning_type: full\ncutoff_len: 4096\ntensor_model_parallel_size: 4\n",
            "LLaMA-Factory on Megatron",
        ),
        ("includes:\n  - primus_megatron_model.yaml\ntensor_model_parallel_size: 1\n", "Primus"),
    ],
)
def test_trainers_that_also_generate_are_refused_by_name(text: str, name: str) -> None:
    """Their Megatron keys mean one part of a job; the Megatron reader does not take them."""
    found = recognise("a.yaml", text)
    assert found is not None
    with pytest.raises(UnreadableConfig, match=name):
        found.read(text, "a.yaml", None)


REGISTRY = """
from torchtitan.config import ParallelismConfig, TrainingConfig
from . import model_registry

def _base(flavor) -> Trainer.Config:
    return Trainer.Config(
        training=TrainingConfig(local_batch_size=2, seq_len=8192),
        activation_checkpoint=SelectiveAC.Config(),
    )

def llama3_8b() -> Trainer.Config:
    return _base("8B")

def llama3_70b() -> Trainer.Config:
    config = _base("70B")
    config.parallelism.tensor_parallel_degree = 8
    config.training.local_batch_size = 1
    return config

def adapters() -> Trainer.Config:
    config = llama3_8b()
    config.model_spec = model_registry("8B", converters=[LoRAConverter.Config(rank=8)])
    return config
"""


def test_each_function_of_a_registry_is_a_case() -> None:
    """torchtitan's registries (0.3 models/llama3/config_registry.py, BSD-3-Clause) build one
    configuration on another; where the file does not say which model, the function's name does.
    """
    small, large, adapted = (
        case
        for first in [read_config(REGISTRY, "config_registry.py")]
        for case in (first, *first.others)
    )
    assert [case.notes[0] for case in (small, large)] == [
        "the configuration 'llama3_8b'", "the configuration 'llama3_70b'",
    ]  # fmt: skip
    names = ("model", "micro_batch_size", "seq_len", "tensor_parallel")
    assert [[case.facts[name].value if name in case.facts else None for name in names]
            for case in (small, large)] == [
        ["llama-3.1-8b", 2, 8192, None], ["llama-3.1-70b", 1, 8192, 8],
    ]  # fmt: skip
    assert small.recompute == large.recompute
    assert small.recompute.mode == "selective"
    assert "LoRAConverter" in str(adapted.unread[0].value)


@pytest.mark.parametrize(("more", "said"), [("", True), ("disable_cuda_graphs=True", False)])
def test_a_graph_of_the_whole_step_is_said(more: str, said: bool) -> None:
    """torchtitan's Python captures forward and backward unless told not to."""
    reading = read_config(GRAPHED.format(more), "a.py")
    assert ("a CUDA graph" in " ".join(reading.notes)) is said
    assert not read_config(TITAN + "[parallelism]\n", "a.toml").notes


def test_functions_that_call_each_other_end() -> None:
    """A function that starts from itself starts from nothing; 201 functions are too many."""
    loop = REGISTRY.replace('_base("8B")', "llama3_70b()").replace('_base("70B")', "llama3_8b()")
    assert read_config(loop, "a.py").others
    many = REGISTRY + "".join(f"def f{i}():\n    pass\n" for i in range(197))
    with pytest.raises(UnreadableConfig, match="201 functions"):
        read_config(many, "a.py")


TEST_CASE = (
    "BASE: &BASE\n  --num-layers: 4\n  --hidden-size: 64\n  --num-attention-heads: 4\n"
    "  --seq-length: 512\n  --bf16: true\n  --use-distributed-optimizer: true\n"
    "MODEL_ARGS:\n  <<: *BASE\n  --micro-batch-size: 2\n  --tensor-model-parallel-size: 1\n"
    "MODEL_ARGS_2:\n  <<: *BASE\n  --micro-batch-size: 1\n  --tensor-model-parallel-size: 2\n"
)


def test_each_run_of_a_test_case_has_what_it_merges() -> None:
    """NVIDIA/Megatron-LM tests/functional_tests gpt3_mcore_reruns_resume_check_grads: several runs
    in one YAML, all upon the same arguments.
    """
    first = read_config(TEST_CASE, "model_config.yaml")
    (second,) = first.others
    names = ("tensor_parallel", "micro_batch_size", "seq_len", "precision", "zero_stage")
    assert [first.facts[name].value for name in names] == [1, 2, 512, "bf16", 1]
    assert [second.facts[name].value for name in names] == [2, 1, 512, "bf16", 1]


PART = (
    'MODEL_ARGS="--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --bf16 '
    '--micro-batch-size 1 --seq-length 4096 %s"\n'
)


@pytest.mark.parametrize(
    ("degrees", "command", "named", "noted"),
    [
        pytest.param("", "", True, False, id="a part: another script may state the degrees"),
        pytest.param("--tensor-model-parallel-size 4", "", False, True, id="a whole, never run"),
        pytest.param("", "torchrun pretrain_gpt.py $MODEL_ARGS\n", False, False, id="a run"),
    ],
)
def test_arguments_that_no_command_takes(
    degrees: str, command: str, named: bool, noted: bool
) -> None:
    """A part of a script (Megatron's examples/post_training/modelopt/conf) says nothing of degrees:
    what sources it does."""
    text = "#!/bin/bash\n# --micro-batch-size\n" + PART % degrees + command
    reading = read_config(text, "conf.sh")
    assert ("the degrees" in str([fact.value for fact in reading.unread])) is named
    assert any("read from its variables" in note for note in reading.notes) is noted


def test_a_module_that_megatron_recomputes_is_read() -> None:
    """GeodesicResearch/geodesic-megatron replays shared experts alone."""
    text = (
        "model: {tensor_model_parallel_size: 1, recompute_granularity: selective, "
        "recompute_modules: [shared_experts]}\ntrain: {micro_batch_size: 1}\n"
    )
    reading = read_config(text, "overrides.yaml", "bridge")
    assert reading.facts["selective_modules"].value == ("shared_experts",)
    with pytest.raises(UnreadableConfig, match=r"gdn_norm_out.*not modelled"):
        read_config(text.replace("shared_experts", "gdn_norm_out"), "overrides.yaml", "bridge")


def test_which_release_a_selective_recompute_is_of() -> None:
    """A file that has `selective_ac_option` is of the month whose default was every second layer
    (pytorch/torchtitan@9810191bb torchtitan/config/configs.py); of another a note says what is
    taken.
    """
    one = 'def {}():\n    return Trainer.Config(model_spec=model_registry("8B"), '
    one += "training=TrainingConfig(local_batch_size=1), activation_checkpoint={})\n"
    plain = one.format("a", 'ActivationCheckpointConfig(mode="selective")')
    by_op = one.format("b", 'ActivationCheckpointConfig(selective_ac_option="op")')
    alone, older = (read_config(text, "config_registry.py", "torchtitan-0.3")
                    for text in (plain, plain + by_op))  # fmt: skip
    assert alone.recompute == Recompute("selective")
    assert "by operator" in alone.notes[-1]
    assert older.recompute == Recompute("full", every=2)
    assert [each.recompute for each in older.others] == [Recompute("selective")]
    assert not any("by operator" in note for note in older.notes)


@pytest.mark.parametrize("assigned", [False, True])
@pytest.mark.parametrize(
    ("policy", "recompute"),
    [
        ("FullAC.Config()", Recompute("full")),
        ("SelectiveAC.Config()", Recompute("selective")),
        ("None", Recompute("none")),
        ('ActivationCheckpointConfig(mode="full")', Recompute("full")),
        ('ActivationCheckpointConfig(mode="none")', Recompute("none")),
        (
            'ActivationCheckpointConfig(mode="selective", selective_ac_option="op")',
            Recompute("selective"),
        ),
        ("ActivationCheckpointConfig()", Recompute("selective")),  # since 2026-03-23
        ('ActivationCheckpointConfig(mode="selective")', Recompute("selective")),
        ('ActivationCheckpointConfig(mode="memory_budget")', None),
        ("MemoryBudgetAC.Config(memory_budget=0.5)", None),
    ],
)
def test_what_torchtitan_recomputes_is_read_or_named(
    policy: str, recompute: Recompute | None, assigned: bool
) -> None:
    """A policy's class, the mode of releases before 0.3, and no other as if nothing were said."""
    given = ", training=TrainingConfig(local_batch_size=1)"
    given += "" if assigned else f", activation_checkpoint={policy}"
    text = "def debug():\n"
    text += f'    config = Trainer.Config(model_spec=model_registry("8B"){given})\n'
    text += f"    config.activation_checkpoint = {policy}\n" if assigned else ""
    text += "    return config\n"
    reading = read_config(text, "config_registry.py", "torchtitan-0.3")
    named = any("activation_checkpoint" in str(fact.value) for fact in reading.unread)
    assert named == (recompute is None)
    assert recompute in (None, reading.recompute)


@pytest.mark.parametrize("inner", ["-" * 500 + "1", "+".join("1" * 500), "x" + ".y" * 500])
def test_python_nested_too_deep_is_one_line(inner: str) -> None:
    """Syntax deeper than any config's: what walks the tree would run out of stack."""
    text = f"def debug():\n    return Trainer.Config(training=TrainingConfig(steps={inner}))\n"
    with pytest.raises(UnreadableConfig, match="nested more than 100 deep"):
        read_config(text, "config_registry.py", "torchtitan-0.3")


def test_what_a_launch_script_leaves_to_its_environment_is_named() -> None:
    """NVIDIA-NeMo/Megatron-Bridge examples/models/deepseek_v4/slurm_pretrain.sh reads its degrees
    into variables: `$TP` is as open as `${TP}`.
    """
    for written in ("$TP", "${TP}"):
        text = f"run_recipe.py model.tensor_model_parallel_size={written} train.micro_batch_size=1"
        with pytest.raises(UnreadableConfig, match="which the file does not set"):
            read_config(text, "run.sh", "bridge")
