"""Steps of Llama 3.1 8B."""

from meshplan.costmodels.layout import Layout, Stage
from meshplan.costmodels.model.hf_config import model_from_config
from meshplan.costmodels.model.transformer import Model
from meshplan.costmodels.step.step import Setting, StepModel
from meshplan.costmodels.training import Lora, Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.load_models import load_model_config
from meshplan.hardware_profiles.tunings import Tuning

LLAMA = model_from_config(load_model_config("llama-3.1-8b"), "llama-3.1-8b")


LAYERS = 32


ALONE = Layout(stages=(Stage(LAYERS),))


def step(
    lora: Lora | None,
    layout: Layout = ALONE,
    engine: str = "generic",
    model: Model = LLAMA,
    **training: object,
) -> StepModel:
    """A step of Llama 3.1 8B (h 4096, 8 key/value heads of 128, f 14336) on H100s."""
    job = Training(**{"seq_len": 4096, "global_batch_size": 8, "lora": lora, **training})
    cluster = load_cluster("dgx-h100")
    return StepModel(Setting(model, job, cluster, load_engine(engine), Tuning()), layout)
