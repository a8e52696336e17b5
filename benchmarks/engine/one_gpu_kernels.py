"""Kernels that `meshplan profile` measured on one H100, beside the formulas of the cost model.

    python -m benchmarks.engine.one_gpu_kernels    write the table of docs/accuracy_tables.md anew

The formulas know the published figures of the GPU (dgx-h100), and of this very profile only the
rates of long attention and of narrow heads, and the lengths at which half of it is reached.
"""

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from benchmarks.engine.one_gpu import MEASURED
from benchmarks.pages import TABLES, show
from benchmarks.usage import check_usage
from meshplan.costmodels.operations.kinds import AttentionCore, Matmul
from meshplan.costmodels.precision import RECIPES
from meshplan.costmodels.seconds.core_attention import attention_s
from meshplan.costmodels.seconds.kernels import Device, matmul_s
from meshplan.hardware_profiles.load import load_cluster
from meshplan.hardware_profiles.schema import AttentionPoint, Cluster, MatmulPoint
from meshplan.hardware_profiles.tunings import Tuning

LONG_S = 100e-6
Error = tuple[str, float, float]  # kind, seconds measured, priced over measured - 1


def errors(measured: Cluster, published: Cluster) -> Iterator[Error]:
    """Every bf16 and fp8 product, and all causal attention of heads up to 128."""
    assert measured.kernels is not None
    assert published.kernels is not None
    for product in measured.kernels.matmul_points:
        if product.dtype in ("bf16", "fp8"):
            device = Device(published.gpu, published.kernels, Tuning(), RECIPES[product.dtype])
            yield _of_product(product, device)
    for point in measured.kernels.attention_points:
        if point.causal and point.head_dim <= 128:
            device = Device(
                published.gpu, published.kernels, Tuning(), RECIPES["bf16"],
                point.kernel or "cudnn",
            )  # fmt: skip
            yield _of_attention(point, device)


def _of_product(point: MatmulPoint, device: Device) -> Error:
    m, n, k, groups = point.m, point.n, point.k, point.groups
    kind = f"{point.dtype} products" if groups == 1 else f"{point.dtype} grouped products"
    op = Matmul(name="experts" if groups > 1 else "linear", m=m, n=n, k=k, groups=groups)
    measured_s = op.forward_flops / point.flops_per_s
    return (
        kind,
        float(measured_s),
        float(matmul_s(device, op, m, n, k, point.layout) / measured_s - 1),
    )


def _of_attention(point: AttentionPoint, device: Device) -> Error:
    backward = point.direction == "backward"
    core = AttentionCore(
        name="attention", queries=float(point.batch * point.seq_len), keys=point.seq_len / 2,
        all_keys=float(point.seq_len), heads=point.heads, head_dim=point.head_dim,
        v_head_dim=point.v_head_dim, fused=True,
    )  # fmt: skip
    flops = core.forward_flops * (2.5 if backward else 1.0)
    measured_s = float(flops / point.flops_per_s)
    kind = f"attention {point.kernel}, {point.direction}"
    return kind, measured_s, float(attention_s(device, core, backward=backward)) / measured_s - 1


def table() -> str:
    """A line for each kind: all of it, and what takes longer than 100 us."""
    kinds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for kind, seconds, error in errors(
        load_cluster(MEASURED / "h100-sxm.toml"), load_cluster("dgx-h100")
    ):
        kinds[kind].append((seconds, error))
    lines = [
        "| kernels | measured | median error | bias | above 100 us | median error | bias |",
        f"|{'---|' * 7}",
    ]
    for kind, found in kinds.items():
        long = [error for seconds, error in found if seconds > LONG_S]
        cells = (_spread([error for _, error in found]), _spread(long))
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(found: list[float]) -> str:
    return f"{len(found)} | {median(map(abs, found)):.1%} | {median(found):+.1%}"


def main() -> None:
    """Write the table between its marks."""
    show(TABLES, "one gpu kernels", table())


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
