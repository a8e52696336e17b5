"""Which published runs are incomplete because nobody says what network or card they ran on."""

import pytest

from benchmarks.accuracy.unstated_hardware import incomplete

SHARDED = {
    "id": "sharded", "grade": "B", "framework": "fsdp1", "layers": "32", "hidden": "4096",
    "ffn": "11008", "heads": "32", "kv_heads": "32", "vocab": "32000", "gated_mlp": "1",
    "tied": "0", "seq_len": "1024", "gpu": "a100-80gb-sxm", "gpus": "128", "gpus_per_node": "8",
    "interconnect": "", "world_allreduce_gbs": "", "precision": "bf16", "dp": "128", "zero": "3",
    "micro_batch": "1", "global_batch": "128", "step_time_s": "0.97", "oom": "",
    "flash_attention": "",
}  # fmt: skip
"""As yandex/YaFSDP@7dae63a README.md prints it, but of half as many tokens."""


@pytest.mark.parametrize(
    ("said", "found"),
    [
        pytest.param({}, True, id="one sequence each: gathers take as long as computing"),
        pytest.param({"seq_len": "8192"}, False, id="eight times the computing hides them"),
        pytest.param({"interconnect": "8x200Gb/s"}, False, id="the source says it"),
        pytest.param({"world_allreduce_gbs": "180"}, False, id="the job measured it"),
        pytest.param({"gpus": "8", "dp": "8", "global_batch": "8"}, False, id="one node"),
        pytest.param({"grade": "C"}, False, id="is doubtful already"),
        pytest.param({"step_time_s": "0.6"}, True, id="however near the prediction is"),
    ],
)
def test_a_network_that_decides_and_is_not_stated(said: dict[str, str], found: bool) -> None:
    """Half the bandwidth makes the step more than a tenth longer, and the row does not say which
    it is.
    """
    assert list(incomplete([SHARDED | said])) == [("sharded", "network")] * found


ONE_NODE = SHARDED | {"gpus": "8", "dp": "8", "global_batch": "8"}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        pytest.param({"gpu": "a800-80gb"}, True, id="a card of two forms"),
        pytest.param({"gpu": "a800-80gb", "interconnect": "NVLink"}, False, id="NVLink is SXM's"),
        pytest.param({}, False, id="SXM is said"),
        pytest.param({"gpu": "a800-80gb", "gpus": "1", "dp": "1", "global_batch": "1", "zero": "0",
                      "layers": "2"}, False, id="one card: a tenth of the time, links or not"),
    ],
)  # fmt: skip
def test_a_form_of_a_card_that_decides_and_is_not_stated(said: dict[str, str], found: bool) -> None:
    """Links of PCIe alone make the step more than a tenth longer."""
    assert list(incomplete([ONE_NODE | said])) == [("sharded", "card's form")] * found
