"""Any configuration is read or refused in words, whatever is in it."""

from hypothesis import given
from hypothesis import strategies as st

from meshplan.costmodels.model.config_fields import UnsupportedModel
from meshplan.costmodels.model.hf_config import FAMILIES, model_from_config
from meshplan.costmodels.model.parameters import model_parameters
from meshplan.costmodels.model.transformer import Model
from meshplan.hardware_profiles.load_models import load_model_config, model_names

CONFIGS = {name: load_model_config(name) for name in model_names()}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
FIELD_NAMES = sorted({key for config in CONFIGS.values() for key in config})


def read_or_refuse(config: object) -> None:
    """A configuration either becomes a model that can be counted or is refused in one line."""
    outcome = model_or_refusal(config)
    if isinstance(outcome, str):
        assert "\n" not in outcome
        assert len(outcome) < 500
    else:
        assert model_parameters(outcome).total > 0


def model_or_refusal(config: object) -> Model | str:
    try:
        return model_from_config(config, "fuzz")
    except UnsupportedModel as refusal:
        return str(refusal)


@given(JSON)
def test_any_json_is_read_or_refused(config: object) -> None:
    """No JSON document crashes the reader."""
    read_or_refuse(config)


@given(
    st.sampled_from(sorted(FAMILIES)),
    st.dictionaries(st.sampled_from(FIELD_NAMES), JSON | st.integers(1, 64), max_size=20),
)
def test_any_fields_of_a_family_are_read_or_refused(
    model_type: str, fields: dict[str, object]
) -> None:
    """No mixture of known field names and arbitrary values crashes a family's reader."""
    read_or_refuse(fields | {"model_type": model_type})


@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_a_damaged_config_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """A real configuration with any one field lost or replaced is read or refused."""
    config = dict(CONFIGS[name])
    key = data.draw(st.sampled_from(sorted(config)))
    if data.draw(st.booleans()):
        del config[key]
    else:
        config[key] = data.draw(JSON)
    read_or_refuse(config)
