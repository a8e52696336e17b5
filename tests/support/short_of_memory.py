"""Small questions whose layouts are short of memory."""

from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.models import read_model
from meshplan.planner.search.rows.priced_space import Question


def question(model: str, gpus: int, engine: str) -> Question:
    """32 sequences of 8,192 tokens on A100."""
    return Question(
        model=read_model(model)[1], training=Training(seq_len=8192, global_batch_size=32),
        cluster=load_cluster("dgx-a100"), engine=load_engine(engine), gpus=gpus,
    )  # fmt: skip
