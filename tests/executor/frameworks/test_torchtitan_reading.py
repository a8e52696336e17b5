"""What torchtitan's files and functions say, and what of them nobody reads."""

import warnings

import pytest
from rows import ROW

from meshplan.executor.frameworks import read_config
from meshplan.hardware_profiles.engines import load_engine
from meshplan.planner.case.reading import Reading, UnreadableConfig
from meshplan.planner.runs.habits import engine_of
from meshplan.planner.runs.rows import row_of

TITAN = """
[training]
local_batch_size = 8
seq_len = 4096
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "{schedule}"
"""


def _titan(schedule: str) -> Reading:
    return read_config(TITAN.format(schedule=schedule), "config.toml")


REGISTRY = """
from torchtitan.models.deepseek_v3 import model_registry
def run() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("671B"%s),
        training=TrainingConfig(local_batch_size=1, seq_len=4096),
        parallelism=ParallelismConfig(expert_parallel_degree=8),
    )
"""
BOTH = ", converters=[%s.Config(), %s.Config()]"
LINEAR, EXPERTS = "MXFP8LinearConverter", "MXFP8GroupedExpertsConverter"
NVFP4 = ", converters=[NVFP4LinearConverter.Config(%s)]"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(', moe_comm_backend="deepep"', "deepep", id="a dispatcher"),
        pytest.param(', moe_comm_backend="hybridep"', "hybridep", id="another"),
        pytest.param("", "all_to_all", id="its default"),
        pytest.param(', moe_comm_backend="minimal_async_ep"', "minimal_async_ep' (this exchange",
                     id="one that is not modelled"),
        pytest.param(NVFP4 % "model_compile_enabled=True", "nvfp4", id="all linear layers"),
        pytest.param(NVFP4 % 'fqns=["layers"], filter_fqns=["lm_head"]', "nvfp4", id="all"),
        pytest.param(f", converters=[{EXPERTS}.Config()]", "mxfp8_experts", id="experts alone"),
        pytest.param(BOTH % (LINEAR, EXPERTS), "mxfp8", id="both"),
        pytest.param(BOTH % (EXPERTS, LINEAR), "mxfp8", id="in either order"),
        pytest.param(NVFP4 % "fqns=tail(85)", "fqns=tail(85)", id="some layers"),
        pytest.param(NVFP4 % 'filter_fqns=["wo"]', "filter_fqns=['wo']", id="all but some"),
        pytest.param(NVFP4 % "emulate=True", "emulate=True", id="computed in 16 bit"),
    ],
)  # fmt: skip
def test_what_torchtitans_model_is_built_with(arguments: str, said: str) -> None:
    """pytorch/torchtitan@b5bcd76: dispatchers and converters are arguments of `model_registry`."""
    reading = read_config(REGISTRY % arguments, "config.py")
    facts = {fact.value for fact in reading.facts.values() if isinstance(fact.value, str)}
    assert said in facts or any(said in str(fact.value) for fact in reading.unread)
    assert bool(reading.unread) == (said not in facts)


@pytest.mark.parametrize(
    ("converters", "fqns", "precision"),
    [
        (["grouped_mm.mx"], '["experts"]', "mxfp8_experts"),
        (["grouped_mm.mx"], "[]", "bf16"),
        (["grouped_mm.mx", "linear.mx"], '["experts"]', "mxfp8"),
        (["grouped_mm.mx", "linear.mx"], "[]", "mxfp8"),
    ],
)
def test_experts_that_0_2_converts(converters: list[str], fqns: str, precision: str) -> None:
    """Those of the modules that are named: none where none is."""
    listed = [f"quantize.{each}" for each in converters]
    said = f"[model]\nconverters = {listed}\n[quantize.grouped_mm.mx]\nfqns = {fqns}\n"
    reading = read_config(TITAN.format(schedule="1F1B") + said, "config.toml")
    assert reading.facts["precision"].value == precision
    assert not reading.unread


def test_a_call_without_a_name_builds_no_model() -> None:
    """`get()(x)` was taken for the function of a model that has none."""
    text = REGISTRY.replace('model_registry("671B"%s)', "get()(x)")
    assert "model" not in read_config(text, "config.py").facts


@pytest.mark.parametrize(
    ("written", "ours", "chunks"),
    [
        pytest.param("1F1B", "1f1b", 1, id="single-stage: one chunk per rank"),
        pytest.param("interleaved1f1b", "interleaved_1f1b", 2, id="torch reads any case"),
        pytest.param("ZBVZeroBubble", "zb_v", 2, id="V-shaped: two chunks per rank"),
    ],
)
def test_torchtitan_schedules(written: str, ours: str, chunks: int) -> None:
    """A schedule's name in any case is ours, with the stages per rank that torchtitan gives it."""
    facts = _titan(written).facts
    assert (facts["schedule"].value, facts["virtual_stages"].value) == (ours, chunks)
    assert facts["schedule"].line == 7


def test_a_schedule_without_a_price_is_said() -> None:
    """InterleavedZeroBubble is priced as its nearest schedule, and a note says so."""
    reading = _titan("InterleavedZeroBubble")
    assert reading.facts["schedule"].value == "interleaved_1f1b"
    assert any("InterleavedZeroBubble is priced as Interleaved1F1B" in x for x in reading.notes)
    with pytest.raises(UnreadableConfig, match=r"LoopedBFS.*not priced"):
        _titan("LoopedBFS")


@pytest.mark.parametrize("name", ['"quantize.lora"', "[]", "7"])
def test_a_converter_that_no_price_knows_is_unread(name: str) -> None:
    """It changes the model's layers: nothing is priced, whatever stands in the list."""
    converters = f'[model]\nconverters = ["float8", {name}]\n'
    reading = read_config(TITAN.format(schedule="1F1B") + converters, "config.toml")
    assert [fact.line for fact in reading.unread] == [9]
    assert "model.converters" in reading.unread[0].value
    assert reading.facts["precision"].value == "fp8"


@pytest.mark.parametrize("key", ["parallelism.mystery_parallel_degree", "peft.enable_lora"])
def test_a_split_that_is_not_known_to_torchtitans_reader_is_unread(key: str) -> None:
    """A degree or an adapter that nothing reads is named, and nothing is priced."""
    section, name = key.split(".")
    head = "" if section == "parallelism" else f"[{section}]\n"
    reading = read_config(TITAN.format(schedule="1F1B") + f"{head}{name} = 4\n", "config.toml")
    assert [fact.value for fact in reading.unread] == [key]


def test_settings_of_a_module_of_ones_own_are_named() -> None:
    """A section below [model], which torchtitan itself does not have, may change the sizes that
    model.flavor names; a module that adds settings is a note.
    """
    own = '[experimental]\ncustom_args_module = "my.args"\n'
    reading = read_config(TITAN.format(schedule="1F1B") + own, "config.toml")
    assert reading.unread == ()
    assert "line 9: what experimental.custom_args_module 'my.args' adds or" in reading.notes[-1]
    sizes = "[model.overrides]\nn_layers = 16\n"
    reading = read_config(TITAN.format(schedule="1F1B") + sizes, "config.toml")
    assert [str(fact.value).split()[0] for fact in reading.unread] == ["model.overrides.n_layers"]


CHANGED = (
    REGISTRY.replace("return Trainer", "config = Trainer") % "" + "    %s\n    return config\n"
)


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        ("config.model_spec.model.n_layers = 16", "model_spec.model.n_layers (it changes"),
        ("config.lora.rank = 8", "lora.rank (adapters)"),
        ("config.parallelism.mystery = 7", "parallelism.mystery"),
        ("config.metrics.log_freq = 7", ""),
        ('config.model_spec = model_registry("16B")', ""),
    ],
)
def test_what_torchtitans_functions_store_beside_the_sections_is_named(
    stored: str, named: str
) -> None:
    """Keys below the model or of adapters; those that change nothing are passed over."""
    said = [str(fact.value) for fact in read_config(CHANGED % stored, "config.py").unread]
    assert len(said) == bool(named)
    assert all(each.startswith(named) for each in said)


def test_adapters_that_a_torchtitan_configuration_is_made_with_are_named() -> None:
    """A section of Trainer.Config that nothing reads; None is no section."""
    for value, named in (("LoRAConfig(rank=16)", ["lora=LoRAConfig(rank=16) (adapters)"]),
                         ("None", [])):  # fmt: skip
        text = (
            REGISTRY.replace("        training=", f"        lora={value},\n        training=") % ""
        )
        unread = read_config(text, "config.py").unread
        assert [fact.value for fact in unread] == named


def test_what_stages_hold_says_nothing_without_a_pipeline() -> None:
    """torchtitan leaves these keys alone at degree 1."""
    keys = "module_fqns_per_model_part = [['a']]\npipeline_parallel_layers_per_stage = 2\n"
    text = TITAN.replace("degree = 2", "degree = 1").format(schedule="1F1B") + keys
    assert read_config(text, "config.toml").unread == ()


def test_where_stages_begin_is_named() -> None:
    """It was priced as even stages; at degree 1 it says nothing."""
    text = TITAN.format(schedule="1F1B") + 'pipeline_parallel_split_points = ["layers.4"]\n'
    (named,) = read_config(text, "config.toml").unread
    assert str(named.value).startswith("pipeline_parallel_split_points (where stages begin")
    assert read_config(text.replace("degree = 2", "degree = 1"), "config.toml").unread == ()


def test_what_stages_are_is_read_of_the_old_section() -> None:
    """[experimental] had the pipeline before 0.1."""
    text = TITAN.format(schedule="Interleaved1F1B").replace("[parallelism]", "[experimental]")
    reading = read_config(f"{text}[parallelism]\ntensor_parallel_degree = 1\n", "config.toml")
    assert reading.facts["schedule"].value == "interleaved_1f1b"
    assert (reading.facts["pipeline_parallel"].value, reading.unread) == (2, ())


def test_python_that_python_warns_of_is_read_in_silence() -> None:
    """A warning about the text of a config is not written over the report."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(UnreadableConfig):
            read_config("x = 1if 2 else 3\n", "config.py", "torchtitan")
    assert warned == []


@pytest.mark.parametrize(
    ("name", "text", "engine"),
    [
        pytest.param("a.toml", "[compile]\nenable = false", "torchtitan-eager", id="off"),
        pytest.param("a.toml", "[compile]\nenable = true", "torchtitan-0.2", id="on"),
        pytest.param("a.toml", "", "torchtitan-eager", id="not said, off by default"),
        pytest.param("a.toml", '[training]\ncompile = true', "torchtitan-0.2", id="on, old key"),
        pytest.param("a.toml", '[training]\ncompile = "False"\nseq_len = 8192',
                     "torchtitan-eager", id="before 2025-05"),
        pytest.param("a.py", "False", "torchtitan-eager-chunked-loss", id="off, with a newer loss"),
        pytest.param("a.py", "True", "torchtitan", id="on, in Python"),
    ],
)  # fmt: skip
def test_what_is_not_compiled_is_priced_so(name: str, text: str, engine: str) -> None:
    """By the same habits as a measured run that states it."""
    of_python = REGISTRY % f"), loss=ChunkedCELoss.Config(), compile=CompileConfig(enable={text}"
    of_toml = f"[parallelism]\ntensor_parallel_degree = 1\n{text}\n"
    reading = read_config(of_python if name.endswith(".py") else of_toml, name)
    assert reading.engine == engine
    assert not [note for note in reading.notes if "compile" in note]


def test_a_compiled_loss_leaves_the_model_uncompiled() -> None:
    text = "[parallelism]\ntensor_parallel_degree = 1\n[compile]\nenable = true\ncomponents = {}\n"
    for components, engine in (('["loss"]', "torchtitan-eager"), ('["model"]', "torchtitan-0.2")):
        reading = read_config(text.format(components), "a.toml")
        assert reading.engine == engine
        said = [note for note in reading.notes if "compile.components" in note]
        assert ("priced as not compiled" in said[0]) == (engine == "torchtitan-eager")
        assert len(said) == 1


def test_an_engine_that_is_not_compiled_has_the_habits_of_rows_that_say_so() -> None:
    """The rows' habits are `planner.runs.habits`', the engine's stand in its own file."""
    cells = dict(ROW, framework="torchtitan 0.2", compiled="0", fused_loss="whole")
    of_row, of_file = engine_of(row_of(cells)), load_engine("torchtitan-eager")
    assert of_file.kernels == of_row.kernels
    assert of_file.state == of_row.state


def test_a_number_of_the_environment_is_noted_of_torchtitan_too() -> None:
    """Its default is priced, and the option that says another is named."""
    text = REGISTRY % "" + "import os\n"
    text = text.replace(
        "expert_parallel_degree=8", "expert_parallel_degree=int(os.getenv('EP', 8))"
    )
    reading = read_config(text, "config_registry.py")
    assert reading.facts["expert_parallel"].value == 8
    assert "--env EP=VALUE says another" in " ".join(reading.notes)


@pytest.mark.parametrize(
    ("more", "ranks"),
    [
        pytest.param("", 4, id="without expert parallelism: the 4 of tensor parallelism"),
        pytest.param("expert_tensor_parallel_degree = 1\n", 4, id="whatever is stated"),
        pytest.param("expert_parallel_degree = 8\n", 1, id="beside it: 1"),
        pytest.param("expert_parallel_degree = 8\nexpert_tensor_parallel_degree = 4\n", 4,
                     id="beside it, as stated"),
    ],
)  # fmt: skip
def test_tensor_parallelism_splits_experts_where_none_are_parallel(more: str, ranks: int) -> None:
    """torchtitan's apply_moe_ep_tp: `ep_mesh is None` puts the experts on tensor parallelism's."""
    text = (
        '[model]\nname = "llama4"\nflavor = "17bx16e"\n[training]\nlocal_batch_size = 1\n'
        f"seq_len = 8192\n[parallelism]\ntensor_parallel_degree = 4\n{more}"
    )
    assert read_config(text, "a.toml").facts["expert_tensor_parallel"].value == ranks


@pytest.mark.parametrize(
    ("loss", "engine", "named"),
    [
        pytest.param("loss=ChunkedCELoss.Config()", "torchtitan", "", id="chunks"),
        pytest.param("loss=ChunkedLossWrapper.Config(num_chunks=8)", "torchtitan", "", id="eight"),
        pytest.param("loss=ChunkedCELoss.Config(num_chunks=4)", "torchtitan", "num_chunks", id="4"),
        pytest.param("loss=CrossEntropyLoss.Config()", "torchtitan-0.2", "", id="at once"),
        pytest.param("dump_folder='x'", "torchtitan-0.2", "", id="before 2026-04-27"),
        pytest.param("loss=OurFusedLoss.Config()", "torchtitan", "another loss", id="one's own"),
    ],
)
def test_the_loss_of_a_function_is_its_own(loss: str, engine: str, named: str) -> None:
    """All logits at once take 8 bytes and more of each; chunks an eighth of that."""
    reading = read_config(REGISTRY % f"), {loss}, compile=CompileConfig(enable=True", "a.py")
    assert reading.engine == engine
    assert any(named in str(fact.value) for fact in reading.unread) == bool(named)
    assert any("at once" in note for note in reading.notes) == (engine != "torchtitan")


def test_a_function_of_another_file_keeps_that_ones_loss() -> None:
    """Which is in chunks in every release that has such functions since 2026-04-27."""
    text = "from torchtitan.models.llama3.config_registry import llama3_8b\n"
    text += "def ours() -> Trainer.Config:\n    config = llama3_8b()\n"
    text += "    config.parallelism = ParallelismConfig(tensor_parallel_degree=1)\n"
    text += "    config.training = TrainingConfig(local_batch_size=1, seq_len=4096)\n"
    text += "    config.compile.enable = True\n    return config\n"
    assert read_config(text, "a.py").engine == "torchtitan"
