"""Files of repositories drawn on 2026-11-27: misread, or refused though they could be read.

Each case is the few lines of a file that decided it, with the repository it was found in.
"""

from pathlib import Path

import pytest
from unread import unread_of

from meshplan.executor.frameworks import read_config
from meshplan.executor.frameworks.shell.script import read_script
from meshplan.planner.case.reading import Reading, Start, UnreadableConfig

NONE = Start(launched_by="none")
DEGREES = "model.tensor_model_parallel_size=2 train.micro_batch_size=1 train.global_batch_size=8"


def _script(text: str) -> Reading:
    return read_config(text, "run.sh", None, NONE)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        # NovaSky-AI/SkyRL: policy and reference each have degrees of their own
        ("run.sh", "python -m skyrl.train.entrypoints.main_base trainer.strategy=megatron \\\n"
         "  trainer.policy.megatron_config.tensor_model_parallel_size=4\n", "SkyRL: not read"),
        # alibaba/ROLL
        ("a.yaml", "rollout_batch_size: 64\nactor_train:\n  strategy_args:\n"
         "    strategy_config:\n      tensor_model_parallel_size: 2\n", "ROLL: not read"),
        # RLinf/RLinf
        ("b.yaml", "cluster:\n  component_placement:\n    actor: 0-7\nactor:\n  model:\n"
         "    tensor_model_parallel_size: 2\n", "RLinf: not read"),
    ],
    ids=["SkyRL", "ROLL", "RLinf"],
)  # fmt: skip
def test_programs_that_generate_in_turn_are_refused_by_name(
    name: str, text: str, said: str
) -> None:
    with pytest.raises(UnreadableConfig, match=said):
        read_config(text, name)


def test_degrees_of_a_section_of_the_trainer_are_no_layout() -> None:
    policy = "trainer.actor.megatron.tensor_model_parallel_size=4"
    reading = _script(f"torchrun --nproc-per-node 8 train.py {policy}\n")
    assert "tensor_parallel" not in reading.facts
    assert "trainer.actor.megatron.tensor_model_parallel_size" in unread_of(reading)
    own = _script(
        "torchrun --nproc-per-node 8 train.py trainer.strategy.tensor_model_parallel_size=4\n"
    )
    assert own.facts["tensor_parallel"].value == 4
    assert not own.unread


@pytest.mark.parametrize("flag", ["--config-name gpt_sft", "--config-file conf/sft.yaml"])
def test_words_that_override_a_file_name_it(flag: str) -> None:
    # NVIDIA/NeMo-Aligner tests/functional/sft.sh: the batch is in Hydra's file
    reading = _script(f"torchrun --nproc-per-node 8 train.py {flag} {DEGREES}\n")
    assert flag.split()[0] in unread_of(reading)
    assert not _script(f"torchrun --nproc-per-node 8 train.py {DEGREES}\n").unread


@pytest.mark.parametrize("word", ["mbs=4", "+tp=2", "micro_batch_size=4"])
def test_sizes_in_no_section_are_named(word: str) -> None:
    """A program's own names, beside the overrides of a command or of an array that waits for one
    (llm-jp/ft-llm-2026 tuning/scripts/abci/train/params); what has no size passes.
    """
    command, array = f"torchrun train.py {DEGREES} {{}}\n", f"WORDS=()\nWORDS+=({DEGREES} {{}})\n"
    for text in (command, array):
        assert word in unread_of(_script(text.format(word)))
        assert not _script(text.format("lr=1e-4")).unread
        assert "model=" in unread_of(_script(text.format("model=mine/8b")))


def test_words_of_nemo_leave_the_rest_to_their_configuration() -> None:
    words = "model.mcore_gpt=True model.tensor_model_parallel_size=2 trainer.devices=8"
    reading = _script(f"python megatron_gpt_pretraining.py {words} trainer.num_nodes=1\n")
    assert "recompute" in reading.left_to_recipe
    stated = "model.activations_checkpoint_granularity=full"
    reading = _script(f"python megatron_gpt_pretraining.py {words} {stated}\n")
    assert "recompute" not in reading.left_to_recipe


def test_a_program_named_for_video_is_named() -> None:
    # AI-Hypercomputer/gpu-recipes: recipes/wan/pretrain_wan.py
    assert "pretrain_wan.py" in unread_of(
        _script(f"torchrun recipes/wan/pretrain_wan.py {DEGREES}\n")
    )
    assert not _script(f"torchrun recipes/wan/pretrain_gpt.py {DEGREES}\n").unread


def test_layouts_of_test_cases_are_written_for_a_shell() -> None:
    # krafton-ai/Megatron-Dion, NVIDIA/Megatron-LM tests/functional_tests/test_cases
    text = (
        "MODEL_ARGS:\n  --num-layers: 14\n  --hidden-size: 256\n  --num-attention-heads: 8\n"
        "  --micro-batch-size: 1\n  --pipeline-model-parallel-size: 4\n"
        r"  --pipeline-model-parallel-layout: Et*2\\|\\(tt\\|\\)*5t\\|tL" + "\n"
    )
    reading = read_config(text, "model_config.yaml")
    assert reading.placement.layers == (2, 2, 2, 2, 2, 2, 1, 1)


TRAINS = (
    "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path meta-llama/Llama-2-7b-hf "
    "--per_device_train_batch_size 2 --block_size 2048 --torch_dtype bfloat16 "
)


@pytest.mark.parametrize(
    ("flags", "states"),
    [
        pytest.param("--bf16", "bf16", id="nobody makes masters"),
        pytest.param("--bf16 --fsdp full_shard", None, id="FSDP keeps 32 bits"),
        pytest.param("--bf16 --deepspeed ds.json", None, id="DeepSpeed has masters"),
    ],
)
def test_the_format_of_loaded_weights_counts_where_nothing_casts_them(
    tmp_path: Path, flags: str, states: str | None
) -> None:
    # huggingface/transformers run_clm.py, OptimalScale/LMFlow, pjlab-sys4nlp/llama-moe
    zero = '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}'
    (tmp_path / "ds.json").write_text(zero)
    reading = read_config(TRAINS + flags, str(tmp_path / "run.sh"), None, Start())
    assert not reading.unread
    found = reading.facts.get("optimizer_states")
    assert (found and found.value) == states


def test_weights_loaded_in_another_format_than_they_run_in_are_named() -> None:
    assert "torch_dtype" in unread_of(_script(TRAINS))  # products of 32 bits
    assert "torch_dtype" in unread_of(_script(TRAINS + "--fp16"))


MEGATRON_DEEPSPEED = """\
STAGE=1
cat <<EOT > ./ds_$SLURM_JOBID.json
{{"train_micro_batch_size_per_gpu": 2, "fp16": {{"enabled": true}},
 "zero_optimization": {{"stage": $STAGE{more}}}}}
EOT
deepspeed --num_gpus 8 pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8 \\
  --seq-length 1024 --micro-batch-size 2 --global-batch-size 32 --fp16 --vocab-size 50000 \\
  --tensor-model-parallel-size 2 --deepspeed --deepspeed_config ./ds_$SLURM_JOBID.json {flags}
"""


@pytest.mark.parametrize(
    ("more", "flags", "stage", "offload", "named"),
    [
        pytest.param("", "", 1, None, "", id="the stage alone"),
        pytest.param("", "--zero-stage=1", 1, None, "", id="said twice"),
        pytest.param("", "--zero-stage 2", 2, None, "zero_stage 1", id="said otherwise"),
        pytest.param(', "offload_optimizer": {"device": "cpu"}', "--zero-stage 1", 1, True, "",
                     id="states on the host"),
        pytest.param(', "offload_param": {"device": "cpu"}', "", 1, None, "",
                     id="weights on the host, which stage 1 ignores"),
    ],
)  # fmt: skip
def test_a_deepspeed_configuration_that_the_script_writes_is_read(
    more: str, flags: str, stage: int, offload: bool | None, named: str
) -> None:
    # bigscience-workshop/bigscience, OpenLLM-France/Lucie-Training, LumiOpen/Megatron-DeepSpeed
    reading = _script(MEGATRON_DEEPSPEED.format(more=more, flags=flags))
    assert reading.facts["zero_stage"].value == stage
    found = reading.facts.get("optimizer_offload")
    assert (found and found.value) == offload
    assert named in unread_of(reading)
    assert bool(named) == bool(reading.unread)


def test_a_deepspeed_configuration_that_is_elsewhere_is_said() -> None:
    text = MEGATRON_DEEPSPEED.format(more="", flags="--zero-stage 1").replace("cat <<EOT", "tee")
    assert any("--deepspeed-config" in note for note in _script(text).notes)


def test_here_documents_are_written_as_bash_writes_them() -> None:
    text = (
        'A=4\ncat <<EOT > one.$JOB\n{"n": $A, "m": $((A * 2)), "x": "\\$A"}\nEOT\n'
        "cat > two <<'EOF'\n$A\nEOF\ncat <<-E >> two\n\tlonger $A\n\tE\ncat <<E\nseen\nE\n"
    )
    files = read_script(text).files
    assert files == {"one.$JOB": '{"n": 4, "m": 8, "x": "$A"}\n', "two": "$A\nlonger 4\n"}


TITAN = """\
[model]
name = "llama3"
flavor = "8B"
{more}
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 2
"""


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ('tokenizer_path = "./t"\nnorm_type = "rmsnorm"', ""),
        ('config = "fla-hub/transformer-1.3B-100B"', "model.config"),  # fla-org/flame
        ("n_layers = 3", "model.n_layers"),
    ],
)
def test_keys_beside_a_flavor_are_named(more: str, named: str) -> None:
    reading = read_config(TITAN.format(more=more), "train.toml")
    assert named in unread_of(reading)
    assert bool(named) == bool(reading.unread)
