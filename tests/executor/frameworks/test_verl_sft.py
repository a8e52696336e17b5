"""verl's SFT trainer: what its scripts say, and which are refused. Run: pytest PATH."""

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.missing import MissingFacts
from meshplan.planner.case.predict import predicted
from meshplan.planner.case.reading import IllegalConfig, Reading, UnreadableConfig
from meshplan.planner.case.resolve import Case, check_case, resolve
from meshplan.planner.case.settings import Settings

# in the manner of verl-project/verl@5cac7f89 examples/sft/gsm8k/run_qwen3_8b_fsdp.sh
SCRIPT = """\
SP_SIZE=${{SP_SIZE:-2}}
extra=("data.micro_batch_size_per_gpu=4")
torchrun --nproc_per_node=8 -m verl.trainer.{trainer} model.path=Qwen/Qwen3-8B {options} \\
    data.train_batch_size=512 data.train_batch_size=256 trainer.logger='["console"]' \\
    {prefix}ulysses_sequence_parallel_size=${{SP_SIZE}} "${{extra[@]}}" "$@"
"""
SUMS = "gradients of a step's micro-batches add up whole"


def reading(options: str = "") -> Reading:
    """Of the script, with some options more."""
    text = SCRIPT.format(trainer="sft_trainer", options=options, prefix="engine.")
    return read_config(text, "run.sh")


def case(options: str = "", mean: int = 800) -> Case:
    """That script with documents of so many tokens, legal."""
    given = Settings(cluster="dgx-h100", packed_mean_length=mean)
    found = resolve(reading(options), given, Settings())
    check_case(found)
    return found


def test_micro_batches_are_packed_up_to_tokens() -> None:
    """Of 8 GPUs Ulysses takes 2, so a replica of 4 has 64 documents, 51,200 tokens, and a
    micro-batch at most 2 x 8,192: 4 of 12,800.
    """
    found = case()
    layout, training = found.layout, found.training
    assert (layout.data_parallel, layout.context_parallel, layout.zero_stage) == (4, 2, 3)
    assert (layout.micro_batch_size, training.seq_len, training.global_batch_size) == (1, 12800, 16)
    assert (training.packed_mean_length, layout.context_kind) == (800, "all_to_all")
    assert layout.recompute == "full"
    assert found.notes[0].startswith(
        "64 documents of 800 tokens are a replica's share: priced as 4"
    )


def test_micro_batches_are_counted_where_they_are_not_packed() -> None:
    """64 documents of 800 tokens, 4 at once: 16 micro-batches of 3,200."""
    found = case("data.use_dynamic_bsz=False")
    assert (found.training.seq_len, found.training.global_batch_size) == (3200, 4 * 16)


@pytest.mark.parametrize(
    ("strategy", "sums"), [("fsdp", 2.0), ("fsdp2", 4.0)]
)  # FSDP1 keeps the format that computed, FSDP2 adds up in the reduction's
def test_gradients_wait_whole_for_the_last_micro_batch(strategy: str, sums: float) -> None:
    """Where there is one micro-batch nothing waits."""
    several, one = (case(f"engine.strategy={strategy}", mean).engine.state for mean in (800, 100))
    assert (several.sums_before_reducing, one.sums_before_reducing) == (True, False)
    assert (several.sum_bytes or several.reduce_bytes) == sums


@pytest.mark.parametrize(("strategy", "copies"), [("fsdp", False), ("fsdp2", True)])
def test_weights_are_copied_out_of_what_fsdp2_gathers(strategy: str, copies: bool) -> None:
    """FSDP1's are views of it."""
    assert case(f"engine.strategy={strategy}").engine.state.unpacks_gathered is copies


@pytest.mark.parametrize(
    "option",
    [
        "model.lora_rank=32", "engine.param_offload=True", "engine.model_dtype=fp16",
        "engine.strategy=fsdp_turbo", "data.pad_mode=right", "model.use_remove_padding=False",
        "model.override_config.attn_implementation=eager", "optim.optimizer=AdamW8bit",
        "engine.mixed_precision.reduce_dtype=bf16", "engine.new_switch=3", "~engine.seed",
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_named(option: str) -> None:
    """The verdict is incomplete, by the option's own name."""
    with pytest.raises(MissingFacts, match=option.split("=")[0].rpartition(".")[2]):
        case(option)


@pytest.mark.parametrize(
    "option",
    [
        "engine.param_offload=False", "model.lora_rank=0", "engine.strategy=\\'fsdp\\'",
        "data.pad_mode=no_padding", "engine.fsdp_size=8", "engine.fsdp_size=-1",
        "+model.override_config.attn_implementation=flash_attention_2", "engine=fsdp",
    ],
)  # fmt: skip
def test_defaults_that_are_stated_change_nothing(option: str) -> None:
    """Named as they are by default."""
    assert case(option) == case()


def test_shards_in_groups_and_without_recompute() -> None:
    """Two groups of 4 GPUs; weights that stay gathered are ZeRO-2; nothing recomputes."""
    found = case("engine.fsdp_size=4").layout
    assert (found.shard_group, found.zero_stage) == (4, 3)
    kept = "engine.reshard_after_forward=False model.enable_gradient_checkpointing=False"
    layout = case(kept).layout
    assert (layout.zero_stage, layout.recompute) == (2, "none")


def test_weights_of_16_bits_have_states_of_16() -> None:
    """2 of the weight, 4 of the moments, instead of 4 and 8."""
    whole, half = (
        predicted(case(f"engine.model_dtype={word}")).memory[0] for word in ("fp32", "bf16")
    )
    assert half.optimizer == whole.optimizer / 2


def test_documents_have_the_length_that_the_data_has() -> None:
    """No option of the script says it, and nothing else is asked for."""
    with pytest.raises(MissingFacts) as missing:
        resolve(reading(), Settings(cluster="dgx-h100"), Settings(seq_len=4096))
    assert missing.value.names == ("packed_mean_length",)


def test_sizes_left_to_verl_are_said() -> None:
    """The batch is the script's, the tokens of a micro-batch are verl's."""
    said = "not stated, so verl's default: data.max_token_len_per_gpu=8192, data.max_length=1024"
    assert said in reading().notes
    assert any(note.startswith(SUMS) for note in reading().notes)


def test_no_document_is_longer_than_the_longest() -> None:
    """1,024 tokens by default; one that is longer than a micro-batch, 2 x 8,192, stops the run."""
    assert case(mean=1024).training.packed_mean_length == 1024
    with pytest.raises(IllegalConfig, match="documents of 1,025 tokens, where the longest may"):
        case(mean=1025)
    said = "a document of more than the 16,384 tokens of a micro-batch stops the run"
    noted = [any(said in note for note in reading(f"data.max_length={length}").notes)
             for length in (16384, 16385)]  # fmt: skip
    assert noted == [False, True]


def test_an_option_left_to_the_start_is_named() -> None:
    """As Hydra writes it."""
    text = SCRIPT.format(trainer="sft_trainer", options="optim.lr=1e-4", prefix="engine.")
    said = r"^data\.train_batch_size is '\$B'.*--env B=VALUE"
    with pytest.raises(UnreadableConfig, match=said):
        read_config(text.replace("=256", "=$B"), "run.sh")


def refusal(trainer: str, options: str = "", prefix: str = "engine.") -> list[str]:
    """What a refusal says."""
    text = SCRIPT.format(trainer=trainer, options=options, prefix=prefix)
    with pytest.raises(UnreadableConfig) as refused:
        read_config(text, "run.sh")
    assert str(refused.value).startswith("verl's SFT trainer")
    return str(refused.value).rstrip(")").split("; ")


def test_other_engines_are_refused_with_what_goes_into_a_plan() -> None:
    """Micro-batches are packed by default, so the documents of one do not count. Its words for
    degrees are Megatron-Bridge's too, whose reader does not take it.
    """
    assert refusal("sft_trainer", "engine=megatron engine.tensor_model_parallel_size=2")[2:] == [
        "model: model.path=Qwen/Qwen3-8B",
        "engine: engine=megatron",
        "tensor_parallel: engine.tensor_model_parallel_size=2",
        "context_parallel: engine.ulysses_sequence_parallel_size=2",
        "global_batch_size: data.train_batch_size=256",
        "longest document: data.max_length=1024 by default",
        "tokens of a packed micro-batch and GPU: data.max_token_len_per_gpu=8192 by default",
    ]
    counted = refusal("sft_trainer", "engine=megatron data.use_dynamic_bsz=False")
    assert counted[-1] == "micro_batch_size: data.micro_batch_size_per_gpu=4"


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("model=other_model", "another kind of model's options"),
        ("model.path=Qwen/Qwen3-8B-AWQ", "its name says quantised weights"),
    ],
)
def test_another_model_than_its_name_says_is_named(option: str, why: str) -> None:
    """Where a price of the named model would look as good."""
    assert any(why in str(fact.value) for fact in reading(option).unread)


def test_a_refusal_says_what_its_own_launch_states() -> None:
    """Of two launches the one that is not read, though the other comes last."""
    start = "torchrun -m verl.trainer.sft_trainer model.path=Qwen/Qwen3-8B engine="
    with pytest.raises(UnreadableConfig, match="engine: engine=megatron") as refused:
        read_config(f"{start}megatron\n{start}fsdp\n", "run.sh")
    assert refused.value.line == 1


def test_the_last_launch_of_the_trainer_before_is_said() -> None:
    """Examples of a series end with the one that runs."""
    start = "torchrun -m verl.trainer.fsdp_sft_trainer data.train_batch_size="
    with pytest.raises(UnreadableConfig, match=r"global_batch_size: data\.train_batch_size=8"):
        read_config(f"{start}4\n{start}8\necho done\n", "run.sh")


def test_flags_left_to_the_environment_are_said() -> None:
    """They may be any."""
    said = "flags of $MORE_ARGS are left to the environment"
    assert any(said in note for note in reading("$MORE_ARGS").notes)


def test_a_program_around_it_is_refused() -> None:
    """It may register an engine of its own."""
    text = "START='-m a.launch'\ntorchrun $START verl.trainer.sft_trainer engine=fsdp\n"
    around = text + 'echo "python -m verl.trainer.sft_trainer"\n'
    with pytest.raises(UnreadableConfig, match=r"started by 'a\.launch': not read"):
        read_config(around, "run.sh")


def test_the_trainer_before_says_what_it_states() -> None:
    """Its defaults are not this one's."""
    assert refusal("fsdp_sft_trainer", prefix="")[2:] == [
        "model: model.path=Qwen/Qwen3-8B",
        "context_parallel: ulysses_sequence_parallel_size=2",
        "global_batch_size: data.train_batch_size=256",
        "micro_batch_size: data.micro_batch_size_per_gpu=4",
    ]
