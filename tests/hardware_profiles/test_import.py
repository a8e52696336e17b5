"""nccl-tests logs and matmul tables become profiles: read by hand, then end to end by command."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshplan.costmodels.seconds.collectives import collective_s
from meshplan.costmodels.seconds.process_groups import Group
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.cli.profiles import profiles_app
from meshplan.planner.profiles.import_points import (
    UnreadableLog,
    read_measurements,
    with_measurements,
)
from meshplan.planner.profiles.plot import bus_bandwidth

RANK = (
    "#  Rank {rank:2} Group  0 Pid  {pid} on {host} device {device:2} [0x0{device}] NVIDIA H100\n"
)
HEADER = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""  # noqa: E501 - the program's own width
ROWS = """\
           0             0     float     sum      -1     0.08    0.00    0.00      0     0.07    0.00    0.00      0
     1048576        262144     float     sum      -1    45.00   23.30   40.78      0    44.00   23.83   41.70      0
    67108864      16777216     float     sum      -1    330.0  203.36  355.88      0    320.0  209.72  367.00      0
  1073741824     268435456     float     sum      -1   4050.0  265.12  463.97      0   4000.0  268.44  469.76      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 289.6
"""  # noqa: E501


def nccl_log(nodes: int = 1, ranks: int = 8, rows: str = ROWS) -> str:
    """A log as the program prints it, for `nodes` hosts of `ranks` GPUs."""
    lines = [
        RANK.format(rank=node * ranks + device, pid=100 + device, host=f"host{node}", device=device)
        for node in range(nodes)
        for device in range(ranks)
    ]
    return "# nThread 1 nGpus 1\n#\n# Using devices\n" + "".join(lines) + HEADER + rows


def written(folder: Path, name: str, text: str) -> Path:
    """The file of that name with that text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_all_reduce_is_read_in_place(tmp_path: Path) -> None:
    """Bytes, the in-place time in us, ranks and hosts are the log's; the empty row is skipped."""
    curves = read_measurements(written(tmp_path, "all_reduce_perf.log", nccl_log())).curves
    assert [(p.kind, p.nodes, p.ranks_per_node) for p in curves] == [("all_reduce", 1, 8)] * 3
    assert [p.size_bytes for p in curves] == [2**20, 2**26, 2**30]
    assert [p.seconds for p in curves] == pytest.approx([44e-6, 320e-6, 4000e-6])


def test_other_collectives_are_read_out_of_place(tmp_path: Path) -> None:
    """An all-gather's time is the out-of-place one: 330 us and not 320."""
    curves = read_measurements(written(tmp_path, "all_gather_perf.log", nccl_log())).curves
    assert curves[1].kind == "all_gather"
    assert curves[1].seconds == pytest.approx(330e-6)


def test_old_logs_without_operation_columns(tmp_path: Path) -> None:
    """Logs without redop and root columns give the same times: they are counted from the end."""
    short = ROWS.replace("     sum      -1", "")
    curves = read_measurements(written(tmp_path, "all_reduce.txt", nccl_log(rows=short))).curves
    assert [p.seconds for p in curves] == pytest.approx([44e-6, 320e-6, 4000e-6])


def test_bus_bandwidth_is_the_printed_one(tmp_path: Path) -> None:
    """Time and size give back the log's own busbw: 2 x 7/8 x 1 GiB / 4 ms = 469.76 GB/s."""
    curves = read_measurements(written(tmp_path, "all_reduce_perf.log", nccl_log())).curves
    assert bus_bandwidth(curves[-1]) == pytest.approx(469.76e9, rel=1e-4)


def test_a_whole_node_sets_the_node_and_whole_nodes_the_network(tmp_path: Path) -> None:
    """8 ranks of one host give node.bus_bandwidth, 2 hosts of 8 the network's; the rest stays."""
    base = load_cluster("dgx-h100")
    one = read_measurements(written(tmp_path, "all_reduce_1.log", nccl_log()))
    two = read_measurements(written(tmp_path, "all_reduce_2.log", nccl_log(nodes=2)))
    mine = with_measurements(base, [one, two], "mine")
    assert mine.node.bus_bandwidth.all_reduce == pytest.approx(469.76e9, rel=1e-4)
    assert mine.network.bus_bandwidth.all_reduce == pytest.approx(2**30 / 4e-3)  # of a tree
    assert mine.network.bus_bandwidth.send == base.network.bus_bandwidth.send
    assert "all_reduce_2.log" in mine.sources["network.bus_bandwidth.all_reduce"]
    shapes = {(fit.kind, fit.nodes, fit.ranks_per_node) for fit in mine.collective_fits}
    assert ("all_reduce", 2, 8) in shapes


def test_an_imported_message_takes_what_was_measured(tmp_path: Path) -> None:
    """A tree of two nodes is counted once: 1 GiB takes its 8 ms, 2 x 31/32 of that on four."""
    log = nccl_log(nodes=2, rows=ROWS.replace("4000.0", "8000.0"))
    two = read_measurements(written(tmp_path, "all_reduce_2.log", log))
    mine = with_measurements(load_cluster("dgx-h100"), [two], "mine")
    seconds = [
        collective_s(mine, "all_reduce", 2.0**30, Group(8.0 * nodes, 8.0)) for nodes in (2, 4)
    ]
    assert seconds == pytest.approx([8e-3, 2 * 31 / 32 * 8e-3], rel=0.03)


def test_a_tree_that_links_inside_held_is_no_measure_of_the_ring(tmp_path: Path) -> None:
    """An all_gather of 3 ms shows a ring of 336e9, where half a tree's 503e9 were less."""
    two = read_measurements(written(tmp_path, "all_reduce_2.log", nccl_log(nodes=2)))
    log = nccl_log(nodes=2, rows=ROWS.replace("4050.0", "3000.0"))
    ring = read_measurements(written(tmp_path, "all_gather_perf.log", log))
    rates = with_measurements(load_cluster("dgx-h100"), [two, ring], "mine").network.bus_bandwidth
    assert rates.all_reduce == rates.all_gather == pytest.approx(15 / 16 * 2**30 / 3e-3)


def test_half_a_node_sets_no_link(tmp_path: Path) -> None:
    """4 of a node's 8 GPUs are a measured curve, but not what the whole node can do."""
    base = load_cluster("dgx-h100")
    log = read_measurements(written(tmp_path, "all_reduce.log", nccl_log(ranks=4)))
    mine = with_measurements(base, [log], "mine")
    assert mine.node == base.node
    assert any(fit.ranks_per_node == 4 for fit in mine.collective_fits)


def test_all_to_all_between_nodes_counts_what_leaves_the_node(tmp_path: Path) -> None:
    """Of 15 peers 8 are on the other node: the card moves 8/15 of what busbw counts."""
    log = read_measurements(written(tmp_path, "alltoall_perf.log", nccl_log(nodes=2)))
    mine = with_measurements(load_cluster("dgx-h100"), [log], "mine")
    busbw = 15 / 16 * 2**30 / 4050e-6
    assert mine.network.bus_bandwidth.all_to_all == pytest.approx(busbw * 8 / 15)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        pytest.param("4096x8192x1024 612.3 TFLOPS", 612.3e12, id="shape, then rate"),
        pytest.param(
            "7 | 601.0(mean) 605.5(median) 630.0(max) @ 4096x8192x1024 | best: 9.9(mean) @ 1x1x1",
            605.5e12,
            id="mamf-finder: the median, and not the best so far",
        ),
        pytest.param("512.0 TFLOPS @ 4096 x 8192 x 1024", 512e12, id="rate, then shape"),
    ],
)
def test_matmul_lines_by_hand(text: str, rate: float, tmp_path: Path) -> None:
    """A line with MxNxK and a rate is a matmul of that shape."""
    (point,) = read_measurements(written(tmp_path, "mamf.txt", text)).matmuls
    assert (point.m, point.n, point.k) == (4096, 8192, 1024)
    assert point.flops_per_s == pytest.approx(rate)
    assert point.dtype == "bf16"


def test_matmul_tables_name_their_dtype(tmp_path: Path) -> None:
    """A dtype column, or torch's name of it in a log, wins over the default."""
    table = "m,n,k,dtype,tflops\n4096,4096,4096,fp8,1300\n"
    log = "** dtype torch.float16\n4096x4096x4096 612.3 TFLOPS\n"
    assert read_measurements(written(tmp_path, "a.csv", table)).matmuls[0].dtype == "fp8"
    assert read_measurements(written(tmp_path, "b.txt", log)).matmuls[0].dtype == "fp16"


def test_imported_matmuls_replace_those_of_their_format(tmp_path: Path) -> None:
    """Measured bf16 shapes take the place of the base's bf16 points; fp8's stay."""
    lines = "".join(f"{s}x{s}x{s} {r} TFLOPS\n" for s, r in ((1024, 300), (4096, 700), (8192, 720)))
    base = load_cluster("dgx-h100")
    mine = with_measurements(base, [read_measurements(written(tmp_path, "m.txt", lines))], "mine")
    assert mine.kernels is not None
    assert base.kernels is not None
    assert len([p for p in mine.kernels.matmul_points if p.dtype == "bf16"]) == 3
    assert [p for p in mine.kernels.matmul_points if p.dtype == "fp8"] == [
        p for p in base.kernels.matmul_points if p.dtype == "fp8"
    ]
    # The larger half is 700 and 720; nine tenths of the way from one to the other is 718.
    assert mine.kernels.matmul_efficiency["bf16"] == pytest.approx(718 / 989)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        pytest.param("notes.txt", "hello", "neither an nccl-tests log", id="neither"),
        pytest.param("x.log", HEADER + ROWS, "does not say its collective", id="which collective?"),
        pytest.param("all_reduce.log", HEADER + ROWS, "no '# Rank", id="which ranks?"),
        pytest.param("all_reduce.log", nccl_log(rows=""), "no line with a size", id="no rows"),
    ],
)
def test_other_files_are_refused(name: str, text: str, said: str, tmp_path: Path) -> None:
    """A file without measurements says what was looked for."""
    with pytest.raises(UnreadableLog) as raised:
        read_measurements(written(tmp_path, name, text))
    assert said in str(raised.value)


def test_import_by_command(tmp_path: Path) -> None:
    """`profiles import` writes a profile that loads, and says what it read."""
    log = written(tmp_path, "all_reduce_perf.log", nccl_log())
    out = tmp_path / "mine.toml"
    arguments = ["import", str(log), "--cluster", "dgx-h100", "-o", str(out), "--json"]
    done = CliRunner().invoke(profiles_app, arguments)
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["imported"] == {"all_reduce_perf.log": {"collectives": 3, "matmuls": 0}}
    assert load_cluster(out).node.bus_bandwidth.all_reduce == pytest.approx(469.76e9, rel=1e-4)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["import", "gone.log", "--cluster", "dgx-h100", "-o", "x.toml"], id="no file"),
        pytest.param(["import", "{log}", "--cluster", "dgx-h101", "-o", "x.toml"], id="no cluster"),
        pytest.param(
            ["import", "{log}", "--cluster", "dgx-h100", "-o", "no/such/x.toml"], id="no folder"
        ),
        pytest.param(
            ["import", "{log}", "--cluster", "dgx-h100", "-o", "x.toml", "--dtype", "fp5"],
            id="no such format",
        ),
    ],
)
def test_import_errors_are_one_line(arguments: list[str], tmp_path: Path) -> None:
    """What the user can mend is one line on stderr and exit code 2."""
    log = written(tmp_path, "all_reduce_perf.log", nccl_log())
    done = CliRunner().invoke(profiles_app, [a.replace("{log}", str(log)) for a in arguments])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "Errno" not in done.stderr  # the system's number says nothing to a user


def test_a_log_is_not_replaced_by_the_profile(tmp_path: Path) -> None:
    log = written(tmp_path, "all_reduce_perf.log", nccl_log())
    arguments = ["import", str(log), "--cluster", "dgx-h100", "-o", str(log)]
    done = CliRunner().invoke(profiles_app, arguments)
    assert (done.exit_code, "it is read; name another file" in done.stderr) == (2, True)
    assert log.read_text() == nccl_log()
