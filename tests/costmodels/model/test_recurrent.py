"""Recurrent mixers, indexers and gates: parameters, FLOPs and exchanges worked out by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshplan.costmodels.layout import InvalidLayout, Layout, Stage, check_layout
from meshplan.costmodels.model.compression import Indexer
from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.parameters import layer_parameters
from meshplan.costmodels.model.rare_parts import rare_parts
from meshplan.costmodels.model.recurrent import Recurrent
from meshplan.costmodels.model.transformer import Attention, Layer, Model
from meshplan.costmodels.operations.feed_forward import Site
from meshplan.costmodels.operations.kinds import AttentionCore, Communication, Matmul, Scan
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.operations.rank_share import Shard
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.kernels import Device, scan_s
from meshplan.costmodels.seconds.layer import DIRECTIONS
from meshplan.costmodels.seconds.operation import attention_pass_s
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.built_in import load_gpu, load_kernels
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.tunings import Tuning

T, H = 1024, 256
STATE = Recurrent(
    kind="a state", heads=8, key_dim=16, value_dim=32, groups=8, chunk=64, inner=256,
    projections=520, convolution=4, convolved=264, convolution_bias=True, numbers=24,
)  # fmt: skip


def model_of(layer: Layer) -> Model:
    return Model(name="one", hidden=H, vocab=1000, kinds=(layer,), pattern=(0, 0))


def operations(layer: Layer, **degrees: float) -> list[Any]:
    shares = {"tp": 1.0, "cp": 1.0, "ep": 1.0, "etp": 1.0} | degrees
    tokens = T / shares["cp"]
    shard = Shard(
        seq_len=T, document_len=T, tokens=tokens, tokens_outside=tokens / shares["tp"],
        sequence_parallel=float(shares["tp"] > 1), **shares,
    )  # fmt: skip
    return list(
        layer_operations(Site(model_of(layer), shard, load_engine("generic").kernels), layer)
    )


def scan_of(layer: Layer, **degrees: float) -> Scan:
    (found,) = (op for op in operations(layer, **degrees) if isinstance(op, Scan))
    return found


@pytest.mark.parametrize(
    ("mixer", "parameters"),
    [
        pytest.param(
            STATE, 256 * 520 + 256 * 256 + 264 * 5 + 24,
            id="h p 256 x 520 + out 256 x 256 + conv 264 x (4 + bias) + 24 numbers",
        ),
        pytest.param(
            replace(STATE, low_rank=((16, 256),), convolution=0, convolved=0),
            256 * 520 + 256 * 256 + 256 * 16 + 16 * 256 + 24, id="+ 256 x 16 + 16 x 256 narrow",
        ),
        pytest.param(
            replace(STATE, selection=48, step_rank=16, convolution=0, convolved=0),
            256 * 520 + 256 * 256 + 256 * (48 + 16) + 24, id="+ 256 inner x (48 + 16)",
        ),
    ],
)  # fmt: skip
def test_parameters_of_a_mixer(mixer: Recurrent, parameters: int) -> None:
    """Projections, what is selected, the convolution and the learnt numbers."""
    layer = Layer(recurrent=mixer, ffn=512)
    assert layer_parameters(model_of(layer), layer).recurrent == parameters


@pytest.mark.parametrize(
    ("mixer", "tokens_bytes", "states"),
    [
        pytest.param(
            STATE, 2 * T * (2 * 16 * 8 + 2 * 32 * 8), T / 64,
            id="2 t (B, C: 2 n g + in, out: 2 v a), a state for each chunk of 64",
        ),
        pytest.param(
            replace(STATE, groups=1), 2 * T * (2 * 16 + 2 * 32 * 8), T / 64,
            id="keys shared by all heads: 2 t (2 n + 2 v a)",
        ),
        pytest.param(
            replace(STATE, chunk=1), 2 * T * (2 * 16 * 8 + 2 * 32 * 8), T / 2048,
            id="token by token: a state for each 2,048",
        ),
    ],
)  # fmt: skip
def test_bytes_of_a_scan(mixer: Recurrent, tokens_bytes: float, states: float) -> None:
    """Inputs and output once in 16 bits; each kept fp32 state, a n v numbers, written and read."""
    found = scan_of(Layer(recurrent=mixer, ffn=512))
    assert found.forward_bytes == tokens_bytes + 2 * states * 4 * 8 * 16 * 32
    assert found.saved_bytes == states * 4 * 8 * 16 * 32


@pytest.mark.parametrize(
    ("mixer", "flops"),
    [
        pytest.param(
            STATE, T * 64 * (16 * 8 + 32 * 8) + 4 * T * 16 * 32 * 8,
            id="t c (n g + v a) + 4 t n v a = 1024 64 (128 + 256) + 4 1024 16 32 8",
        ),
        pytest.param(
            replace(STATE, groups=1), T * 64 * (16 + 32 * 8) + 4 * T * 16 * 32 * 8,
            id="keys shared by all heads: t c (n + v a)",
        ),
        pytest.param(
            replace(STATE, delta_rule=True),
            T * 64 * (16 * 8 + 32 * 8) + 4 * T * 16 * 32 * 8
            + T * 64 * (16 + 32) * 8 + 2 * T * 16 * 32 * 8,
            id="delta rule: + t c (n + v) a + 2 t n v a",
        ),
        pytest.param(replace(STATE, chunk=1), 4 * T * 16 * 32 * 8, id="token by token: 4 t n v a"),
    ],
)  # fmt: skip
def test_flops_of_a_scan(mixer: Recurrent, flops: float) -> None:
    """Products between the tokens of a chunk, and of each token with the state."""
    layer = Layer(recurrent=mixer, ffn=512)
    assert scan_of(layer).forward_flops == flops
    assert scan_of(layer, tp=4.0).forward_flops == flops / 4
    assert scan_of(layer, cp=2.0).forward_flops == flops / 2


@pytest.mark.parametrize(
    ("gpu", "delta_rule", "tokens", "heads", "forward_ms", "backward_ms"),
    [
        pytest.param("h100-sxm", False, 8192, 96, 0.961, 2.465, id="retention, H100"),
        pytest.param("b200", True, 8192, 96, 1.204, 4.184, id="gated delta rule, B200"),
        pytest.param("b200", True, 16384, 64, 1.517, 5.428, id="the same, four sequences"),
        pytest.param("b200", False, 8192, 96, 0.599, 2.985, id="simple gated attention, B200"),
    ],
)
def test_published_scans(
    gpu: str, delta_rule: bool, tokens: int, heads: int, forward_ms: float, backward_ms: float
) -> None:
    """Heads of 128 x 128 in chunks of 64, as pytorch/helion (examples/fla, examples/linear) timed
    flash-linear-attention's kernels: within a fifth.
    """
    mixer = replace(
        STATE, heads=heads, groups=heads, key_dim=128, value_dim=128, chunk=64,
        inner=128 * heads, delta_rule=delta_rule,
    )  # fmt: skip
    device = Device(load_gpu(gpu), load_kernels(gpu), Tuning(), RECIPES["bf16"])
    op = scan_of(Layer(recurrent=mixer, ffn=512), cp=T / tokens)
    assert scan_s(device, op, backward=False) == pytest.approx(forward_ms / 1e3, rel=0.2)
    assert scan_s(device, op, backward=True) == pytest.approx(backward_ms / 1e3, rel=0.2)
    passes = [attention_pass_s(device, op, direction) for direction in DIRECTIONS]
    assert passes == [scan_s(device, op, backward=False), scan_s(device, op, backward=True), 0.0]


@pytest.mark.parametrize(
    ("mixer", "forward", "backward"),
    [
        pytest.param(STATE, 5, 4 + 1 + 8 + 2 + 6, id="Mamba-2's: 5; 4 + 1 + 8 + 2 + 6"),
        pytest.param(
            replace(STATE, delta_rule=True), 2 + 6, 2 + 5 + 3 + 2,
            id="a delta rule's: 2 norms + 6; 2 again + 5 gradients + 3 sums + 2 norms",
        ),
        pytest.param(replace(STATE, chunk=1), 1, 1, id="Mamba's: 1; 1"),
    ],
)  # fmt: skip
def test_kernels_of_a_scan(mixer: Recurrent, forward: int, backward: int) -> None:
    """As their sources launch them."""
    found = scan_of(Layer(recurrent=mixer, ffn=512))
    assert (found.kernels, found.backward_kernels) == (forward, backward)


def test_copies_around_a_delta_rule() -> None:
    """4 key heads of 16 numbers for 8 heads: k 2 x 4 x 16, r 2 x 8 x 16, v 8 x 32, p 656; 5 k + r +
    6 v = 2432 numbers of 16 bits a token, and r + 4 k + 2 v + 2 p = 2592 backward; with a key for
    each head none.
    """
    shared = replace(STATE, delta_rule=True, convolved=128 + 256, projections=656)
    (found,) = (op for op in operations(Layer(recurrent=shared, ffn=512), tp=2.0)
                if op.name == "recurrent_copies")  # fmt: skip
    assert (found.forward_bytes, found.backward_bytes) == (2 * T * 1216, 2 * T * 1296)
    alone = replace(shared, convolved=256 + 256)
    names = [op.name for op in operations(Layer(recurrent=alone, ffn=512))]
    assert "scan" in names
    assert "recurrent_copies" not in names


@pytest.mark.parametrize(
    ("mixer", "name", "numbers"),
    [
        pytest.param(
            replace(STATE, selection=64, selection_blocks=8), "selection", 8 * 64,
            id="8 heads' blocks of 64 columns each",
        ),
        pytest.param(replace(STATE, selection=64), "selection", 64, id="64 columns of them all"),
        pytest.param(STATE, "convolution", 264, id="its output; its input the projection keeps"),
        pytest.param(
            replace(STATE, key_dim=0), "convolution", 2 * 264, id="and its input, which a gate made"
        ),
    ],
)  # fmt: skip
def test_what_a_mixer_keeps(mixer: Recurrent, name: str, numbers: int) -> None:
    """Numbers of 16 bits for each token."""
    (found,) = (op for op in operations(Layer(recurrent=mixer, ffn=512)) if op.name == name)
    assert found.saved_bytes == 2 * T * numbers


def test_ranks_of_a_sequence_exchange_states() -> None:
    """Under context parallelism each of two ranks sends a state of 8 x 16 x 32 fp32 numbers."""
    layer = Layer(recurrent=STATE, ffn=512)

    def states(**degrees: float) -> list[Communication]:
        return [op for op in operations(layer, **degrees)
                if isinstance(op, Communication) and op.name == "states"]  # fmt: skip

    (alone,), (split,) = states(), states(cp=2.0)
    assert alone.forward_count == 0
    assert (split.forward_count, split.size_bytes) == (1, 2 * 4 * 8 * 16 * 32)


def test_tensor_parallel_cuts_whole_recurrent_heads() -> None:
    """Eight heads of a state are not cut over sixteen ranks."""
    layer = Layer(recurrent=STATE, ffn=512)
    layout = Layout(data_parallel=1, tensor_parallel=16, sequence_parallel=True, stages=(Stage(2),))
    with pytest.raises(
        InvalidLayout, match="8 recurrent heads do not divide by tensor_parallel 16"
    ):
        check_layout(layout, model_of(layer), Training(seq_len=T, global_batch_size=1))


def attention(**changes: Any) -> Layer:
    at = Attention(heads=8, kv_heads=2, head_dim=32, v_head_dim=32, **changes)
    return Layer(attention=at, ffn=512)


@pytest.mark.parametrize(
    ("gate", "columns"),
    [
        pytest.param("head", 8, id="one number for each of 8 heads"),
        pytest.param("full", 256, id="8 heads x 32"),
    ],
)
def test_a_gate_is_a_projection_of_the_input(gate: Any, columns: int) -> None:
    """Parameters and FLOPs of the gate come from the same columns."""
    gated, plain = attention(gate=gate), attention()
    more = (
        layer_parameters(model_of(gated), gated).total
        - layer_parameters(model_of(plain), plain).total
    )
    assert more == H * columns
    (found,) = (op for op in operations(gated) if op.name == "attention_gate")
    assert found.forward_flops == 2 * T * H * columns


def test_sparse_attention_meets_the_chosen_keys_only() -> None:
    """Of 128 of 1,024 keys a query meets 128 - 128^2 / 2048 on average, its indexer 512."""
    layer = attention(indexer=Indexer(heads=4, head_dim=16, top_k=128))
    cores = {op.name: op for op in operations(layer) if isinstance(op, AttentionCore)}
    assert cores["core_attention"].keys == 128 - 128 * 128 / 2048
    assert cores["index_scores"].forward_flops == 2 * T * 512 * 4 * (16 + 1)


def test_shared_keys_are_projected_once() -> None:
    """A layer that reads an earlier layer's keys and values projects its queries only."""

    def columns(layer: Layer) -> float:
        (qkv,) = (op for op in operations(layer) if isinstance(op, Matmul) and op.name == "qkv")
        return float(qkv.n)

    assert columns(attention()) == 8 * 32 + 2 * 2 * 32
    assert columns(attention(own_values=False)) == 8 * 32 + 2 * 32
    assert columns(attention(own_keys=False)) == 8 * 32


def test_rare_parts_are_named() -> None:
    """What frameworks do not have in common is said in words; a plain model has none."""
    path = Path(__file__).with_name("family_configs.json")
    counted = json.loads(path.read_text())

    def parts(name: str) -> tuple[str, ...]:
        return rare_parts(model_from_config(counted[name]["config"], name))

    assert parts("llama") == parts("mixtral") == parts("deepseek_v3") == ()
    assert parts("qwen3_next")[:2] == ("gated DeltaNet layers", "a gate on the attention's output")
    assert "sparse attention with an indexer" in parts("deepseek_v32")
    assert "Mamba-2 layers" in parts("nemotron_h")


def test_a_pattern_of_other_layers_than_stated_is_refused() -> None:
    """54 letters for 52 layers are two models; where no number is stated the letters count."""
    path = Path(__file__).with_name("published_configs.json")
    config = json.loads(path.read_text())["Nemotron-H-8B"]["config"]
    letters = config["hybrid_override_pattern"]
    other = config | {"num_hidden_layers": len(letters) + 2}
    with pytest.raises(UnsupportedModel, match=f"{len(letters)} letters for {len(letters) + 2}"):
        model_from_config(other, "x")
    del other["num_hidden_layers"]
    assert model_from_config(other, "x").num_layers == len(letters)


def test_layers_behind_the_last_whole_group_have_attention() -> None:
    """22 layers of Ring-mini-linear in groups of five: 4, 9, 14, 19 and the two that are left."""
    path = Path(__file__).with_name("published_configs.json")
    config = json.loads(path.read_text())["Ring-mini-linear-2.0"]["config"]
    model = model_from_config(config | {"num_hidden_layers": 22}, "x")
    full = [at for at, kind in enumerate(model.pattern) if model.kinds[kind].recurrent is None]
    assert full == [4, 9, 14, 19, 20, 21]
