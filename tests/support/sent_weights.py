"""Weights and gradients to send, by round numbers."""

from links import link

from meshplan.costmodels.layout import Layout, even_stages
from meshplan.costmodels.memory.states import NONE_FROZEN
from meshplan.costmodels.model.parameters import RankParameters
from meshplan.costmodels.step.step import Setting
from meshplan.costmodels.training import Precision, Training
from meshplan.costmodels.weights.traffic import WeightTraffic, weight_traffic
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.tunings import Tuning

BILLION = RankParameters(dense=1e9)


def four_a_node() -> Cluster:
    """4 GPUs a node; 1 us and 100 GB/s inside, 10 us and 200 GB/s a node outside."""
    return load_cluster("dgx-h100").model_copy(
        update={
            "gpus_per_node": 4, "node": link(1e-6, 100e9), "network": link(10e-6, 200e9),
            "bandwidth_by_nodes": {},
        }
    )  # fmt: skip


def traffic(cluster: Cluster, engine: str, **traits: int) -> WeightTraffic:
    layout = Layout(stages=even_stages(8, traits.get("pipeline_parallel", 1)), **traits)
    return weight_traffic(layout, cluster, load_engine(engine), 1.0, NONE_FROZEN, trained("fp16"))


def trained(precision: Precision) -> Training:
    return Training(seq_len=4096, global_batch_size=64, precision=precision)


def setting_of(models, cluster: Cluster, batch: int, *, hides: float) -> Setting:
    engine = load_engine("deepspeed")
    overlap = engine.overlap.model_copy(update={"data_reduce": hides, "weight_gather": hides})
    training = Training(seq_len=512, global_batch_size=batch)
    return Setting(
        models["dense"], training, cluster, engine.model_copy(update={"overlap": overlap}),
        Tuning(interference=0.0),
    )  # fmt: skip
