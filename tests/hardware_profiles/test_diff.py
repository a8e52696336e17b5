"""`meshplan profiles`: lists, shows, draws, and compares two clusters."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hardware_profiles.load import cluster_names, gpu_names, load_cluster, save_cluster
from hardware_profiles.schema import Cluster
from planner.profiles_cli import profiles_app
from planner.profiles_report import compare

RUN = CliRunner()


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
    document = RUN.invoke(profiles_app, [*arguments, "--json"])
    assert document.exit_code == 1
    assert json.loads(document.stdout)["differences"][0]["relative"] == pytest.approx(-0.2)
    within = RUN.invoke(profiles_app, [*arguments, "--tolerance", "0.3"])
    assert within.exit_code == 0
    assert "agree within 30%" in within.stdout


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
    printed = RUN.invoke(profiles_app, ["list", "--markdown"]).stdout.strip()
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
