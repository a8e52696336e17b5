"""The datasheets: names, dense peaks, units, and a source for each number."""

import csv
from pathlib import Path

import pytest

from meshplan import hardware_profiles
from meshplan.hardware_profiles.built_in import gpu_names, load_gpu, load_kernels, usual_cluster

PUBLISHED = Path(hardware_profiles.__file__).parent / "published"
GIB = 2**30

IN_PUBLISHED_RUNS = [
    "h100-sxm", "a100-80gb-sxm", "a100", "gb200", "b200", "gb300", "a100-40gb-sxm",
    "h100-96gb-hbm2e-500w", "v100-32gb", "b300", "hopper-80gb", "mi300x", "h200", "mi355x",
    "v100-16gb", "a800-or-h800-80gb",
]  # fmt: skip
SPEC = {
    "a100-80gb-sxm": "NVIDIA A100 SXM",
    "h100-sxm": "NVIDIA H100 SXM",
    "h100-pcie": "NVIDIA H100 PCIe",
    "h200": "NVIDIA H200 SXM",
    "b200": "NVIDIA B200 SXM",
    "b300": "NVIDIA B300 SXM",
    "gb200": "NVIDIA GB200 SXM",
    "gb300": "NVIDIA GB300 SXM",
    "gh200": "NVIDIA GH200 SXM",
    "l40s": "NVIDIA L40S",
    "mi300x": "AMD MI300X",
    "mi355x": "AMD MI355X",
}


@pytest.mark.parametrize(("name", "expected"), [("v100-32gb", "fp16"), ("a100-80gb-sxm", "bf16")])
def test_a_card_without_bf16_trains_in_fp16(name: str, expected: str) -> None:
    """Volta has no bf16 units; what comes after it has."""
    gpu = load_gpu(name)
    assert gpu.format_16_bit == expected
    assert gpu.peak_flops_per_s[gpu.format_16_bit] > 1e14


@pytest.mark.parametrize("name", gpu_names())
def test_every_number_has_a_source(name: str) -> None:
    """Each figure of a datasheet, and each fraction of its kernels, says where it was read."""
    gpu, kernels = load_gpu(name), load_kernels(name)
    figures = {"memory_bytes", "memory_bandwidth_bytes_per_s", "peak_flops_per_s", "compute_units"}
    figures |= {"power_w"} if gpu.power_w else set()
    assert figures <= set(gpu.sources)
    fitted = {"matmul_efficiency", "attention_forward", "attention_backward", "memory_efficiency"}
    fitted |= {"launch_s"}
    fitted |= {"matmul_points"} if kernels.matmul_points else set()
    fitted |= {"attention_points"} if kernels.attention_points else set()
    assert fitted <= set(kernels.sources)
    assert kernels.gpu == gpu.name
    assert kernels.conditions["kind"] in {"published", "measured"}


@pytest.mark.parametrize("name", [name for name in gpu_names() if name != "cpu"])
def test_figures_are_in_si(name: str) -> None:
    """A GPU has 8 to 512 GiB, 0.3 to 10 TB/s, 0.07 to 10 PFLOP/s: slips of 1e3 or 2**30 show."""
    gpu = load_gpu(name)
    assert 8 * GIB < gpu.memory_bytes < 512 * GIB
    assert 0.3e12 <= gpu.memory_bandwidth_bytes_per_s < 10e12
    assert 0.07e15 <= gpu.peak_flops_per_s["fp16"] < 10e15


@pytest.mark.parametrize("name", [name for name in gpu_names() if name != "cpu"])
def test_narrower_formats_are_faster(name: str) -> None:
    """Dense peaks do not fall from fp32 over fp16 to fp8; fp8 is twice fp16, not four times."""
    peak = load_gpu(name).peak_flops_per_s
    assert peak["fp32"] <= peak["fp16"]
    if "fp8" in peak:
        assert peak["fp8"] == pytest.approx(2 * peak["fp16"], rel=0.02)


@pytest.mark.parametrize(("name", "accelerator"), SPEC.items())
def test_peaks_are_the_published_dense_ones(name: str, accelerator: str) -> None:
    """Peaks agree with the table of dense peaks to its rounding: none counts sparsity."""
    with (PUBLISHED / "hardware-facts.csv").open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["accelerator"] == accelerator]
    peaks = load_gpu(name).peak_flops_per_s
    checked = 0
    for row in rows:
        if "spec, dense" in row["metric"] and row["condition"] in ("bf16", "fp16", "fp8"):
            assert peaks[row["condition"]] == pytest.approx(float(row["value"]) * 1e12, rel=0.01)
            checked += 1
    assert checked >= 2


@pytest.mark.parametrize("name", IN_PUBLISHED_RUNS)
def test_names_of_published_runs_are_known(name: str) -> None:
    """Every GPU name that the published runs use is a profile or an alias of one."""
    assert load_gpu(name).name in gpu_names()


@pytest.mark.parametrize(
    ("card", "other", "ratio"),
    [
        pytest.param("mi350x", "mi355x", 2.2 / 2.4, id="2.2 of 2.4 GHz"),
        pytest.param("rtx-6000-ada", "l40s", 2.505 / 2.49, id="the same 142 SMs"),
        pytest.param("rtx-5090", "rtx-4090", 170 * 2.407 / (128 * 2.52), id="170 SMs at 2.41 GHz"),
        pytest.param("a30", "a100-40gb-pcie", 56 * 1.44 / (108 * 1.41), id="56 SMs at 1.44 GHz"),
        pytest.param("a10g", "rtx-a6000", 80 * 1.71 / (84 * 1.8) / 2, id="half of 80 SMs"),
        pytest.param("a100-64gb-sxm", "a100-80gb-sxm", 124 / 108, id="124 SMs"),
        pytest.param("l40", "l20", 142 * 2.49 / (92 * 2.52), id="142 SMs at 2.49 GHz"),
        pytest.param("mi210", "mi250x", 104 / 110, id="104 CUs"),
        pytest.param("mi250", "mi250x", 104 / 110, id="a die of 104 CUs"),
        pytest.param("h200-nvl", "h100-nvl", 1.0, id="the H100 NVL's"),
    ],
)
def test_peaks_follow_from_units_and_clocks(card: str, other: str, ratio: float) -> None:
    """Cards of one kind of unit differ by how many there are and how fast they run."""
    peak, known = (load_gpu(name).peak_flops_per_s["bf16"] for name in (card, other))
    assert peak == pytest.approx(known * ratio, rel=0.03)


@pytest.mark.parametrize(
    ("card", "units", "nodes", "of_processors"),
    [
        pytest.param("h100-64gb-sxm", 680_960, 1_120, 80, id="MareNostrum 5, BSC"),
        pytest.param("a100-64gb-sxm", 1_824_768, 3_456, 32, id="Leonardo, TOP500"),
    ],
)
def test_units_of_a_card_without_a_datasheet_follow_from_its_machines(
    card: str, units: int, nodes: int, of_processors: int
) -> None:
    """1,120 x (80 + 4 x 132) = 680,960 and 3,456 x (32 + 4 x 124) = 1,824,768."""
    gpu, cluster = load_gpu(card), usual_cluster(card)
    assert nodes * (of_processors + cluster.gpus_per_node * gpu.compute_units) == units
    assert cluster.max_gpus == nodes * cluster.gpus_per_node


@pytest.mark.parametrize(
    ("card", "other", "stacks"),
    [
        pytest.param("h100-64gb-sxm", "h100-96gb-hbm2e", 6, id="six stacks"),
        pytest.param("a100-64gb-sxm", "a100-80gb-sxm", 5, id="five stacks"),
    ],
)
def test_four_stacks_of_hbm2e_carry_their_part(card: str, other: str, stacks: int) -> None:
    """4 / 6 of 2.4 TB/s, and 4 / 5 of 2.04 TB/s, to the datasheets' rounding."""
    own, known = (load_gpu(name).memory_bandwidth_bytes_per_s for name in (card, other))
    assert own == pytest.approx(known * 4 / stacks, rel=0.03)


def test_metas_h100_is_not_the_standard_one() -> None:
    """Meta's part has more and slower memory and a lower power limit than the H100 SXM."""
    meta, standard = load_gpu("h100-96gb-hbm2e-500w"), load_gpu("h100-sxm")
    assert meta.memory_bytes > standard.memory_bytes
    assert meta.memory_bandwidth_bytes_per_s < standard.memory_bandwidth_bytes_per_s
    assert (meta.power_w, standard.power_w) == (500.0, 700.0)


def test_a_capped_module_multiplies_in_proportion_to_its_power() -> None:
    """Alps' GH200 at 660 of 900 W: 0.80 of the peak x 660 / 900 = 0.587; its memory is as fast."""
    capped, whole = load_kernels("gh200-660w"), load_kernels("gh200")
    for efficiency in (capped.matmul_efficiency["bf16"], capped.matmul_efficiency["fp16"]):
        assert efficiency == pytest.approx(whole.matmul_efficiency["bf16"] * 660 / 900, rel=1e-3)
    assert capped.memory_efficiency == whole.memory_efficiency
    cards = load_gpu("gh200-660w"), load_gpu("gh200")
    assert [card.power_w for card in cards] == [660.0, 900.0]
    assert cards[0].peak_flops_per_s == cards[1].peak_flops_per_s


def test_rates_scale_with_the_peak_of_the_part_they_are_taken_from() -> None:
    """An A30 takes over the A100 PCIe's points: same fractions of 165 instead of 312."""
    small, large = load_kernels("a30"), load_kernels("a100-40gb-pcie")
    assert small.matmul_efficiency == large.matmul_efficiency
    first, base = small.matmul_points[0], large.matmul_points[0]
    assert first.flops_per_s == pytest.approx(base.flops_per_s * 165 / 312)
    assert small.sources["matmul_points"].startswith("as a100-40gb-pcie: ")


@pytest.mark.parametrize(
    ("card", "other", "ratio"),
    [
        pytest.param("h100-nvl", "h100-pcie", 400 / 350, id="400 W for 350"),
        pytest.param("rtx-6000-ada", "l40s", 300 / 350, id="300 W for 350"),
        pytest.param("h200-nvl", "h200", 600 / 700, id="600 W for 700"),
    ],
)
def test_products_of_one_chip_go_with_its_power(card: str, other: str, ratio: float) -> None:
    """A card on which nothing was measured multiplies as another of its chip, by their watts."""
    assert load_gpu(card).power_w / load_gpu(other).power_w == pytest.approx(ratio)
    rates, known = (_rates_of(name) for name in (card, other))
    assert rates == pytest.approx([rate * ratio for rate in known], rel=0.02)


def _rates_of(name: str) -> list[float]:
    """FLOP/s in 16 bits of products, one and in groups, and of both passes of attention."""
    kernels, peak = load_kernels(name), load_gpu(name).peak_flops_per_s["bf16"]
    grouped = kernels.grouped_efficiency.get("bf16", kernels.matmul_efficiency["bf16"])
    fractions = kernels.matmul_efficiency["bf16"], grouped
    return [
        peak * each for each in (*fractions, kernels.attention_forward, kernels.attention_backward)
    ]


def test_an_h100_pcie_multiplies_as_was_measured() -> None:
    """(471.8 + 487.2) / 2 = 479.5e12 in bf16: 0.634 of 756e12, not the H100 SXM's 0.744."""
    rate = load_gpu("h100-pcie").peak_flops_per_s["bf16"]
    assert rate * load_kernels("h100-pcie").matmul_efficiency["bf16"] == pytest.approx(
        479.5e12, rel=2e-3
    )


@pytest.mark.parametrize("name", [name for name in gpu_names() if name != "cpu"])
def test_no_point_is_above_the_peak(name: str) -> None:
    """No measured matmul or attention exceeds the datasheet by more than a boosted clock's 3 %."""
    peak, kernels = load_gpu(name).peak_flops_per_s, load_kernels(name)
    for point in (*kernels.matmul_points, *kernels.attention_points):
        assert point.flops_per_s <= 1.03 * peak[point.dtype], point
