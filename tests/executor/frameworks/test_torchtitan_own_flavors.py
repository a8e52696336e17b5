"""Copies of torchtitan that give a flavor other sizes than the model of its name has.

eminorhan/frontier-torchtitan `models/llama/__init__.py` has a "1B" whose feed-forward is narrower
than Llama 3.2's, and TOML files that name it.
"""

from pathlib import Path

import pytest

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import Reading

TOML = '[job]\n[model]\nname = "llama3"\nflavor = "1B"\n[training]\nseq_len = 4096\n'
SIZES = "dim=2048, n_layers=16, n_heads=32, n_kv_heads=8, multiple_of=1024"


def unread(tmp_path: Path, init: str, place: str = "models/llama3", toml: str = TOML) -> list[str]:
    """What is named of a TOML two folders below the copy's own."""
    folder = tmp_path / "torchtitan" / place
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(init)
    return [str(fact.value) for fact in read_config(toml, str(tmp_path / "a" / "b.toml")).unread]


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        # 8 x 2048 / 3 = 5461, x 1.5 = 8191, up to a multiple of 1024: 8192; x 1.3 = 7099: 7168
        (SIZES + ", ffn_dim_multiplier=1.5", []),
        (SIZES + ", ffn_dim_multiplier=1.3", ["hidden_dim 7168, llama-3.2-1b has 8192"]),
        # 8191 x 1.25 / 1.5 = 6826: up to a multiple of 256
        (SIZES.replace("1024", "0") + ", ffn_dim_multiplier=1.25", ["hidden_dim 6912"]),
        (SIZES.replace("16", "18") + ", ffn_dim_multiplier=1.5", ["n_layers 18"]),
        (SIZES.replace("n_kv_heads=8, ", "ffn_dim_multiplier=1.5, "), ["n_kv_heads 32"]),
        ("n_layers=LAYERS, dim=2048", []),
        ("dim=1e400, n_layers=True, n_heads=-1", []),
    ],
)
@pytest.mark.parametrize("place", ["models/llama3", "models/llama", "experiments/llama3"])
def test_a_flavor_of_other_sizes_is_named(
    tmp_path: Path, sizes: str, named: list[str], place: str
) -> None:
    """In the folder of later releases, of the first ones, and of experiments."""
    said = unread(tmp_path, f'llama3_configs = {{"1B": Args({sizes})}}\n', place)
    assert len(said) == len(named)
    assert all(words in each for words, each in zip(named, said, strict=True))


@pytest.mark.parametrize(
    "init", ["llama3_configs = {", 'qwen3_configs = {"1B": Args(dim=1)}', "x = {**y}", "\0"]
)
def test_a_copy_that_says_nothing_of_the_flavor_names_nothing(tmp_path: Path, init: str) -> None:
    """Another module's flavors are not this one's, and what is no Python is not read."""
    assert unread(tmp_path, init) == []


def test_only_llamas_feed_forward_follows_from_its_width(tmp_path: Path) -> None:
    """Others state theirs, which 8/3 of the width is not."""
    sizes = "dim=4096, n_layers=36, n_heads=32, n_kv_heads=8, hidden_dim=12288, windows=128"
    toml = TOML.replace("llama3", "qwen3").replace("1B", "8B")
    init = f'qwen3_configs = {{"8B": Args({sizes})}}\n'
    assert unread(tmp_path, init, "models/qwen3", toml) == []


@pytest.mark.parametrize(
    ("given", "fields", "named"),
    [
        (", ffn_dim=8192", "", ["ffn_dim 8192, which torchtitan's own arguments lack"]),
        ("", "    ffn_dim: int = 8192\n", ["ffn_dim 8192"]),
        (", ffn_dim=4096", "    ffn_dim: int = 8192\n", ["ffn_dim 4096"]),
        ("", "    eos_id: int = 2\n    drop: float = 0.1\n    extra: bool = True\n", []),
        (", eos_id=128001, rate=1.5", "    width: int | None = None\n", []),
    ],
)
def test_a_size_that_torchtitans_arguments_lack_is_named(
    tmp_path: Path, given: str, fields: str, named: list[str]
) -> None:
    """VLR-CVC/torchtitan@dd899286: its feed-forward is 2/3 of `ffn_dim`, times the multiplier."""
    folder = tmp_path / "torchtitan/models/llama3"
    (folder / "model").mkdir(parents=True)
    (folder / "model/args.py").write_text(f"class Args(Base):\n    dim: int = 4096\n{fields}")
    sizes = SIZES + f", ffn_dim_multiplier={1.3 if named else 1.5}"
    (folder / "__init__.py").write_text(f'llama3_configs = {{"1B": Args({sizes}{given})}}\n')
    said = [str(fact.value) for fact in read_config(TOML, str(tmp_path / "b.toml")).unread]
    assert len(said) == len(named)
    assert all(words in each for words, each in zip(named, said, strict=True))


REGISTRY = """from torchtitan.models.llama3 import model_registry

def mine() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"), training=TrainingConfig(local_batch_size=1, seq_len=4096)
    )
"""
FLAVOR = """def _8b(attn_backend):
    dim = 4096
    n_layers = {layers}
    return Llama3Model.Config(
        dim=dim, n_layers=n_layers, rope=RoPE.Config(dim=64),
        layer=Block.Config(
            feed_forward=FeedForward.Config(hidden_dim=ffn(dim, multiple_of=1024, {times})),
            attention=Attention.Config(n_heads=32, n_kv_heads=8),
        ),
    )

llama3_configs = {{"8B": _8b}}
"""


@pytest.mark.parametrize(
    ("layers", "times", "named"),
    [
        # 8 x 4096 / 3 = 10922, x 1.3 = 14198, up to a multiple of 1024: 14336
        ("32", "ffn_dim_multiplier=1.3", []),
        ("30", "ffn_dim_multiplier=1.3", ["n_layers 30, llama-3.1-8b has 32"]),
        ("32", "ffn_dim_multiplier=1.0", ["hidden_dim 11264, llama-3.1-8b has 14336"]),
        ("count()", "ffn_dim_multiplier=1.3", []),
    ],
)
def test_a_flavor_that_is_a_function_is_held_against_the_model(
    tmp_path: Path, layers: str, times: str, named: list[str]
) -> None:
    """torchtitan 0.3's; the rotary embedding's `dim` is not the model's."""
    folder = tmp_path / "torchtitan/models/llama3"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(FLAVOR.format(layers=layers, times=times))
    found = read_config(REGISTRY, str(folder / "config_registry.py"))
    assert found.facts["model"].value == "llama-3.1-8b"
    said = [str(fact.value) for fact in found.unread]
    assert len(said) == len(named)
    assert all(words in each for words, each in zip(named, said, strict=True))


PLAIN = """def _1b(attn_backend):
    dim = 2048
    return Llama3Model.Config(
        dim=dim, vocab_size=2048, {ties}lm_head=Linear.Config(in_features=dim),
        layers=_build_llama3_layers(
            n_layers=18, dim=dim, n_heads=32, n_kv_heads=8, hidden_dim={width},
            rope=RoPE.Config(dim=dim // 32),
        ),
    )

llama3_configs = {{"1B": _1b}}
"""
RULE = "compute_ffn_hidden_dim(dim, multiple_of=1024, ffn_dim_multiplier=1.5)"


CLASS = """\
    multiple_of: int = 1024
    ffn_dim_multiplier: float = 1.3
    n_kv_heads: int = 4
"""
BARE = 'llama3_configs = {"1B": ModelArgs(dim=2048, n_layers=16, n_heads=32%s)}'


def test_what_a_flavor_leaves_out_is_its_classs_own_default(tmp_path: Path) -> None:
    """8 x 2048 / 3 = 5461, x 1.3 = 7099, up to a multiple of 1024: 7168; it was 5632, 32 heads."""
    found = of_copy(tmp_path, BARE % "", CLASS.strip())
    assert found.model_config is not None
    names = ("intermediate_size", "num_key_value_heads")
    assert [found.model_config[name] for name in names] == [7168, 4]


def test_a_flavor_that_ties_its_embeddings_is_not_the_one_that_does_not(tmp_path: Path) -> None:
    """Llama 3.2 1B has one table for both ends, as this copy's flavor says by a word."""
    tied = f"{SIZES}, ffn_dim_multiplier=1.5, enable_weight_tying="
    for ties, config in (("True", False), ("False", True)):
        init = f'llama3_configs = {{"1B": ModelArgs({tied}{ties})}}'
        found = of_copy(tmp_path / ties, init)
        assert (found.model_config is not None) == config


def of_copy(tmp_path: Path, init: str, fields: str = "dim: int = 1") -> Reading:
    """The TOML's reading beside a copy with these flavors, and fields of its arguments' class."""
    folder = tmp_path / "torchtitan/models/llama3"
    folder.mkdir(parents=True)
    (folder / "args.py").write_text(f"class ModelArgs:\n    {fields}\n")
    (folder / "__init__.py").write_text(init)
    return read_config(TOML, str(tmp_path / "b.toml"))


@pytest.mark.parametrize(
    ("init", "layers", "ffn", "tied"),
    [
        # 8 x 2048 / 3 = 5461, x 1.3 = 7099, up to a multiple of 1024: 7168
        (f'llama3_configs = {{"1B": ModelArgs({SIZES}, ffn_dim_multiplier=1.3)}}', 16, 7168, False),
        (f'llama3_configs = {{"1B": ModelArgs({SIZES}, ffn_dim_multiplier=1.5)}}', 16, 8192, False),
        (PLAIN.format(ties="", width=RULE), 18, 8192, False),
        (PLAIN.format(ties="enable_weight_tying=True, ", width=RULE), 18, 8192, True),
        (PLAIN.format(ties="", width="6144"), 18, 6144, False),
    ],
    ids=["a width", "a table at each end", "a function", "one table", "a stated width"],
)
def test_a_llama_of_other_sizes_is_priced_with_them(
    tmp_path: Path, init: str, layers: int, ffn: int, tied: bool
) -> None:
    """Llama 3.2 1B has 16 layers, a width of 8192 and one table for both ends."""
    found = of_copy(tmp_path, init)
    assert found.model_config is not None
    names = ("num_hidden_layers", "intermediate_size", "tie_word_embeddings", "vocab_size")
    vocab = 128256 if "ModelArgs" in init else 2048
    assert [found.model_config[name] for name in names] == [layers, ffn, tied, vocab]
    assert "model" not in found.facts
    assert found.unread == ()
    assert any("is priced with its sizes in torchtitan/models/llama3" in n for n in found.notes)


@pytest.mark.parametrize(
    ("init", "fields"),
    [
        (f'llama3_configs = {{"1B": ModelArgs({SIZES}, use_moe=True)}}', "dim: int = 1"),
        (f'llama3_configs = {{"1B": ModelArgs({SIZES})}}', "use_moe: bool = True"),
        (PLAIN.format(ties="streams=make(4), ", width=RULE), "dim: int = 1"),
        (PLAIN.format(ties="norm=mine(), ", width=RULE), "dim: int = 1"),
        (PLAIN.format(ties="", width="4 * dim"), "dim: int = 1"),
        (f'llama3_configs = {{"1B": ModelArgs(mine, {SIZES})}}', "dim: int = 1"),
        (
            f'llama3_configs = {{"1B": ModelArgs({SIZES})}}'.replace("n_heads=32", "n_heads=30"),
            "dim: int = 1",
        ),
    ],
    ids=[
        "an argument",
        "a field",
        "an argument of the configuration",
        "a call",
        "another rule of the width",
        "an argument without a name",
        "heads of no whole width",
    ],
)
def test_what_is_not_understood_of_a_copys_llama_is_named(
    tmp_path: Path, init: str, fields: str
) -> None:
    """Its sizes are named, as of any other model."""
    found = of_copy(tmp_path, init, fields)
    assert found.model_config is None
    assert found.unread


def test_a_flavor_that_no_model_is_called_as_is_priced(tmp_path: Path) -> None:
    """eminorhan/frontier-torchtitan `models/llama/__init__.py` has a "26B"; its vocabulary is its
    tokenizer's.
    """
    sizes = "dim=5120, n_layers=80, n_heads=40"
    init = f'llama2_configs = {{"26B": ModelArgs({sizes})}}\n'
    folder = tmp_path / "torchtitan/models/llama"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(init)
    toml = TOML.replace("llama3", "llama2").replace("1B", "26B")
    found = read_config(toml, str(tmp_path / "b.toml"))
    # 8 x 5120 / 3 = 13653, up to a multiple of 256: 13824
    assert found.model_config == {
        "model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 80,
        "num_attention_heads": 40, "num_key_value_heads": 40, "intermediate_size": 13824,
        "tie_word_embeddings": False,
    }  # fmt: skip


QWEN = "dim=1024, n_layers=12, n_heads=16, n_kv_heads=8, head_dim=64, hidden_dim=3072"
QWEN_FIELDS = "qk_norm: bool = True\n    moe_enabled: bool = False\n    moe_inter_dim: int = 768"
QWEN_BUILT = """def _06b(attn_backend):
    dim = 1024
    return Qwen3Model.Config(
        dim=dim, vocab_size=2048, norm=_qwen3_norm(dim), enable_weight_tying=True,
        rope=RoPE.Config(dim=64),
        layers={build}(n_layers=12, dim=dim, n_heads=16, n_kv_heads=8, head_dim=64,
                       hidden_dim=3072, attn_backend=attn_backend),
    )

qwen3_configs = {{"0.6B": _06b}}
"""


def of_qwen(tmp_path: Path, init: str, fields: str = QWEN_FIELDS) -> Reading:
    """The reading of Qwen3's flavor 0.6B beside a copy, whose class of arguments has `fields`."""
    folder = tmp_path / "torchtitan/experiments/qwen3"
    (folder / "model").mkdir(parents=True)
    (folder / "model/args.py").write_text(f"class Qwen3ModelArgs:\n    {fields}\n")
    (folder / "__init__.py").write_text(init)
    toml = TOML.replace("llama3", "qwen3").replace("1B", "0.6B")
    return read_config(toml, str(tmp_path / "b.toml"))


def table(more: str) -> str:
    """A table of flavors of torchtitan 0.2."""
    return f'qwen3_configs = {{"0.6B": Qwen3ModelArgs({QWEN}{more})}}'


@pytest.mark.parametrize(
    ("init", "fields", "tied"),
    [
        pytest.param(table(""), QWEN_FIELDS, False, id="arguments"),
        pytest.param(table(", enable_weight_tying=True"), QWEN_FIELDS, True, id="one table"),
        pytest.param(table(""), QWEN_FIELDS + "\n    enable_weight_tying: bool = True", True,
                     id="one table by default"),
        pytest.param(QWEN_BUILT.format(build="_build_qwen3_layers"), "", True, id="a function"),
    ],
)  # fmt: skip
def test_a_dense_qwen3_of_other_sizes_is_priced_with_them(
    tmp_path: Path, init: str, fields: str, tied: bool
) -> None:
    """Qwen3 0.6B has 28 layers, heads of 128 and one table for both ends."""
    found = of_qwen(tmp_path, init, fields or "pass")
    assert found.model_config is not None
    names = ("model_type", "num_hidden_layers", "head_dim", "intermediate_size")
    assert [found.model_config[name] for name in names] == ["qwen3", 12, 64, 3072]
    assert found.model_config["tie_word_embeddings"] is tied
    assert found.unread == ()


@pytest.mark.parametrize(
    ("init", "fields"),
    [
        pytest.param(table(", moe_enabled=True"), QWEN_FIELDS, id="experts"),
        pytest.param(table(""), QWEN_FIELDS.replace("False", "True"), id="experts by default"),
        pytest.param(table(", qk_norm=False"), QWEN_FIELDS, id="no norms of heads"),
        pytest.param(table(""), QWEN_FIELDS.replace("True", "False"),
                     id="no norms by default"),
        pytest.param(table(""), QWEN_FIELDS + "\n    window: int = 0", id="a field"),
        pytest.param(QWEN_BUILT.format(build="_build_mine"), "pass", id="a call"),
    ],
)  # fmt: skip
def test_what_is_not_understood_of_a_copys_qwen3_is_named(
    tmp_path: Path, init: str, fields: str
) -> None:
    """Its other sizes are named."""
    found = of_qwen(tmp_path, init, fields)
    assert found.model_config is None
    said = [str(fact.value) for fact in found.unread]
    assert any("n_layers 12, qwen3-0.6b has 28" in each for each in said)
    assert any("head_dim 64, qwen3-0.6b has 128" in each for each in said)
