"""Engines of a user's own: what their files say, and what is wrong with them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from meshplan.hardware_profiles import engines
from meshplan.hardware_profiles.engines import UnknownEngine, fitted_as, load_engine
from meshplan.hardware_profiles.tunings import load_fit

OF_NAMES = (engines._own_names, engines._text, engines._document, engines.engine_names)
CACHED = (*OF_NAMES, load_engine, fitted_as, load_fit)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that MESHPLAN_ENGINES names."""
    monkeypatch.setattr(engines, "OWN", tmp_path)
    for each in CACHED:
        each.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    for each in CACHED:
        each.cache_clear()


def test_a_file_says_what_differs_from_its_base(own: Path) -> None:
    """Everything else, and the constants, are the base's."""
    (own / "ours.toml").write_text(
        'based_on = "megatron"\n[kernels]\nfused_norm = false\n[overlap]\ndata_reduce = 0.0\n'
    )
    found, base = load_engine("ours"), load_engine("megatron")
    assert (found.name, found.title, found.aliases) == ("ours", "ours", ())
    assert found.kernels == base.kernels.model_copy(update={"fused_norm": False})
    assert found.overlap == base.overlap.model_copy(update={"data_reduce": 0.0})
    assert (found.state, found.legality) == (base.state, base.legality)
    assert fitted_as("ours") == "megatron"
    assert load_fit("ours", "h100-sxm") == load_fit("megatron", "h100-sxm")


def test_a_file_without_a_base_is_of_a_framework_that_nobody_knows(own: Path) -> None:
    """Its constants are those of all engines."""
    (own / "ours.toml").write_text("[kernels]\nfused_rope = false\n")
    assert load_engine("ours").state == load_engine("generic").state
    assert load_fit("ours", "h100-sxm") == load_fit("generic", "h100-sxm")


def test_a_fork_may_have_no_constants_of_its_base(own: Path) -> None:
    """`fitted_as` counts before the base."""
    (own / "ours.toml").write_text('based_on = "megatron"\nfitted_as = "generic"\n')
    assert load_fit("ours", "h100-sxm") == load_fit("generic", "h100-sxm")


def test_a_file_does_not_take_the_place_of_an_engine_that_ships(own: Path) -> None:
    """Measured rows and plans mean ours by that name."""
    (own / "megatron.toml").write_text("[kernels]\nfused_norm = false\n")
    (own / "meta.toml").write_text("[kernels]\nfused_norm = false\n")
    assert load_engine("megatron").kernels.fused_norm
    assert load_engine("meta").title != "meta"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("[kernels]\nflash = true\n", "kernels.flash: no such field", id="a slip"),
        pytest.param("[overlap]\ntensor = 'much'\n", "overlap.tensor", id="no number"),
        pytest.param('based_on = "ours"\n', "no engine that ships", id="based on itself"),
        pytest.param('based_on = ["x"]\n', "no engine that ships", id="based on a list"),
        pytest.param("kernels = 3\n", "kernels is a table", id="no table"),
        pytest.param("x = [", "cannot be read as an engine", id="no TOML"),
        pytest.param('name = "theirs"\n', "its name is 'theirs'", id="another name"),
    ],
)
def test_a_faulty_file_is_named_with_its_fault(own: Path, text: str, fault: str) -> None:
    """In one line, whichever way the engine is asked for."""
    (own / "ours.toml").write_text(text)
    with pytest.raises(UnknownEngine) as error:
        load_engine("ours")
    assert fault in str(error.value)
    assert str(own / "ours.toml") in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_name_lists_ones_own_too(own: Path) -> None:
    """As what is close, and what is known."""
    (own / "ours.toml").write_text("")
    for name in ("our", "OURS"):
        with pytest.raises(UnknownEngine, match="did you mean ours"):
            load_engine(name)


def test_a_folder_that_is_not_there_is_named(own: Path) -> None:
    own.rmdir()
    with pytest.raises(UnknownEngine, match=f"MESHPLAN_ENGINES: {own} is no folder$"):
        load_engine("mine")
