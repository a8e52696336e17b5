"""Which model a configuration function of torchtitan has: that of another registry is not known."""

from meshplan.executor.frameworks import read_config
from meshplan.planner.case.reading import Reading

HEAD = "from torchtitan.models.llama3 import model_registry\n"
REST = (
    "training=TrainingConfig(local_batch_size=1, seq_len=4096), "
    "parallelism=ParallelismConfig(tensor_parallel_degree=2))\n"
)


def _first(model: str, more: str = "", name: str = "own") -> Reading:
    made = f"    config = Trainer.Config({model}{REST}"
    text = f"{HEAD}def {name}() -> Trainer.Config:\n{made}{more}    return config\n"
    return read_config(text, "config_registry.py")


def test_a_registry_of_torchtitan_names_the_model() -> None:
    reading = _first('model_spec=model_registry("8B"), ')
    assert reading.facts["model"].value == "llama-3.1-8b"
    assert not reading.unknown_model


def test_another_registry_in_its_place_makes_the_model_unknown() -> None:
    """QIU023/torchtitan attention_residual: it was priced as the model that it starts from."""
    for reading in (
        _first('model_spec=model_registry("8B"), ', '    config.model_spec = other("8B")\n'),
        _first('model_spec=other("8B"), ', name="llama3_8b"),
    ):
        assert "model" not in reading.facts
        assert "other('8B')" in reading.unknown_model
    later = _first('model_spec=other("8B"), ', '    config.model_spec = model_registry("70B")\n')
    assert later.facts["model"].value == "llama-3.1-70b"


def test_a_flavor_that_no_catalogue_has_is_named() -> None:
    """QIU023/torchtitan qwen3_vl: priced as the settings file's model without a word."""
    reading = _first('model_spec=model_registry("2B"), ')
    assert "model_registry('2B')" in reading.unknown_model


def test_images_beside_the_text_are_named() -> None:
    tokenizer = 'tokenizer=MultiModalTokenizer.Config(image="<i>"), '
    reading = _first(f'model_spec=model_registry("8B"), {tokenizer}')
    assert any("images" in str(fact.value) for fact in reading.unread)
    assert not _first('model_spec=model_registry("8B"), ').unread


def test_an_argument_of_the_registry_that_may_change_the_model_is_named() -> None:
    """Such as a fork's `num_mtp_layers=1`; which attention is fused changes no sizes."""
    same = _first('model_spec=model_registry(flavor="8B", attn_backend="flex"), ')
    assert same.facts["model"].value == "llama-3.1-8b"
    assert not same.unread
    for more in ("num_mtp_layers=1", "2", "**kinds"):
        reading = _first(f'model_spec=model_registry("8B", {more}), ')
        assert any(more in str(fact.value) for fact in reading.unread), more


def test_a_model_by_a_local_name_is_the_call_that_the_name_holds() -> None:
    """pytorch/torchtitan models/llama3/config_registry.py, `model_spec = model_registry("8B")`."""
    made = f"    return Trainer.Config(model_spec=spec, {REST}"
    for call, model in (('model_registry("8B")', "llama-3.1-8b"), ('other("8B")', None)):
        text = f"{HEAD}def own() -> Trainer.Config:\n    spec = {call}\n{made}"
        fact = read_config(text, "config_registry.py").facts.get("model")
        assert (fact.value if fact else None) == model
    stored = _first(
        'model_spec=model_registry("70B"), ',
        '    spec = other("8B")\n    config.model_spec = spec\n',
    )
    assert "other('8B')" in stored.unknown_model


def test_a_long_call_is_not_copied_to_where_its_name_stands() -> None:
    """Thousands of copies of a call of thousands of arguments would take all memory."""
    numbers = ", ".join(f"a{number}=[0, 0, 0, 0, 0,\n 0, 0, 0, 0]" for number in range(100))
    made = f"    return Trainer.Config(model_spec=spec, {REST}"
    text = f"{HEAD}def own() -> Trainer.Config:\n    spec = model_registry({numbers})\n{made}"
    reading = read_config(text, "config_registry.py")
    assert "model" not in reading.facts
    assert "model_registry(...)" in reading.unknown_model
