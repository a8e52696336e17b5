"""What single settings of a framework's config mean, beyond the published examples."""

import re

import pytest
from random_plans import missing_facts, model_named, plan_of

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage, even_stages
from meshplan.costmodels.training import Precision, Training
from meshplan.executor.frameworks import FRAMEWORKS, exporter_named, framework_named, read_config
from meshplan.executor.frameworks.torchtitan.names import MODELS, model_of_function
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.case.core_loss import with_loss
from meshplan.planner.case.reading import IllegalConfig, UnreadableConfig
from meshplan.planner.case.resolve import resolve
from meshplan.planner.case.settings import Settings

MEGATRON = (
    "pretrain_gpt.py --num-layers 16 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1 "
)
DEEPSPEED = '{"train_batch_size": 8, "zero_optimization": {"stage": 2, %s}}'
ACCELERATE = """distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 2, gradient_accumulation_steps: 4, offload_optimizer_device: %s}
num_processes: 8
"""


@pytest.mark.parametrize(
    ("name", "text", "offloads", "note"),
    [
        pytest.param("a.sh", MEGATRON + "--optimizer-cpu-offload", True, "", id="megatron: all"),
        pytest.param(
            "a.sh", MEGATRON + "--optimizer-cpu-offload --optimizer-offload-fraction 0.5", 0.5, "",
            id="megatron: half",
        ),
        pytest.param(
            "a.sh", MEGATRON + "--optimizer-cpu-offload --optimizer-offload-fraction 0", False, "",
            id="megatron: none",
        ),
        pytest.param(
            "a.yaml", "model: {tensor_model_parallel_size: 1}\noptimizer: "
            "{optimizer_cpu_offload: true}", False, "use_distributed_optimizer is not",
            id="bridge: its default fraction is 0",
        ),
        pytest.param(
            "a.json", DEEPSPEED % '"offload_optimizer": {"device": "nvme"}', True, "nvme",
            id="deepspeed: to the disk",
        ),
        pytest.param(
            "a.json", DEEPSPEED % '"cpu_offload": true', True, "", id="deepspeed: its old word"
        ),
        pytest.param(
            "a.json", DEEPSPEED % '"offload_optimizer": {"device": "cpu", "ratio": 0.5}', True,
            "stage 3 only", id="deepspeed: a ratio in stage 2",
        ),
        pytest.param(
            "a.json", (DEEPSPEED % '"offload_optimizer": {"device": "cpu", "ratio": 0.5}').replace(
                '"stage": 2', '"stage": 3'
            ), 0.5, "", id="deepspeed: a ratio in stage 3",
        ),
        pytest.param(
            "a.json", DEEPSPEED % '"offload_param": {"device": "none"}', None, "",
            id="deepspeed: weights that stay",
        ),
        pytest.param("a.yaml", ACCELERATE % "cpu", True, "", id="accelerate: in its own words"),
        pytest.param("a.yaml", ACCELERATE % "none", False, "", id="accelerate: not"),
    ],
)  # fmt: skip
def test_an_optimizer_on_the_host(name: str, text: str, offloads: float | None, note: str) -> None:
    """What of the optimizer runs on the host, by each framework's words and defaults."""
    reading = read_config(text, name)
    fact = reading.facts.get("optimizer_offload")
    assert (fact.value if fact else None) == offloads
    assert any(note in each for each in reading.notes) if note else not reading.notes


@pytest.mark.parametrize(
    ("layers", "fraction"),
    [pytest.param(15, 1.0, id="all that Megatron allows"), pytest.param(4, 0.25, id="four of 16")],
)
def test_activations_on_the_host(layers: int, fraction: float) -> None:
    """All layers but one is all that Megatron moves."""
    reading = read_config(MEGATRON + f"--cpu-offloading-num-layers {layers}", "a.sh")
    assert reading.facts["activation_offload"].value == fraction
    assert not reading.notes


@pytest.mark.parametrize(("pp", "said"), [(1, True), (2, False)])
def test_activations_on_the_host_are_exported(pp: int, said: bool) -> None:
    """Without a pipeline Megatron can say it; with one it is listed."""
    layout = Layout(
        data_parallel=4, pipeline_parallel=pp, stages=even_stages(32, pp), activation_offload=True
    )
    plan = plan_of("llama-3.1-8b", layout, Training(seq_len=2048, global_batch_size=8))
    exported = FRAMEWORKS["megatron"].export(plan, 8)
    assert ("--cpu-offloading-num-layers 31" in exported.files["train.sh"]) == said
    assert ("layout.activation_offload" in {x.name for x in exported.cannot_say}) != said


def test_accelerate_points_to_a_json() -> None:
    """A file that only names DeepSpeed's JSON sends the reader there."""
    text = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
    with pytest.raises(UnreadableConfig, match=r"check 'ds\.json' instead"):
        read_config(text, "a.yaml")


@pytest.mark.parametrize(
    ("engine", "words"), [("megatron", 0), ("megatron-bridge", 1)], ids=["32 bit", "16 bit"]
)
def test_gradients_are_as_wide_as_they_were_priced(engine: str, words: int) -> None:
    """A script and overrides say the width of the gradients that the plan was priced with, and read
    back so: the YAML as well as the KEY=VALUE words.
    """
    layout = Layout(data_parallel=8, zero_stage=1, stages=even_stages(32, 1))
    training = Training(seq_len=2048, global_batch_size=8)
    plan = plan_of("llama-3.1-8b", layout, training).model_copy(update={"engine": engine})
    script = FRAMEWORKS["megatron"].export(plan, 8).files["train.sh"]
    assert script.count("--grad-reduce-in-bf16") == words
    assert read_config(script, "train.sh").engine == engine
    for name, text in FRAMEWORKS["bridge"].export(plan, 8).files.items():
        reading = read_config(text, name)
        assert reading.engine == engine
        assert reading.facts["precision"].value == "bf16"


def test_deepspeed_keeps_the_batch_or_refuses() -> None:
    """Context-parallel ranks would become replicas: 2 x 512 sequences. Replicas alone keep 512."""
    training = Training(seq_len=2048, global_batch_size=512)
    split = Layout(data_parallel=8, context_parallel=2, zero_stage=3, stages=even_stages(32, 1))
    with pytest.raises(InvalidLayout, match="global batch 1024 instead of 512"):
        FRAMEWORKS["deepspeed"].export(plan_of("llama-3.1-8b", split, training), 8)
    whole = Layout(data_parallel=16, zero_stage=3, stages=even_stages(32, 1))
    exported = FRAMEWORKS["deepspeed"].export(plan_of("llama-3.1-8b", whole, training), 8)
    facts = read_config(exported.files["ds_config.json"], "ds_config.json").facts
    assert facts["global_batch_size"].value == 512


@pytest.mark.parametrize(
    ("counts", "written"),
    [
        pytest.param([(8, 0, 0)] * 4, "none", id="none recompute"),
        pytest.param([(8, 0, 1), (8, 0, 3), (8, 0, 0), (8, 0, 0)], "block 3", id="the neediest: 3"),
        pytest.param([(8, 2, 1), (8, 0, 0), (8, 0, 2), (8, 0, 0)], "block 3", id="2 + 1 in full"),
        pytest.param([(8, 0, 8), (8, 0, 0), (8, 0, 2), (8, 0, 0)], "uniform", id="8 of 8: all"),
        pytest.param([(8, 2, 0), (8, 0, 0), (8, 0, 0), (8, 0, 0)], "selective", id="no full layer"),
    ],
)
def test_recompute_that_differs_becomes_the_nearest_that_is_safe(
    counts: list[tuple[int, int, int]], written: str
) -> None:
    """Each stage replays at least what the plan does there, and never nothing."""
    stages = tuple(Stage(n, selective, full) for n, selective, full in counts)
    layout = Layout(data_parallel=2, pipeline_parallel=4, zero_stage=1, stages=stages)
    plan = plan_of("llama-3.1-8b", layout, Training(seq_len=2048, global_batch_size=16))
    exported = FRAMEWORKS["megatron"].export(plan, 8)
    script = exported.files["train.sh"]
    words = {
        "none": "", "uniform": "--recompute-method uniform", "selective": "selective",
        "block 3": "--recompute-method block\n    --recompute-num-layers 3",
    }  # fmt: skip
    assert words[written] in script
    assert ("--recompute" in script) == (written != "none")
    assert ("layout.stages.recompute" in {x.name for x in exported.cannot_say}) == bool(
        written != "none"
    )
    recompute = read_config(script, "train.sh").recompute
    assert all(recompute.layers(n) >= full + selective for n, selective, full in counts)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"llama-4-scout", "llama-4-maverick"}))
def test_torchtitan_starts_from_a_configuration_of_the_models_vocabulary(name: str) -> None:
    """0.3's loss keeps the vocabulary of the configuration it starts from, so it is the model's."""
    layers = model_named(name).num_layers
    layout = Layout(data_parallel=16, zero_stage=3, stages=even_stages(layers, 1))
    plan = plan_of(name, layout, Training(seq_len=2048, global_batch_size=16))
    text = exporter_named("torchtitan-0.3")(plan, 8).files["meshplan_config.py"]
    (base,) = re.findall(r"config = (\w+)\(\)", text)
    start = model_of_function(base)
    assert start is not None
    assert model_named(start).vocab == model_named(name).vocab
    assert read_config(text, "meshplan_config.py").facts["model"].value == name


@pytest.mark.parametrize(("precision", "torchao"), [("bf16", False), ("fp8", True)])
def test_torchtitan_asks_for_torchao_in_8_bit_only(precision: Precision, torchao: bool) -> None:
    """0.3's own 405B configuration converts to Float8: a plan in bf16 starts from another one."""
    layout = Layout(data_parallel=16, zero_stage=3, stages=even_stages(126, 1))
    training = Training(seq_len=2048, global_batch_size=16, precision=precision)
    exported = exporter_named("torchtitan-0.3")(plan_of("llama-3.1-405b", layout, training), 8)
    text = exported.files["meshplan_config.py"]
    assert ("llama3_405b" in text or "Float8" in text) == torchao
    assert read_config(text, "meshplan_config.py").facts["model"].value == "llama-3.1-405b"


@pytest.mark.parametrize(
    ("engine", "expert_parallel", "unsaid"),
    [("megatron", 8, True), ("megatron", 1, False), ("nemo", 8, False)],
    ids=["DeepEP", "nothing is sent", "alltoall"],
)
def test_a_dispatcher_that_was_priced_is_named(engine: str, expert_parallel: int, unsaid: bool):
    """A script runs on what Megatron brings along; what the plan was priced with is listed."""
    layout = Layout(
        data_parallel=8, expert_parallel=expert_parallel, zero_stage=1, stages=even_stages(32, 1)
    )
    training = Training(seq_len=2048, global_batch_size=8)
    plan = plan_of("mixtral-8x7b", layout, training).model_copy(update={"engine": engine})
    exported = FRAMEWORKS["megatron"].export(plan, 8)
    assert "--moe-token-dispatcher-type alltoall" in exported.files["train.sh"]
    assert ("dispatch" in {each.name for each in exported.cannot_say}) == unsaid


def test_an_override_of_the_gradients_is_read() -> None:
    """grad_reduce_in_fp32: false is the engine whose gradients have 16 bit."""
    text = "model: {tensor_model_parallel_size: 1}\nmixed_precision: {grad_reduce_in_fp32: false}"
    assert read_config(text, "a.yaml").engine == "megatron-bridge"


@pytest.mark.parametrize(("said", "engine"), [
    ("mixed_precision: fp16_mixed", "megatron-bridge"), ("mixed_precision: bf16_mixed", "megatron"),
    ("mixed_precision: {fp16: true, grad_reduce_in_fp32: true}", "megatron"),
])  # fmt: skip
def test_a_recipe_of_precision_says_its_gradients(said: str, engine: str) -> None:
    """Bridge's fp16_mixed has grad_reduce_in_fp32=False, its bf16_mixed True."""
    text = f"model: {{tensor_model_parallel_size: 1}}\n{said}\n"
    assert read_config(text, "a.yaml").engine == engine


@pytest.mark.parametrize(("said", "bytes_"), [
    ("cross_entropy_fusion_impl: te", 2.0),
    ("cross_entropy_fusion_impl: native", 13.0),
    ("cross_entropy_loss_fusion: false, cross_entropy_fusion_impl: te", 8.0),
    ("cross_entropy_loss_fusion: true", 8.0),
])  # fmt: skip
def test_overrides_say_which_loss_of_megatron_core_runs(said: str, bytes_: float) -> None:
    """Bytes at the peak of a logit; which one is fused, the recipe decides where nothing does."""
    text = f"model: {{tensor_model_parallel_size: 1, {said}}}\ntrain: {{micro_batch_size: 1}}\n"
    facts = Settings(cluster="dgx-h100", gpus=8, seq_len=2048, global_batch_size=8)
    model = model_named("llama-3.1-8b")
    case = resolve(read_config(text, "a.yaml"), facts, Settings(), model=model)
    assert case.engine.kernels.logits_bytes == bytes_


def test_an_engine_keeps_what_was_learnt_of_its_own_loss() -> None:
    """NeMo's step was learnt as if one kernel made its `native` loss."""
    nemo = load_engine("nemo")
    assert with_loss(nemo, "native") == nemo != with_loss(nemo, "unfused")


@pytest.mark.parametrize(("flags", "word"), [
    ("", "unfused"), ("--cross-entropy-loss-fusion", "native"),
    ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", "te"),
    ("--cross-entropy-fusion-impl te", "unfused"),
])  # fmt: skip
def test_megatrons_flags_say_its_loss(flags: str, word: str) -> None:
    """Off and native unless they are there, whatever the width of gradients."""
    reading = read_config(f"{MEGATRON} --bf16 --grad-reduce-in-bf16 {flags}", "a.sh")
    assert (reading.engine, reading.loss) == ("megatron-bridge", word)


@pytest.mark.parametrize(("ddp", "optimizer", "stage"), [
    ("false", "true", 1), ("true", "false", 1), ("false", "false", 0),
])  # fmt: skip
def test_either_section_distributes_the_optimizer(ddp: str, optimizer: str, stage: int) -> None:
    """Megatron-Bridge switches it on in both where one has it."""
    name = "use_distributed_optimizer"
    text = f"ddp: {{{name}: {ddp}}}\noptimizer: {{{name}: {optimizer}}}\n"
    reading = read_config(f"model: {{tensor_model_parallel_size: 1}}\n{text}", "a.yaml")
    assert reading.facts["zero_stage"].value == stage


@pytest.mark.parametrize("engine", ["megatron", "megatron-bridge"])
def test_a_plans_loss_is_in_its_overrides(engine: str) -> None:
    """A library recipe may have another than the plan was priced with."""
    layout = Layout(data_parallel=8, zero_stage=1, stages=even_stages(32, 1))
    training = Training(seq_len=2048, global_batch_size=8)
    plan = plan_of("llama-3.1-8b", layout, training).model_copy(update={"engine": engine})
    exported = FRAMEWORKS["bridge"].export(plan, 8)
    for name, text in exported.files.items():
        back = resolve(read_config(text, name), missing_facts(plan, exported), Settings())
        assert back.engine.kernels == load_engine(engine).kernels
        assert "cross_entropy_loss_fusion" in text


@pytest.mark.parametrize("name", ["megatron-bridge", "nemo"])
def test_an_engines_name_is_its_frameworks(name: str) -> None:
    """What `plan --engine` calls it, `export --to` and `check --framework` understand."""
    assert framework_named(name) is FRAMEWORKS["bridge"]
    assert exporter_named(name) is FRAMEWORKS["bridge"].export


def test_an_unknown_framework_is_told_with_the_known_ones() -> None:
    """Every name that is listed is one that works."""
    with pytest.raises(UnreadableConfig, match="no framework 'fairseq'; known are") as refused:
        framework_named("fairseq")
    for name in str(refused.value).partition("known are ")[2].split(", "):
        assert framework_named(name) is not None
    with pytest.raises(UnreadableConfig, match="did you mean torchtitan or "):
        framework_named("torchtian")


SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 4096 "
    "--num-attention-heads 32 --micro-batch-size 1 --global-batch-size 8 --seq-length 4096 --bf16 "
    "--tensor-model-parallel-size 4 --sequence-parallel --vocab-size 32000 "
)
BRIDGE = (
    "model: {tensor_model_parallel_size: 4, num_layers: 4, hidden_size: 4096, seq_length: 4096,"
    " num_attention_heads: 32, vocab_size: 32000, gated_linear_unit: false,"
    " num_query_groups: null, share_embeddings_and_output_weights: true, sequence_parallel: true}\n"
    "train: {micro_batch_size: 1, global_batch_size: 8}\n"
)


@pytest.mark.parametrize(
    ("text", "name", "hidden"),
    [
        pytest.param(SCRIPT, "train.sh", 0.4, id="off unless told: what is always hidden"),
        pytest.param(f"{SCRIPT}--tp-comm-overlap", "train.sh", 0.7, id="as recipes hide it"),
        pytest.param(
            f"{SCRIPT}--grad-reduce-in-bf16", "train.sh", 0.4, id="16-bit gradients say nothing"
        ),
        pytest.param(
            f"{BRIDGE}comm_overlap: {{tp_comm_overlap: true}}\n", "a.yaml", 0.7, id="Bridge, on"
        ),
        pytest.param(
            f"{BRIDGE}comm_overlap: {{tp_comm_overlap: false}}\n"
            "mixed_precision: {grad_reduce_in_fp32: false}\n",
            "a.yaml", 0.4, id="Bridge, off in an engine that has it on",
        ),
    ],
)  # fmt: skip
def test_userbuffers_hide_tensor_parallelism(text: str, name: str, hidden: float) -> None:
    """Of four ranks' collectives, 0.7 behind products where tp_comm_overlap says so, else 0.4."""
    given = Settings(cluster="dgx-h100", gpus=8)
    case = resolve(read_config(text, name), given, Settings())
    assert case.engine.overlap.tensor == hidden
    assert not any("comm_overlap" in note.replace("-", "_") for note in case.notes)


def test_a_script_of_a_plan_with_userbuffers_sets_them() -> None:
    """What was priced as hidden is switched on, and read back as hidden."""
    layout = Layout(tensor_parallel=4, data_parallel=2, stages=even_stages(32, 1))
    plan = plan_of("llama-3-8b", layout, Training(seq_len=2048, global_batch_size=8))
    for engine, switched in (("megatron", False), ("megatron-bridge", True)):
        exported = FRAMEWORKS["megatron"].export(plan.model_copy(update={"engine": engine}), 8)
        text = exported.files["train.sh"]
        assert ("--tp-comm-overlap" in text) == switched
        assert read_config(text, "train.sh").userbuffers == switched


@pytest.mark.parametrize("name", ["refused", "script", "", "axolott"])
def test_only_formats_that_are_read_can_be_named(name: str) -> None:
    """What is recognised to be refused is no name; the message lists all that are, each of which
    reads, or refuses a file in words.
    """
    with pytest.raises(UnreadableConfig, match=f"no framework '{name}'; .*known are") as refused:
        read_config("a: 1", "a.yaml", name)
    known = str(refused.value).partition("known are ")[2].split(", ")
    assert {"axolotl", "gpt-neox", "torchtune", "nemo", "megatron"} <= set(known)
    for each in known:
        with pytest.raises((UnreadableConfig, IllegalConfig)):
            read_config("}", "a.yaml", each)
