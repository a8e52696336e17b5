"""Trainers' configurations: what is read of them, and what is named instead of misread.

The keys are those that the trainers' own examples use (axolotl-ai-cloud/axolotl@067b021c examples/,
hiyouga/LLaMA-Factory@ff6d4d12 examples/); the files are written for these tests.
"""

import json
from pathlib import Path

import pytest
from trainer_files import AXOLOTL, BARE, FACTORY

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.settings import Settings
from meshplan.planner.check.check import check_paths
from meshplan.planner.cli.check import tools

TRAINER = {
    "model_name_or_path": "meta-llama/Llama-3.2-1B", "output_dir": "out",
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_seq_length": 1024,
    "bf16": True, "fsdp": "full_shard auto_wrap", "fsdp_config": {"reshard_after_forward": True},
    "parallelism_config": {"tp_size": 2, "dp_shard_size": 4},
}  # fmt: skip
ZERO3 = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}
GIVEN = Settings(cluster="dgx-h100", gpus=8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """DeepSpeed's JSON where the files name it."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "zero3.json").write_text(json.dumps(ZERO3))
    return tmp_path


def finding(path: Path, text: str):
    """What `check` says of one file."""
    path.write_text(text)
    (found,) = check_paths([path], tools(), GIVEN)
    return found


@pytest.mark.parametrize(
    ("name", "text", "facts"),
    [
        ("axolotl", AXOLOTL, {"model": "llama-3.1-8b", "seq_len": 4096, "micro_batch_size": 2,
                              "num_micro_batches": 4, "zero_stage": 3, "optimizer": "adamw"}),
        ("llama-factory", FACTORY, {"model": "qwen3-8b", "seq_len": 2048, "micro_batch_size": 1,
                                    "num_micro_batches": 8, "zero_stage": 3}),
    ],
)  # fmt: skip
def test_facts_of_yaml(folder: Path, name: str, text: str, facts: dict[str, object]) -> None:
    """Model, lengths, batch and the ZeRO stage of the JSON that the file names."""
    reading = read_config(text, str(folder / "train.yaml"))
    assert (reading.framework, reading.engine) == (name, "deepspeed")
    assert {key: reading.facts[key].value for key in facts} == facts
    assert reading.unread == ()
    assert reading.recompute.mode == "full"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        # axolotl-ai-cloud/axolotl@067b021c examples/qat_nvfp4/Gemma3-12B_baseline.yml (Apache-2.0)
        pytest.param("fsdp_config:\n  activation_checkpointing: true\n  state_dict_type: X\n",
                     ("accelerate", 3, "full"), id="FSDP's own recompute"),
        # examples/archived/dbrx/16bit-lora.yaml
        pytest.param("fsdp: [full_shard, auto_wrap]\nfsdp_config:\n"
                     "  fsdp_activation_checkpointing: true\n", ("accelerate", 3, "full"),
                     id="under FSDP1's name"),
        # examples/llama-3/qlora-fsdp-70b.yaml: an empty key above says nothing
        pytest.param("deepspeed:\nfsdp:\n  - full_shard\n  - auto_wrap\n",
                     ("accelerate", 3, "none"), id="an empty deepspeed, and FSDP"),
        # examples/archived/cerebras/btlm-ft.yml
        pytest.param("deepspeed:\nfsdp:\n#  - full_shard\nfsdp_config:\n",
                     ("accelerate", 0, "none"), id="nothing but empty keys"),
        pytest.param("fsdp_config: {reshard_after_forward: false}\n", ("accelerate", 2, "none"),
                     id="FSDP2 that keeps weights"),
        pytest.param("fsdp: [full_shard]\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}\n",
                     ("accelerate", 2, "none"), id="FSDP1's strategy"),
        pytest.param("deepspeed:\n  zero_optimization: {stage: 2}\n", ("deepspeed", 2, "none"),
                     id="DeepSpeed's content in the file"),
    ],
)  # fmt: skip
def test_sharding_of_axolotl(more: str, said: tuple[str, int, str]) -> None:
    """The engine, the ZeRO stage and the recompute, as axolotl's own schema resolves them."""
    reading = read_config(BARE + more, "train.yaml")
    assert (reading.engine, reading.facts["zero_stage"].value, reading.recompute.mode) == said
    assert not reading.unread


IN_PIECES = "accelerate-chunked-loss"
LIGER = "plugins: [axolotl.integrations.liger.LigerPlugin]\n"
CUT = "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n"


@pytest.mark.parametrize(
    ("more", "engine"),
    [
        pytest.param("", "accelerate", id="transformers' own loss"),
        pytest.param("use_liger_kernel: true\n", IN_PIECES, id="Liger's"),
        pytest.param(LIGER + "liger_fused_linear_cross_entropy: true\n", IN_PIECES,
                     id="axolotl's plugin and its switch"),
        pytest.param(LIGER + "liger_rope: true\n", "accelerate", id="its rotation alone"),
        pytest.param(CUT, IN_PIECES, id="Apple's cut cross entropy, on where it is named"),
        pytest.param(CUT + "cut_cross_entropy: false\n", "accelerate", id="and switched off"),
        pytest.param("chunked_cross_entropy: true\n", IN_PIECES, id="axolotl's chunks"),
    ],
)  # fmt: skip
def test_which_loss_has_all_logits_at_once(more: str, engine: str) -> None:
    """No more than a part of them is there where the file says so, else all of them in fp32."""
    reading = read_config(BARE + more, "train.yaml")
    assert (reading.engine, reading.unread) == (engine, ())


@pytest.mark.parametrize("loss", ["use_dft_loss", "use_eaft_loss"])
def test_a_loss_of_its_own_has_all_logits_beside_liger(folder: Path, loss: str) -> None:
    """LLaMA-Factory's compute_loss_func: the model is called without the labels, and Liger's
    forward (linkedin/Liger-Kernel) makes its loss in pieces of labels alone.
    """
    path, text = str(folder / "sft.yaml"), f"{FACTORY}\nenable_liger_kernel: true\n"
    engines = [read_config(f"{text}{loss}: {on}\n", path).engine for on in ("false", "true")]
    assert engines == ["deepspeed-chunked-loss", "deepspeed"]


# Llama 3.1 8B, QLoRA of rank 32 on all linear layers, checkpoints, by Hugging Face's modules with
# FlashAttention-2: the longest sequence on a card of 24 GB is 5,789 tokens
# (docs.unsloth.ai/basics/unsloth-benchmarks)


# axolotl-ai-cloud/axolotl@067b021c examples/llama-3/fft-8b.yaml, whose README says "Single GPU @
# 48GB VRAM" (Apache-2.0)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        pytest.param(AXOLOTL, "4096", id="axolotl"),
        pytest.param(FACTORY, "2048", id="llama-factory"),
        pytest.param(AXOLOTL + "sample_packing: false\n", "4096", id="said not to be"),
        pytest.param(AXOLOTL + "sample_packing: true\n", None, id="packed"),
        pytest.param(AXOLOTL + "pad_to_sequence_len: true\n", None, id="filled up"),
        pytest.param(FACTORY + "neat_packing: true\n", None, id="packed by its other name"),
        pytest.param(FACTORY.replace("sft", "pt"), None, id="texts of pretraining are packed"),
    ],
)
def test_samples_that_are_not_packed_are_a_note(
    folder: Path, text: str, length: str | None
) -> None:
    """They are priced as long as the sequence, and few are."""
    notes = [n for n in finding(folder / "train.yaml", text).notes if "not packed" in n]
    expected = (
        f"samples are not packed: priced with {length} tokens each, the most; fewer need less"
    )
    assert notes == ([expected] if length else [])


def test_the_former_name_of_context_parallelism() -> None:
    """axolotl 0.19 src/axolotl/utils/schemas/validation.py hands sequence_parallel_degree on."""
    reading = read_config(BARE + "sequence_parallel_degree: 4\n", "train.yaml")
    assert reading.facts["context_parallel"].value == 4
    assert not reading.unread


def test_pure_bf16_beside_deepspeed_is_refused_as_llama_factory_does(folder: Path) -> None:
    """Beside ZeRO-3; beside ZeRO-2, which is told of no format, it is named."""
    found = finding(folder / "train.yaml", FACTORY + "pure_bf16: true\n")
    assert (found.verdict, "pure_bf16 beside ZeRO-3" in found.text) == ("illegal", True)
    (folder / "configs" / "zero3.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    found = finding(folder / "train.yaml", FACTORY + "pure_bf16: true\n")
    assert (found.verdict, "pure_bf16 (beside" in found.text) == ("incomplete", True)


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"autotuning": {"enabled": True, "fast": False}}, "autotuning.enabled"),
        ({"autotuning": {"enabled": False}}, ""),
        ({"autotuning": {"fast": True}}, ""),
    ],
)
def test_what_the_tuner_of_deepspeed_tries_is_not_known(
    folder: Path, section: dict[str, object], named: str
) -> None:
    """A key that is listed by its own name counts before the section that is listed whole."""
    (folder / "configs" / "zero3.json").write_text(json.dumps(ZERO3 | section))
    found = finding(folder / "train.yaml", FACTORY)
    assert found.verdict == ("incomplete" if named else "fits")
    assert named in found.text


def test_updates_of_superoffload_that_overlap_are_a_note(folder: Path) -> None:
    offload = {"device": "cpu", "ratio": 0.9, "super_offload": True}
    zero3 = {"zero_optimization": {"stage": 3, "offload_optimizer": offload}}
    (folder / "configs" / "zero3.json").write_text(json.dumps(ZERO3 | zero3))
    assert "super_offload" in " ".join(finding(folder / "train.yaml", FACTORY).notes)


def test_kernels_of_axolotl_that_are_not_priced_are_a_note(folder: Path) -> None:
    more = "deepcompile: true\nexperts_implementation: eager\n"
    notes = " ".join(finding(folder / "train.yaml", AXOLOTL + more).notes)
    assert "deepcompile, experts_implementation" in notes


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("fsdp: [full_shard]\nfsdp_config: {cpu_offload: true}\n", "fsdp offload"),
        ("fsdp: [hybrid_shard]\n", "hybrid_shard"),
        ("fsdp: full_shard auto_wrapp\n", "fsdp 'auto_wrapp' (not one of auto_wrap"),
        ("fsdp: [full_shard]\nfsdp_config: {of_a_later_release: 2}\n", "of_a_later_release"),
        ("fsdp: [full_shard]\nparallelism_config: {of_a_later_release: 2}\n", "later_release"),
        ("deepspeed:\n  zero_optimization: {stage: 3, offload_param: {device: cpu}}\n",
         "offload_param"),
    ],
)  # fmt: skip
def test_a_section_hides_nothing(more: str, named: str) -> None:
    """What a section states and nobody reads is named, as a key of the file's own level is."""
    assert any(named in str(fact.value) for fact in read_config(BARE + more, "a.yaml").unread)


def test_the_optimizer_of_an_inline_deepspeed_may_be_on_the_host() -> None:
    """DeepSpeed's content says as much inside another file as in its own."""
    more = "deepspeed:\n  zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}\n"
    assert read_config(BARE + more, "a.yaml").facts["optimizer_offload"].value is True


def test_facts_of_training_arguments() -> None:
    """FSDP with tensor parallelism, as transformers takes it."""
    reading = read_config(json.dumps(TRAINER), "args.json")
    assert (reading.framework, reading.engine) == ("hf-trainer", "accelerate")
    expected = {"model": "llama-3.2-1b", "zero_stage": 3, "tensor_parallel": 2}
    assert {key: reading.facts[key].value for key in expected} == expected
    assert reading.recompute.mode == "none"
    assert reading.unread == ()


def test_a_config_is_checked_end_to_end(folder: Path) -> None:
    """8B with ZeRO-3 on 8 H100: it fits, and the engine that priced it is said to be assumed."""
    found = finding(folder / "train.yaml", AXOLOTL)
    assert found.verdict == "fits"
    assert "assumed of axolotl" in " ".join((found.text, *found.notes))


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("adapter: lora", "adapter 'lora'"),
        ("load_in_4bit: true", "load_in_4bit"),
        ("optimizer: lion", "optimizer 'lion'"),
        ("rl: dpo", "rl (training by preferences"),
        ("quantize_moe_experts: true", "quantize_moe_experts (weights of fewer bits"),
        ("plugins: [axolotl.integrations.spectrum.SpectrumPlugin]", "SpectrumPlugin"),
        ("tiled_mlp: true", "tiled_mlp (feed-forwards cut into tiles"),
        ("device_map: auto", "device_map (layers placed on GPUs by Accelerate"),
        ("optim_target_modules: [a]", "optim_target_modules"),
        ("a_key_of_next_year: 7", "a_key_of_next_year (not known)"),
        ("deepspeed: absent.json", "deepspeed 'absent.json'"),
        ("gradient_checkpointing: offload", "gradient_checkpointing 'offload'"),
    ],
)
def test_what_is_not_modelled_is_named(folder: Path, line: str, named: str) -> None:
    """Adapters, quantised weights, unknown keys, a file that is not there: incomplete, by name."""
    key = line.partition(":")[0]
    kept = "".join(f"{each}\n" for each in AXOLOTL.splitlines() if not each.startswith(f"{key}:"))
    found = finding(folder / "train.yaml", f"{kept}{line}\n")
    assert found.verdict == "incomplete"
    assert named in found.text


@pytest.mark.parametrize(
    "line",
    [
        "load_in_4bit: false",
        "adapter:",
        "seed: 7",
        "flash_attention: true",
        "lora_r: 16",
        "lora_target_linear: true",
        "lora_dropout: 0.05",
        "plugins: [axolotl.integrations.liger.LigerPlugin]",
    ],
)
def test_what_changes_nothing_is_not_named(folder: Path, line: str) -> None:
    """A switch that is off, an empty key, logging, and kernels (a note) leave the verdict."""
    assert finding(folder / "train.yaml", f"{AXOLOTL}{line}\n").verdict == "fits"


def test_a_model_that_the_catalogue_lacks_is_named_until_one_is_given(folder: Path) -> None:
    """Beside what is missing; with a model given there is nothing to say."""
    text = AXOLOTL.replace("meta-llama/Llama-3.1-8B-Instruct", "someone/else-8B")
    named = finding(folder / "train.yaml", text)
    assert named.verdict == "incomplete"
    assert "base_model 'someone/else-8B' is not in the catalogue" in named.text
    given = GIVEN.model_copy(update={"model": "llama-3.1-8b"})
    (found,) = check_paths([folder / "train.yaml"], tools(), given)
    assert found.verdict == "fits"
    assert "catalogue" not in " ".join(found.notes)


def test_sharding_that_is_not_stated_is_asked_for(folder: Path) -> None:
    """LLaMA-Factory's FSDP is often in an Accelerate file: without a word nothing is assumed."""
    text = FACTORY.replace("deepspeed: configs/zero3.json\n", "")
    assert "deepspeed or fsdp" in finding(folder / "train.yaml", text).text
    for none in ('fsdp: ""\n', 'deepspeed: ""\nfsdp: ""\n'):
        plain = finding(folder / "train.yaml", text + none)
        assert plain.verdict in ("fits", "does not fit")


def test_a_json_outside_the_folders_is_not_opened(folder: Path) -> None:
    """Neither an absolute path nor one that climbs is followed."""
    for target in ("/etc/passwd", "../../../etc/passwd"):
        text = AXOLOTL.replace("configs/zero3.json", target)
        found = finding(folder / "train.yaml", text)
        assert found.verdict == "incomplete"
