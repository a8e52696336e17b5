"""Tensor parallelism by DTensor without a compiler: the host's seconds, and what is sent."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch.distributed as dist
from sites import S, site
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.engine.dtensor_host import collectives_of, passes_of
from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.operations.kinds import Communication
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.kernels import Device
from meshplan.costmodels.seconds.layer import Pricer
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.step import StepModel
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.kernel_habits import DTensorPlan
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.tunings import Tuning

LLAMA = model_from_config(load_model_config("llama-3.1-8b"), "llama-3.1-8b")
ENTRY = Communication(
    name="attention_input", axis="tp", kind="all_gather", size_bytes=0.0, forward_count=1.0,
    backward_count=1.0, hidden_by="linear",
)  # fmt: skip


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Of eight ranks whose collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield init_device_mesh("cpu", (8,))
    dist.destroy_process_group()


def boundaries(
    plan: str, *, sequence_parallel: bool, model: Model = LLAMA, keeps: bool = True
) -> list[Communication]:
    """Of the model's first kind of layer on 8 ranks; it `keeps` what it gathers, or does not."""
    where = site(model, 1, 8, sequence_parallel=sequence_parallel)
    kernels = load_engine("torchtitan").kernels.model_copy(
        update={"dtensor": plan, "gathers_cast": False, "saves_gathered": keeps}
    )
    operations = layer_operations(replace(where, kernels=kernels), model.kinds[0])
    return [op for op in operations if isinstance(op, Communication) and op.axis == "tp"]


def sent(plan: str, *, sequence_parallel: bool) -> tuple[float, float]:
    """Collectives forward and backward; an all-reduce is listed as two."""
    entries = boundaries(plan, sequence_parallel=sequence_parallel)
    each = 1 if sequence_parallel else 2
    forward, backward = (
        sum(float(getattr(op, f"{way}_count")) for op in entries) / each
        for way in ("forward", "backward")
    )
    return forward, backward


@pytest.mark.parametrize(
    ("plan", "sequence_parallel", "behind"),
    [
        pytest.param("columns", False, 0, id="each product sums its input's gradient"),
        pytest.param("sequence", True, 1, id="each product gathers its input"),
        pytest.param("prepared", True, 0, id="one gather for products of one input"),
    ],
)
def test_a_layer_sends_what_torch_sends(
    plan: str, sequence_parallel: bool, behind: int, mesh: DeviceMesh
) -> None:
    """As CommDebugMode counts; `behind` is the gather of an output's gradient, which the sum behind
    the layer has whole.
    """
    forward, both = map(collectives_of, passes_of(plan, mesh, inner=False))
    found = forward, both - forward + behind
    assert sent(plan, sequence_parallel=sequence_parallel) == found


@pytest.mark.parametrize(
    ("engine", "backward"),
    [
        pytest.param("deepspeed", 5, id="AutoTP: q, k and v, gate and up"),
        pytest.param("accelerate", 2, id="one of each half"),
    ],
)
def test_deepspeeds_products_send_their_inputs_gradients_apart(engine: str, backward: int) -> None:
    """Backward; forward all sum twice, behind attention and feed-forward."""
    where = replace(site(LLAMA, 1, 8, sequence_parallel=False), kernels=load_engine(engine).kernels)
    operations = layer_operations(where, LLAMA.kinds[0])
    sums = [op for op in operations if isinstance(op, Communication) and op.axis == "tp"]
    assert sum(float(op.forward_count) for op in sums) / 2 == 2
    assert sum(float(op.backward_count) for op in sums) / 2 == backward


def test_each_product_keeps_what_it_gathered() -> None:
    """Queries, keys and values three whole inputs, gate and up two; none without sequence parallel,
    where all read one tensor.
    """
    kept = {
        (plan, each): [float(op.saved_bytes) for op in boundaries(plan, sequence_parallel=each)]
        for plan in ("columns", "sequence", "prepared")
        for each in (False, True)
    }
    attention, _, feed_forward, _ = kept["prepared", True]
    assert attention == feed_forward == 2 * S * LLAMA.hidden
    assert kept["sequence", True] == [3 * attention, 0, 2 * feed_forward, 0]
    assert kept["columns", False] == kept["prepared", False]


def test_each_product_gathers_again_what_it_does_not_keep() -> None:
    """Backward three scatter their input's gradient and gather it again; one for one of all."""
    for plan, products in (("sequence", 3), ("prepared", 1)):
        entry = boundaries(plan, sequence_parallel=True, keeps=False)[0]
        counts = entry.forward_count, entry.backward_count, entry.regathers
        assert counts == (products, 2 * products, products)


def test_latent_attention_is_entered_once() -> None:
    """Queries and latents that all ranks have are no products of columns."""
    latent = model_from_config(load_model_config("deepseek-v3"), "deepseek-v3")
    assert boundaries("sequence", sequence_parallel=True, model=latent)[0].forward_count == 1


@pytest.mark.parametrize(
    ("plan", "ranks", "issued"),
    [
        pytest.param("kept", 2, (3.1e-3 / 4, 4.8e-3 / 4), id="a fourth of a layer's"),
        pytest.param("columns", 2, (1.8e-3 / 4, 2.9e-3 / 4), id="fewer DTensors"),
        pytest.param("kept", 1, (0, 0), id="no tensor parallelism"),
        pytest.param("", 2, (0, 0), id="compiled"),
    ],
)
@pytest.mark.parametrize("cluster_name", ["dgx-h100", "alps-gh200"])
def test_a_boundary_takes_the_host_its_plan(
    plan: DTensorPlan, ranks: int, issued: tuple[float, float], cluster_name: str
) -> None:
    """And a slower host by as much longer; weights' gradients come with those of inputs."""
    cluster = load_cluster(cluster_name)
    assert cluster.kernels is not None
    device = Device(cluster.gpu, cluster.kernels, Tuning(launch_s=0.0), RECIPES["bf16"])
    groups = dict.fromkeys(("cp", "ep", "etp"), Group(1.0, 1.0)) | {"tp": Group(ranks, 1.0)}
    pricer = Pricer(
        device, cluster, groups, overlap=load_engine("torchtitan").overlap, dtensor=plan
    )
    found = [pricer.issued_s([ENTRY], way) for way in ("forward", "input_grad", "weight_grad")]
    assert found == pytest.approx([each * cluster.host_slowdown for each in (*issued, 0)])


@pytest.mark.parametrize("ranks", [1, 8])
def test_only_short_steps_under_tensor_parallelism_wait_for_dtensors(ranks: int) -> None:
    """A sequence of 1,024 tokens on 8 ranks leaves the host 32 layers' forward and backward; steps
    without tensor parallelism take what they took.
    """
    training = Training(seq_len=1024, global_batch_size=8 // ranks)
    layout = Layout(
        tensor_parallel=ranks, data_parallel=8 // ranks, sequence_parallel=ranks > 1, zero_stage=3,
        stages=even_stages(LLAMA.num_layers, 1),
    )  # fmt: skip
    engine = load_engine("torchtitan")
    kernels = engine.kernels.model_copy(update={"dtensor": "kept"})
    plain, kept = (
        StepModel(Setting(LLAMA, training, load_cluster("dgx-h100"), one, Tuning()), layout).time()
        for one in (engine, engine.model_copy(update={"kernels": kernels}))
    )
    added = kept.step_time_s - plain.step_time_s
    if ranks == 1:
        assert added == 0
    else:
        layers = 32 * (3.1e-3 + 4.8e-3)
        assert 0.5 * layers < added < layers * 1.1
