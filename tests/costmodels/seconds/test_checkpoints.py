"""What PyTorch's checkpoints take the host where nothing compiles a layer."""

from dataclasses import replace

import pytest
from sites import site

from benchmarks.engine.checkpoint_host import WRAPS, kernels_of, layer_and_inputs, passes_of
from benchmarks.engine.dtensor_host import least_us
from meshplan.costmodels.layout import RecomputeModule
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.operations.kinds import Operation
from meshplan.costmodels.operations.layers import layer_operations
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.checkpoints import hooks_s
from meshplan.costmodels.seconds.kernels import Device
from meshplan.costmodels.seconds.layer import Pricer
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.tunings import Tuning

LLAMA = model_from_config(load_model_config("llama-3.1-8b"), "llama-3.1-8b")
BY_OPERATOR: tuple[RecomputeModule, ...] = ("norm", "pointwise", "linear_half")


def test_hooks_of_each_kind_of_checkpoint() -> None:
    """All of a layer, a list of operators, and modules that a framework replays by itself."""
    assert hooks_s(None) == (6.2e-6, 14.5e-6)
    assert hooks_s(BY_OPERATOR) == (34e-6, 37e-6)
    assert hooks_s(("core_attention",)) == (0.0, 0.0)


def _busy_host() -> tuple[Pricer, list[Operation]]:
    """A host that takes a second to issue a kernel, so that it alone is seen."""
    cluster = load_cluster("dgx-h100")
    assert cluster.kernels is not None
    device = Device(cluster.gpu, cluster.kernels, Tuning(launch_s=1.0), RECIPES["bf16"])
    alone = dict.fromkeys(("tp", "cp", "ep", "etp"), Group(1.0, 1.0))
    overlap = load_engine("torchtitan").overlap
    pricer = Pricer(device, cluster, alone, overlap=overlap, checkpoint_hooks=True)
    return pricer, list(
        layer_operations(site(LLAMA, 1, 1, sequence_parallel=False), LLAMA.kinds[0])
    )


@pytest.mark.parametrize("modules", [None, BY_OPERATOR])
def test_a_checkpoint_makes_forward_and_replay_longer(
    modules: tuple[RecomputeModule, ...] | None,
) -> None:
    """By the hooks' seconds for each kernel of the forward, in the replay too, which issues fewer;
    nothing where a compiler takes hooks away.
    """
    pricer, operations = _busy_host()
    kernels, (ahead_s, replay_s) = float(pricer.launches(operations)), hooks_s(modules)
    plain = pricer.cost(operations)
    hooked = pricer.replaying(plain, operations, modules, 0.0)
    compiled = replace(pricer, checkpoint_hooks=False).replaying(plain, operations, modules, 0.0)
    longer = [
        float(getattr(hooked, each).host_s - getattr(compiled, each).host_s)
        for each in ("forward", "replay", "input_grad", "weight_grad")
    ]
    assert longer == pytest.approx([kernels * ahead_s, kernels * replay_s, 0, 0])
    assert compiled.forward == plain.forward


def test_what_comes_once_per_step_hides_no_more_under_a_checkpoint() -> None:
    """A forward that hooks make longer hides more of a layer's own gathers alone."""
    pricer, operations = _busy_host()
    plain = pricer.cost(operations).forward
    hooked = pricer.replaying(pricer.cost(operations), operations, None, 0.0).forward
    assert hooked.room_s == pytest.approx(plain.room_s + hooked.host_s - plain.host_s)
    assert hooked.room_s > plain.room_s
    assert hooked.once_room_s == pytest.approx(plain.once_room_s) == pytest.approx(plain.room_s)


def test_the_hosts_checkpoints_stand_in_the_measured_order() -> None:
    """On this host too a list of operators costs most, and a checkpoint around a layer more than
    a second forward.
    """
    inputs = layer_and_inputs()
    assert kernels_of(*inputs) == 41
    taken = {name: least_us(passes_of(name, *inputs)[1], 2) for name in WRAPS}
    assert taken["none"] < taken["around"] < taken["operator"]
