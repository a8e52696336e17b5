"""Each field of each family changed, against the modules that transformers builds then.

An optional group (docs/frameworks.md): it needs transformers 5.24 and torch.
"""

import warnings

import pytest

from benchmarks.models import published_fuzz, together_fuzz, tower_fuzz
from benchmarks.models.family_fuzz import READ_AS_TRAINED, causal_families, others_than, outcomes
from benchmarks.models.tower_fuzz import seen_families
from meshplan.costmodels.model.text_parts import TIED, UNTIED

pytestmark = [pytest.mark.frameworks, pytest.mark.nightly]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """transformers warns of what its own configurations say."""
    pytest.importorskip("transformers").logging.set_verbosity_error()
    warnings.simplefilter("ignore")


@pytest.mark.parametrize("part", range(16))
def test_no_field_changes_the_parameters_in_silence(part: int) -> None:
    """A changed number or flag gives the module's parameters, or is refused; one family in 16."""
    silent = [
        f"{model_type}.{each.field} = {each.value}: {each.detail}"
        for model_type in causal_families()[part::16]
        for each in outcomes(model_type)
        if each.word in ("different", "crashed")
    ]
    assert silent == []


@pytest.mark.parametrize("model_type", seen_families())
def test_no_field_of_a_tower_changes_it_in_silence(model_type: str) -> None:
    """The same of vision parts: the tower's parameters, or no tower and the reason."""
    silent = [
        f"{each.field} = {each.value}: {each.detail}"
        for each in tower_fuzz.outcomes(model_type)
        if each.word in ("different", "crashed")
    ]
    assert silent == []


@pytest.mark.parametrize("seed", ["1", "2", "3", "4"])
def test_no_field_of_a_published_file_changes_it_in_silence(seed: str) -> None:
    """Sixty files a seed, twelve drawn fields of each: the module's parameters, or a refusal."""
    silent = [
        f"{name}, {each.field} = {each.value}: {each.detail}"
        for name, config in published_fuzz.drawn(seed, 60).items()
        for each in published_fuzz.outcomes(name, config, 12, seed)
        if each.word in ("different", "crashed")
    ]
    assert silent == []


@pytest.mark.parametrize("part", range(8))
def test_no_fields_together_change_the_cost_in_silence(part: int) -> None:
    """Most fields of a family at once: the module's parameters and FLOPs, or a refusal."""
    silent = [
        f"{model_type} {each.field}: {each.detail}"
        for model_type in causal_families()[part::8]
        for each in together_fuzz.outcomes(model_type, "1", 4)
        if each.word in ("different", "crashed")
    ]
    assert silent == []


def test_whole_files_tie_as_their_classes_say() -> None:
    """The types whose whole part means something by leaving the tie out, and what."""
    known = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    for listed, tied in ((TIED, True), (UNTIED, False)):
        assert {name for name in listed if known[name].tie_word_embeddings is not tied} == set()


def test_the_fuzz_changes_what_it_says() -> None:
    """It finds the difference of a field that is known to be read otherwise, so it is no empty one:
    MPT's module has four times the hidden size whatever `expansion_ratio` says.
    """
    known = READ_AS_TRAINED.pop(("mpt", "expansion_ratio"))
    try:
        words = {each.word for each in outcomes("mpt") if each.field == "expansion_ratio"}
    finally:
        READ_AS_TRAINED["mpt", "expansion_ratio"] = known
    assert words == {"different"}
    assert others_than(True) == [False]
