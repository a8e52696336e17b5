"""`meshplan profiles`: lists, shows, draws, and compares two clusters."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from meshplan.hardware_profiles.built_in import cluster_names, gpu_names
from meshplan.hardware_profiles.load import load_cluster, save_cluster
from meshplan.hardware_profiles.network_schema import CurvePoint
from meshplan.hardware_profiles.schema import AttentionPoint, Cluster, MatmulPoint
from meshplan.planner.cli.profiles import profiles_app
from meshplan.planner.profiles.compare import compare

RUN = CliRunner()
SIDES = (256, 512, 1024, 2048)


def slower(cluster: Cluster, fraction: float) -> Cluster:
    """`cluster` with an in-node all-reduce at that fraction of its bandwidth."""
    bandwidth = cluster.node.bus_bandwidth
    changed = bandwidth.model_copy(update={"all_reduce": bandwidth.all_reduce * fraction})
    node = cluster.node.model_copy(update={"bus_bandwidth": changed})
    return cluster.model_copy(update={"node": node})


@pytest.mark.parametrize("name", cluster_names())
def test_a_cluster_does_not_differ_from_itself(name: str) -> None:
    """Comparing a profile with itself finds nothing at any tolerance, over all its numbers."""
    found = compare(load_cluster(name), load_cluster(name), 0.0)
    assert found.differences == ()
    assert found.num_compared > 15


def test_a_slow_link_is_found_and_called_worse() -> None:
    """A node at 80 % of its all-reduce bandwidth is the one difference: -20 %, worse."""
    cluster = load_cluster("dgx-h100")
    (difference,) = compare(cluster, slower(cluster, 0.8), 0.1).differences
    assert difference.field == "node.bus_bandwidth.all_reduce"
    assert difference.relative == pytest.approx(-0.2)
    assert difference.worse
    assert not compare(slower(cluster, 0.8), cluster, 0.1).differences[0].worse


@pytest.mark.parametrize(("fraction", "count"), [(0.91, 0), (0.89, 1)])
def test_the_tolerance_decides(fraction: float, count: int) -> None:
    """A change of 9 % is the same cluster at 10 % tolerance, one of 11 % is not."""
    cluster = load_cluster("dgx-h100")
    assert len(compare(cluster, slower(cluster, fraction), 0.1).differences) == count


def test_more_latency_is_worse_and_comes_first() -> None:
    """Of a doubled latency and a doubled bandwidth the latency is worse, so it leads."""
    cluster = slower(load_cluster("dgx-h100"), 2.0)
    network = cluster.network.model_copy(update={"latency_s": 2 * cluster.network.latency_s})
    after = cluster.model_copy(update={"network": network})
    fields = [d.field for d in compare(load_cluster("dgx-h100"), after, 0.1).differences]
    assert fields == ["network.latency_s", "node.bus_bandwidth.all_reduce"]


def test_a_slow_shape_is_found() -> None:
    """One measured matmul at half its rate is named by its shape."""
    cluster = load_cluster("dgx-b200")
    assert cluster.kernels is not None
    first, *rest = cluster.kernels.matmul_points
    halved = first.model_copy(update={"flops_per_s": first.flops_per_s / 2})
    kernels = cluster.kernels.model_copy(update={"matmul_points": (halved, *rest)})
    found = compare(cluster, cluster.model_copy(update={"kernels": kernels}), 0.1)
    (difference,) = found.differences
    assert f"{first.m}x{first.n}x{first.k}" in difference.field
    assert difference.worse


def test_diff_by_command(tmp_path: Path) -> None:
    """`profiles diff` exits 1 beyond the tolerance and 0 within; JSON says what the table says."""
    cluster = load_cluster("dgx-h100")
    save_cluster(slower(cluster, 0.8), tmp_path / "today.toml")
    arguments = ["diff", "dgx-h100", str(tmp_path / "today.toml")]
    table = RUN.invoke(profiles_app, arguments)
    assert table.exit_code == 1
    assert "-20.0%" in table.stdout
    assert "-0.0%" not in table.stdout
    document = RUN.invoke(profiles_app, [*arguments, "--json"])
    assert document.exit_code == 1
    assert json.loads(document.stdout)["differences"][0]["relative"] == pytest.approx(-0.2)
    within = RUN.invoke(profiles_app, [*arguments, "--tolerance", "0.3"])
    assert within.exit_code == 0
    assert "agree within 30%" in within.stdout


def profiled(noise: float, seed: int, **slower_by: float) -> Cluster:
    """A profile of two CPU ranks whose points wander by `noise`; one kind of them takes longer.

    slower_by  of a collective, a number format or an attention kernel: all_reduce=1.15 takes 15 %
               longer
    """
    random = np.random.default_rng(seed)

    def seconds(kind: str, exact_s: float) -> float:
        return exact_s * slower_by.get(kind, 1.0) * float(np.exp(noise * random.standard_normal()))

    base = load_cluster("local-cpu:2")
    assert base.kernels is not None
    curves = tuple(
        CurvePoint(kind=kind, ranks_per_node=2, nodes=1, size_bytes=1024.0 * 2**i,
                   seconds=seconds(kind, 1e-4 + 1024 * 2**i / 1e9), spread=noise)
        for kind in ("all_reduce", "all_gather") for i in range(17)
    )  # fmt: skip
    matmuls = tuple(
        MatmulPoint(dtype=dtype, m=m, n=n, k=k, flops_per_s=1 / seconds(dtype, 1e-11), spread=noise)
        for dtype in ("fp32", "bf16") for m in SIDES for n in SIDES for k in SIDES
    )  # fmt: skip
    attentions = tuple(
        AttentionPoint(
            dtype="bf16", kernel=kernel, direction="forward", batch=1, heads=4, kv_heads=4,
            head_dim=64, v_head_dim=64, seq_len=2**i, causal=True,
            flops_per_s=1 / seconds(kernel, 1e-11), spread=noise,
        )
        for kernel in ("flash2", "cudnn") for i in range(7, 15)
    )  # fmt: skip
    conditions = {"kind": "measured"}
    kernels = base.kernels.model_copy(
        update={
            "matmul_points": matmuls, "attention_points": attentions, "conditions": conditions
        }
    )  # fmt: skip
    points = {"kernels": kernels, "collective_points": curves, "conditions": conditions}
    return base.model_copy(update=points)


@pytest.mark.parametrize("seed", range(5))
def test_two_runs_of_one_machine_agree(seed: int) -> None:
    """Points that wander by 15 % from run to run are the same machine at 10 % tolerance."""
    assert compare(profiled(0.15, seed), profiled(0.15, seed + 100), 0.1).agree


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_number_format_is_found_through_the_noise(seed: int) -> None:
    """bf16 at 30 % more time is named although single products wander by 10 %; fp32 is not."""
    found = compare(profiled(0.1, seed), profiled(0.1, seed + 100, bf16=1.3), 0.1)
    assert [group.name for group in found.groups if group.beyond] == ["matmul bf16"]
    assert found.differences == ()


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        ("all_reduce", "all_reduce 1x2"),
        ("bf16", "matmul bf16"),
        ("cudnn", "attention bf16 cudnn forward"),
    ],
)
def test_fifteen_per_cent_are_found(tmp_path: Path, kind: str, group: str) -> None:
    """A collective, or a format, that takes 15 % longer is named, called worse, and exits 1."""
    save_cluster(profiled(0.01, 0), tmp_path / "yesterday.toml")
    save_cluster(profiled(0.01, 1, **{kind: 1.15}), tmp_path / "today.toml")
    files = [str(tmp_path / name) for name in ("yesterday.toml", "today.toml")]
    table = RUN.invoke(profiles_app, ["diff", *files])
    assert table.exit_code == 1
    (line,) = (x for x in table.stdout.splitlines() if "worse" in x and f"{group} " in x)
    assert "+15" in line or "+14" in line
    document = json.loads(RUN.invoke(profiles_app, ["diff", *files, "--json"]).stdout)
    assert not document["agree"]
    beyond = {each["name"] for each in document["groups"] if each["beyond"]}
    assert all(name.startswith(group) for name in beyond)


def test_a_point_that_its_kind_does_not_follow_is_named_by_its_shape(tmp_path: Path) -> None:
    """One product at a third of its rate among quiet ones: its format is fine, the shape is not."""
    before = profiled(0.01, 0)
    assert before.kernels is not None
    first, *rest = before.kernels.matmul_points
    slow = first.model_copy(update={"flops_per_s": first.flops_per_s / 3})
    kernels = before.kernels.model_copy(update={"matmul_points": (slow, *rest)})
    save_cluster(before, tmp_path / "before.toml")
    save_cluster(before.model_copy(update={"kernels": kernels}), tmp_path / "after.toml")
    files = [str(tmp_path / name) for name in ("before.toml", "after.toml")]
    done = RUN.invoke(profiles_app, ["diff", *files])
    assert done.exit_code == 1
    assert f"[fp32 TN {first.m}x{first.n}x{first.k}]" in done.stdout


@pytest.mark.parametrize(
    ("slowdown", "code"),
    [
        pytest.param(1.09, 1, id="others took 9 %: 10 % tolerance, it counts"),
        pytest.param(1.8, 0, id="others took 80 %: it may have met no quiet moment"),
    ],
)
def test_one_slow_product_counts_on_a_quiet_machine(
    tmp_path: Path, slowdown: float, code: int
) -> None:
    """It is named either way; one of the two machines being shared is enough."""
    before = profiled(0.01, 0)
    assert before.kernels is not None
    first, *rest = before.kernels.matmul_points
    slow = first.model_copy(update={"flops_per_s": first.flops_per_s / 3})
    update = {"matmul_points": (slow, *rest), "shared_slowdown": {"fp32": slowdown}}
    kernels = before.kernels.model_copy(update=update)
    save_cluster(before, tmp_path / "before.toml")
    save_cluster(before.model_copy(update={"kernels": kernels}), tmp_path / "after.toml")
    files = [str(tmp_path / name) for name in ("before.toml", "after.toml")]
    done = RUN.invoke(profiles_app, ["diff", *files])
    assert f"[fp32 TN {first.m}x{first.n}x{first.k}]" in done.stdout
    assert ("not counted" in done.stdout, done.exit_code) == (code == 0, code)
    document = json.loads(RUN.invoke(profiles_app, ["diff", *files, "--json"]).stdout)
    assert document["agree"] == (code == 0)


@pytest.mark.parametrize("arguments", [[], ["list"]])
def test_bare_profiles_lists_all(arguments: list[str]) -> None:
    """`meshplan profiles` without a verb lists every cluster and GPU."""
    done = RUN.invoke(profiles_app, arguments)
    assert done.exit_code == 0
    for name in (*cluster_names(), *gpu_names()):
        assert name in done.stdout


def test_list_as_json() -> None:
    """`list --json` is one document with every profile in SI."""
    document = json.loads(RUN.invoke(profiles_app, ["list", "--json"]).stdout)
    assert [line["name"] for line in document["clusters"]] == list(cluster_names())
    h100 = next(line for line in document["gpus"] if line["name"] == "h100-sxm")
    assert h100["peak_16bit_flops_per_s"] == 989e12


def test_the_documentation_has_the_list() -> None:
    """docs/hardware.md holds what `meshplan profiles list --markdown` prints today."""
    done = RUN.invoke(profiles_app, ["list", "--markdown"])
    assert done.exit_code == 0
    printed = done.stdout.strip()
    assert "dgx-h100" in printed
    assert printed in (Path(__file__).parents[2] / "docs" / "hardware.md").read_text("utf-8")


def test_show_names_values_and_sources() -> None:
    """`show` prints a link's bandwidth beside the publication it was read in."""
    done = RUN.invoke(profiles_app, ["show", "dgx-h100"])
    assert done.exit_code == 0
    line = next(x for x in done.stdout.splitlines() if "node.bus_bandwidth.all_reduce" in x)
    assert "475 GB/s" in line
    assert "Azure" in line


@pytest.mark.parametrize("name", ["dgx-h100", "h100-sxm", "a100", "local-cpu:2"])
def test_show_as_json(name: str) -> None:
    """`show --json` prints one document, for clusters, GPUs and aliases."""
    done = RUN.invoke(profiles_app, ["show", name, "--json"])
    assert json.loads(done.stdout)["sources"]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["dgx-h100", "gh200-vista", "mi300x-8"])
def test_show_draws(name: str, tmp_path: Path) -> None:
    """`show --plot FILE` writes a picture, with or without measured curves."""
    path = tmp_path / "picture.png"
    done = RUN.invoke(profiles_app, ["show", name, "--plot", str(path)])
    assert done.exit_code == 0, done.output
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["show", "dgx-h10"], "did you mean dgx-h100", id="a slip"),
        pytest.param(["show", "gone.toml"], "No such file", id="no file"),
        pytest.param(["show", "dgx-h100", "--plot", "x.doc"], "doc", id="no such picture format"),
        pytest.param(["show", "h100-sxm", "--plot", "x.png"], "is a GPU", id="a GPU has no links"),
        pytest.param(["diff", "dgx-h100", "nope"], "no cluster called 'nope'", id="diff: no such"),
    ],
)
def test_errors_are_one_line(arguments: list[str], said: str) -> None:
    """What the user can mend is one line on stderr and exit code 2."""
    done = RUN.invoke(profiles_app, arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["list", "show", "diff", "import"])
def test_help_has_an_example(command: str) -> None:
    """The help of every command opens with one sentence and an example."""
    done = RUN.invoke(profiles_app, [command, "--help"])
    assert done.exit_code == 0
    assert f"Example: meshplan profiles {command}" in " ".join(done.stdout.split())


def test_a_busier_host_is_told_and_is_no_difference(tmp_path: Path) -> None:
    """The same points on a host that others used more: it agrees, exit 0, and both are printed."""
    quiet = profiled(0.0, 1)
    assert quiet.kernels is not None
    for name, slowdown in (("quiet", {"bf16": 1.1}), ("busy", {"bf16": 1.9, "memory": 1.3})):
        kernels = quiet.kernels.model_copy(update={"shared_slowdown": slowdown})
        there = quiet.model_copy(update={"kernels": kernels, "name": name})
        save_cluster(there, tmp_path / f"{name}.toml")
    files = [str(tmp_path / name) for name in ("quiet.toml", "busy.toml")]
    result = RUN.invoke(profiles_app, ["diff", *files])
    assert result.exit_code == 0
    assert "1.10x" in result.stdout
    assert "1.90x" in result.stdout
    document = json.loads(RUN.invoke(profiles_app, ["diff", *files, "--json"]).stdout)
    assert document["agree"]
    assert document["shared_slowdown"] == {"bf16": [1.1, 1.9], "memory": [1.0, 1.3]}
