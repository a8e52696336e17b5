"""Megatron-Bridge's recipes in Python: functions that return a ConfigContainer, followed."""

from pathlib import Path

import pytest

from meshplan.executor.frameworks import read_config, recognise
from meshplan.planner.case.reading import IllegalConfig, NothingToRead, Reading

RECIPE = """
import os
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import base
from megatron.bridge.training.mixed_precision import bf16_with_mxfp8_mixed, bf16_mixed


def _common(tp: int = 2) -> ConfigContainer:
    cfg = ConfigContainer(
        train=TrainingConfig(global_batch_size=64, micro_batch_size=1),
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=True),
        optimizer=OptimizerConfig(optimizer="adam"), dataset=GPTDatasetConfig(seq_length=4096),
        mixed_precision="bf16_mixed", model=None,
    )
    cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen3-8B").to_megatron_provider(False)
    cfg.model.tensor_model_parallel_size = tp
    cfg.model.sequence_parallel = tp > 1
    return cfg


def own_pretrain_16gpu_h100_config() -> ConfigContainer:
    cfg = _common(tp=4)
    {body}
    return cfg
"""


def _read(body: str = "pass") -> Reading:
    return read_config(RECIPE.replace("{body}", body), "recipes.py")


def _values(reading: Reading) -> dict[str, object]:
    return {name: fact.value for name, fact in reading.facts.items()}


def test_a_recipe_states_its_layout_model_and_batch() -> None:
    """The GPUs are those of its name; the line is that of the function's own file."""
    reading = _read("cfg.model.context_parallel_size = 2")
    said = _values(reading)
    assert (said["tensor_parallel"], said["context_parallel"], said["zero_stage"]) == (4, 2, 1)
    assert (said["model"], said["gpus"], said["sequence_parallel"]) == ("qwen3-8b", 16, True)
    assert (said["seq_len"], said["global_batch_size"]) == (4096, 64)
    assert not reading.unread
    assert not reading.left_to_recipe
    line = RECIPE[: RECIPE.index("{body}")].count("\n") + 1
    assert reading.facts["context_parallel"].line == line


@pytest.mark.parametrize(
    ("body", "precision", "engine"),
    [
        pytest.param("pass", "bf16", "megatron", id="by its name: sums of 32 bits"),
        pytest.param("cfg.ddp.grad_reduce_in_fp32 = False", "bf16", "megatron", id="it wins"),
        pytest.param("cfg.mixed_precision = bf16_mixed()\n"
                     "    cfg.mixed_precision.grad_reduce_in_fp32 = False",
                     "bf16", "megatron-bridge", id="of its class: of 16"),
        pytest.param("cfg.mixed_precision = bf16_with_mxfp8_mixed()", "mxfp8", "megatron", id="mx"),
    ],
)  # fmt: skip
def test_mixed_precision_decides_how_gradients_are_summed(
    body: str, precision: str, engine: str
) -> None:
    """training/mixed_precision.py, `setup`: its fields are copied over those of `ddp`."""
    reading = _read(body)
    assert (_values(reading)["precision"], reading.engine) == (precision, engine)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("cfg.model.num_layers = 12", "model.num_layers 12 (it changes the model"),
        ("cfg.model.num_layers = 36", ""),  # as Qwen3-8B has
        (
            "if unknown():\n        cfg.model.tensor_model_parallel_size = 8",
            "tensor_model_parallel",
        ),
        ("if unknown():\n        cfg.ddp.grad_reduce_in_fp32 = False", ""),  # precision decides
        ("cfg.mixed_precision = unknown(4)", "mixed_precision = unknown(4)"),
        ("cfg.ddp = unknown(4)", "ddp = unknown(4)"),
        ("cfg.optimizer, cfg.scheduler = unknown(4)", "optimizer = "),
        ("change(cfg)", "change(cfg) (it may change it)"),
        ("cfg.peft = DoRA(dim=4)", "adapters other than LoRA"),
        ("cfg.logger.x = unknown()", ""),
        ("cfg = base()", "what base() of another file says"),
        ("for n in unknown():\n        return cfg", "a loop over unknown()"),
    ],
)
def test_what_a_recipe_does_that_is_not_read_is_named(body: str, named: str) -> None:
    unread = [str(fact.value) for fact in _read(body).unread]
    assert bool(unread) == bool(named)
    assert not named or any(named in each for each in unread), unread


@pytest.mark.parametrize(("body", "word"), [
    ("pass", "native"), ('cfg.model.cross_entropy_fusion_impl = "te"', "te"),
    ("cfg.model.cross_entropy_loss_fusion = False", "unfused"),
])  # fmt: skip
def test_a_recipe_decides_which_loss_runs(body: str, word: str) -> None:
    """What it does not set is as its model has it: fused, by Megatron-Core's own."""
    assert _read(body).loss == word


def test_lora_has_megatron_bridges_rank() -> None:
    named = "cfg.peft = default_peft_config('lora')\n    cfg.peft.dim = 4"
    ranks = {"cfg.peft = LoRA()": 32, "cfg.peft = LoRA(dim=8, alpha=16)": 8, named: 4}
    for body, rank in ranks.items():
        lora = _read(body).facts["lora"].value
        assert lora.rank == rank


def test_the_exchange_of_experts_is_what_its_helper_sets() -> None:
    """training/flex_dispatcher_backend.py, on a GPU that has it."""
    body = ("cfg.model.expert_model_parallel_size = 4\n"
            "    apply_flex_dispatcher_backend(cfg.model, 'deepep')")  # fmt: skip
    reading = _read(body)
    assert _values(reading)["dispatcher"] == "deepep"


def test_each_recipe_is_a_case_and_a_file_of_names_is_none(tmp_path: Path) -> None:
    """A function that must be told something is none by itself."""
    again = RECIPE.replace("{body}", "pass") + (
        "\n\ndef other_config() -> ConfigContainer:\n    return _common()\n\n\n"
        "def needs(x) -> ConfigContainer:\n    return _common(x)\n\n\n"
        "def known(x=1) -> ConfigContainer:\n    return _common(x)\n"
    )
    reading = read_config(again, "recipes.py")
    assert [_values(case)["tensor_parallel"] for case in (reading, *reading.others)] == [4, 2, 1]
    only = "from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\n"
    assert recognise("a.py", only)
    with pytest.raises(NothingToRead, match="without a function"):
        read_config(only, "a.py")


def test_a_number_of_the_environment_is_noted() -> None:
    """Its default is priced, and the option that says another is named."""
    reading = _read("cfg.model.context_parallel_size = int(os.environ.get('CP', 2))")
    assert _values(reading)["context_parallel"] == 2
    assert "CP of the environment is taken as 2, the program's default" in " ".join(reading.notes)


_PACKS = "cfg.dataset.offline_packing_specs = PackedSequenceSpecs(packed_sequence_size={})"


@pytest.mark.parametrize(
    ("body", "length", "note"),
    [
        pytest.param("pass", 4096, "", id="pre-training"),
        pytest.param("cfg.dataset.packed_sequence_specs = None", 4096, "not packed", id="alone"),
        pytest.param(_PACKS.format(1024), 1024, "documents of a pack", id="packs"),
        pytest.param("cfg.dataset.pack_sequences_in_batch = True", 4096, "in their", id="in batch"),
    ],
)
def test_a_pack_of_documents_is_a_sequence(body: str, length: int, note: str) -> None:
    """The data's own length is that of a sample then (data/builders/gpt_sft.py)."""
    reading = _read(body)
    assert _values(reading)["seq_len"] == length
    assert any(note in each and "priced as" in each for each in reading.notes) == bool(note)


def test_a_pack_is_a_micro_batch_of_its_own() -> None:
    """training/config.py, `validate`; a size that is not known is named."""
    with pytest.raises(IllegalConfig, match="micro_batch_size 2 with packed sequences"):
        _read(f"cfg.train.micro_batch_size = 2\n    {_PACKS.format(4096)}")
    unread = [str(fact.value) for fact in _read(_PACKS.format("unknown()")).unread]
    assert any("packed_sequence_size = unknown()" in each for each in unread)


def test_packs_of_overrides_are_read_too() -> None:
    text = (
        "model: {tensor_model_parallel_size: 2}\ntrain: {micro_batch_size: 1}\n"
        "dataset: {seq_length: 512, packed_sequence_specs: {packed_sequence_size: 8192}}\n"
    )
    assert _values(read_config(text, "sft.yaml", "bridge"))["seq_len"] == 8192
