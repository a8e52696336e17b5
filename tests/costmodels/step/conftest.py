"""The question that a step is priced under where its test names no other."""

import pytest

from meshplan.costmodels.step.step import Setting
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.tunings import Tuning


@pytest.fixture(scope="module")
def setting(models) -> Setting:
    """The dense model under Megatron on DGX H100, nothing fitted."""
    training = Training(seq_len=4096, global_batch_size=64)
    cluster, engine = load_cluster("dgx-h100"), load_engine("megatron")
    return Setting(models["dense"], training, cluster, engine, Tuning())
