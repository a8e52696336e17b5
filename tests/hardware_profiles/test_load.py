"""Profiles by name and by file: exact, round trips, and errors that say what to do."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from close import close
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy.profile_points import ATTENTION, CURVES, HERE, MATMULS, seeded
from meshplan.costmodels.units import parse_bandwidth
from meshplan.hardware_profiles.built_in import cluster_names, gpu_names, load_gpu, load_kernels
from meshplan.hardware_profiles.curves import fit_curves
from meshplan.hardware_profiles.engines import VARIANTS, engine_names, fitted_as, load_engine
from meshplan.hardware_profiles.files.profile_file import UnknownProfile
from meshplan.hardware_profiles.files.toml_io import PROSE, TABLES, read_toml, write_toml
from meshplan.hardware_profiles.fingerprint import cluster_hash
from meshplan.hardware_profiles.load import load_cluster, save_cluster
from meshplan.hardware_profiles.local_cpu import memory_bytes, num_cores
from meshplan.hardware_profiles.network_schema import CurvePoint
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.tunings import UNFITTED, load_fit


@pytest.mark.parametrize("name", cluster_names())
def test_a_saved_cluster_reads_back_equal(name: str, tmp_path: Path) -> None:
    """Writing a cluster and reading the file gives the same cluster, and so the same hash."""
    cluster = load_cluster(name)
    save_cluster(cluster, tmp_path / "mine.toml")
    again = load_cluster(tmp_path / "mine.toml")
    assert again == cluster
    assert cluster_hash(again) == cluster_hash(cluster)


def test_the_hash_follows_the_content() -> None:
    """Changing one number changes the hash; the same content always has the same one."""
    cluster = load_cluster("dgx-h100")
    other = cluster.model_copy(update={"gpus_per_node": 4})
    assert cluster_hash(cluster) == cluster_hash(load_cluster("dgx-h100"))
    assert cluster_hash(cluster) != cluster_hash(other)


def test_aliases_are_the_profile_they_name() -> None:
    """An alias loads what it stands for, under that name."""
    assert load_cluster("h100-sxm-ib") == load_cluster("dgx-h100")
    assert load_gpu("a100").name == "a100-80gb-sxm"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("dgx-h10", "did you mean dgx-h100", id="a slip: the close ones"),
        pytest.param("DGX-H100", "did you mean dgx-h100", id="capitals"),
        pytest.param("zzz", "known: alps-gh200, aws-g5, aws-g6", id="nothing close: all of them"),
        pytest.param("local-cpu:none", "must be a positive number", id="processes not a number"),
        pytest.param("local-cpu:0", "must be a positive number", id="no process"),
        pytest.param(
            "h100-sxm:8", "write GPU:PER_NODE:NETWORK, as in h100-sxm:8:", id="no network"
        ),
        pytest.param("dgx-h100:8", "as in h100:8:400Gb ", id="a cluster is no GPU of an example"),
        pytest.param("no/such.toml", "No such file", id="no file"),
        pytest.param("no_such.yaml", "No such file", id="no file of another format"),
    ],
)
def test_unknown_names_say_what_to_do(name: str, said: str) -> None:
    """A name that is none gives one line with the value and a way on."""
    with pytest.raises(UnknownProfile) as raised:
        load_cluster(name)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_profile_of_another_format_says_which_one_is_read(tmp_path: Path) -> None:
    """A YAML that is there is no name of a cluster."""
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\n")
    with pytest.raises(UnknownProfile, match=r"a profile is TOML .*not \.yaml"):
        load_cluster(str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("", "cannot be read as a profile: it is empty", id="empty"),
        pytest.param("name = ", "cannot be read", id="not TOML"),
        pytest.param("name = 'x'", "Field required", id="fields missing"),
        pytest.param("gpu = 'h100-sxm'\nspeed = 3", "speed: no such field", id="an unknown key"),
        pytest.param("gpu = 'h101'", "did you mean", id="an unknown GPU"),
        pytest.param("collective_points = '''\na,b\n1\n'''", "cannot be read", id="a short row"),
        pytest.param("a." * 20 + "b = 1", "a key of 20 parts or more", id="a key without end"),
        pytest.param("[" + "a . " * 20 + "b]", "a key of 20 parts or more", id="a spaced table"),
        pytest.param("a." * 19 + "b = 1", "a: no such field", id="a key of 20 parts but one"),
    ],
)
def test_unreadable_files_give_one_line(text: str, said: str, tmp_path: Path) -> None:
    """A file that is no profile gives one line with its path or name and the first fault."""
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UnknownProfile) as raised:
        load_cluster(path)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_tables_are_read_between_single_and_double_quotes(tmp_path: Path) -> None:
    """Files are written between single ones, which are read faster; older files are read too."""
    cluster, (single, double) = (
        load_cluster("dgx-h100"),
        (tmp_path / n for n in ("1.toml", "2.toml")),
    )
    save_cluster(cluster, single)
    text = single.read_text(encoding="utf-8")
    assert "matmul_points = '''\n" in text
    double.write_text(text.replace("'''", '"""'), encoding="utf-8")
    assert load_cluster(double) == load_cluster(single) == cluster


def test_a_count_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    """A typo of 26 digits does not reach arithmetic in 64 bits."""
    path = tmp_path / "mine.toml"
    save_cluster(load_cluster("dgx-h100"), path)
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"gpus_per_node = 8", f"gpus_per_node = {10**26}", text))
    with pytest.raises(UnknownProfile, match=r"gpus_per_node: .* 1000000000 \(got 1000"):
        load_cluster(path)


def test_bandwidths_in_gigabits_are_not_taken_for_bytes(tmp_path: Path) -> None:
    """`all_reduce = 200` of a cluster file was priced as 200 bytes/s: a step of two years."""
    path = tmp_path / "mine.toml"
    save_cluster(load_cluster("dgx-h100"), path)
    text = path.read_text(encoding="utf-8")
    at = text.index("all_to_all", text.index("[network"))
    line = text[at : text.index("\n", at)]
    path.write_text(text[:at] + "all_to_all = 200" + text[at + len(line) :], encoding="utf-8")
    with pytest.raises(UnknownProfile, match=r"network\.bus_bandwidth\.all_to_all is 200 bytes/s"):
        load_cluster(path)


def test_this_machine_is_shared_by_its_processes() -> None:
    """`local-cpu:4` is four accelerators that together have the machine's cores and memory."""
    cores, four = load_cluster("local-cpu"), load_cluster("local-cpu:4")
    assert cores.gpus_per_node == num_cores()
    assert four.gpus_per_node == 4
    assert 4 * four.gpu.memory_bytes == pytest.approx(memory_bytes())
    total = four.gpus_per_node * four.gpu.peak_flops_per_s["fp32"]
    assert total == pytest.approx(cores.gpus_per_node * cores.gpu.peak_flops_per_s["fp32"])


def test_a_gpu_without_measurements_is_an_error() -> None:
    """Kernels of a GPU that does not exist name the close ones instead of guessing."""
    with pytest.raises(UnknownProfile, match="did you mean h100"):
        load_kernels("h100-sxm5")


SEEDED = [f"measured/{name}" for name in sorted({*MATMULS, *ATTENTION})]
SEEDED += [f"clusters/{name}" for name in sorted(CURVES)]


@pytest.mark.few(6)
@pytest.mark.parametrize("name", SEEDED)
def test_seeds_are_made_of_the_published_tables(name: str, tmp_path: Path) -> None:
    """Each table in a profile is what `benchmarks.accuracy.profile_points` makes of published/."""
    path = HERE / f"{name}.toml"
    write_toml(seeded(path), tmp_path / "again.toml")
    assert close(read_toml(tmp_path / "again.toml"), read_toml(path))


@given(
    st.dictionaries(
        st.text(min_size=1).filter(lambda key: key not in TABLES | PROSE),
        st.one_of(
            st.text(st.characters(exclude_categories=("Cs",))),
            st.integers(-(2**62), 2**62),
            st.floats(allow_nan=False, allow_infinity=False),
            st.booleans(),
            st.lists(st.integers(0, 9), max_size=3),
            st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e15), max_size=3),
        ),
        max_size=6,
    )
)
def test_what_is_written_is_read_back(document: dict[str, object]) -> None:
    """Any document of plain values survives being written as TOML and read again."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "document.toml"
        write_toml(document, path)
        assert read_toml(path) == document


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        pytest.param("400Gb/s", 50e9, id="400 Gb/s / 8 bits"),
        pytest.param("50GB/s", 50e9, id="bytes as they are"),
        pytest.param("100 Gbps", 12.5e9, id="the other spelling"),
        pytest.param("3.35TB/s", 3.35e12, id="decimal prefixes"),
    ],
)
def test_bandwidth_by_hand(text: str, bytes_per_s: float) -> None:
    """A small b is bits, a big B bytes, prefixes are powers of 1000."""
    assert parse_bandwidth(text) == pytest.approx(bytes_per_s)


@pytest.mark.parametrize("text", ["400", "400G", "fast", "-1Gb/s", "0Gb/s", "4 gb/s"])
def test_other_text_is_no_bandwidth(text: str) -> None:
    """Without a unit, or at zero, the text is refused with the forms that work."""
    with pytest.raises(ValueError, match="400Gb/s"):
        parse_bandwidth(text)


def test_names_are_the_files() -> None:
    """The lists of names have the parts that published runs and the documentation use."""
    assert {"h100-sxm", "cpu", "mi355x", "rtx-4090"} <= set(gpu_names())
    assert {"dgx-h100", "jean-zay-a100", "gb200-nvl72", "local-cpu"} <= set(cluster_names())


def test_profiles_do_without_torch() -> None:
    """Importing the loader and the profiles command imports neither torch nor matplotlib."""
    code = (
        "import sys, meshplan.planner.cli.profiles, meshplan.hardware_profiles.load;"
        "print([m for m in ('torch', 'matplotlib', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_gpus_taught_is_not_said_of_cpus() -> None:
    """A CPU is priced by its profile alone, with the band of an engine that nobody fitted."""
    assert load_fit("native", "cpu") == UNFITTED
    assert load_fit("native", "h100-sxm") != UNFITTED


@pytest.mark.parametrize("value", ["nan", "-inf", "-1"])
@pytest.mark.parametrize(
    "key", ["attention_forward", "memory_efficiency", "launch_s", "host_memory_bytes", "all_reduce"]
)
def test_no_figure_of_a_profile_is_negative_or_no_number(
    tmp_path: Path, key: str, value: str
) -> None:
    """What every price is made of is refused at the edge, by its name."""
    path = tmp_path / "cluster.toml"
    save_cluster(load_cluster("dgx-h100"), path)
    text = re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", path.read_text())
    assert f"{key} = {value}" in text
    path.write_text(text)
    with pytest.raises(UnknownProfile, match=key):
        load_cluster(path)


def test_what_a_profile_leaves_out_does_not_change_it() -> None:
    """A plan names its profile by content: one that says nothing of scans is what it was before
    profiles could, one that does is another.
    """
    root = Path(__file__).parent.parent.parent
    plan = (root / "examples/runs/dp2/plan.yaml").read_text(encoding="utf-8")
    cluster = load_cluster(str(root / "examples/runs/cpu.toml"))
    assert f"sha256: {cluster_hash(cluster)}\n" in plan
    assert cluster.kernels is not None
    kernels = cluster.kernels.model_copy(update={"scan_backward": 0.1})
    assert cluster_hash(cluster.model_copy(update={"kernels": kernels})) != cluster_hash(cluster)


def test_the_file_of_a_cpu_profile_and_an_older_one(tmp_path: Path) -> None:
    """The columns as they are written, processor seconds and waiting among them; a file from before
    them reads as a profile that did not measure them, and hashes as it did then.
    """
    points = tuple(
        CurvePoint(kind="all_gather", ranks_per_node=2, nodes=1, size_bytes=size, seconds=seconds,
                   spread=0.5, processor_s=0.25 * seconds, apart=apart)
        for size, seconds, apart in ((1024, 0.5, 0.03125), (4096, 1.0, 0.09375))
    )  # fmt: skip
    measured = load_cluster("local-cpu:2").model_copy(
        update={"collective_points": points, "collective_fits": fit_curves(points)}
    )
    path = tmp_path / "mine.toml"
    save_cluster(measured, path)
    text = path.read_text(encoding="utf-8")
    new = (
        "kind,ranks_per_node,nodes,size_bytes,seconds,spread,processor_s,apart\n"
        "all_gather,2,1,1024.0,0.5,0.5,0.125,0.03125\n"
        "all_gather,2,1,4096.0,1.0,0.5,0.25,0.09375\n"
    )
    assert new in text
    assert load_cluster(str(path)) == measured
    assert measured.collective_fits[0].apart == 0.0625
    old = (
        "kind,ranks_per_node,nodes,size_bytes,seconds,spread\n"
        "all_gather,2,1,1024.0,0.5,0.5\nall_gather,2,1,4096.0,1.0,0.5\n"
    )
    older_fits = re.sub(r",apart(\n(?:.*,)?[^,\n]*),[^,\n]*\n", r"\1\n", text.replace(new, old))
    path.write_text(older_fits, encoding="utf-8")
    older = load_cluster(str(path))
    without = {"processor_s": None, "apart": None}
    plain = tuple(point.model_copy(update=without) for point in points)
    assert older.collective_points == plain
    assert older.collective_fits == fit_curves(plain)
    assert cluster_hash(older) == _hash_of(older)


def _hash_of(cluster: Cluster) -> str:
    """By hand as before the columns were there."""
    kernels = {
        "scan_forward", "scan_backward", "sparse_backward", "sparse_half_backward", "sdpa_forward",
        "sdpa_backward", "sdpa_half_forward", "sdpa_half_backward", "sums16_backward",
        "sums16_half_backward", "grouped_mm_fraction", "grouped_overlap", "uneven_backward",
        "uneven_half_backward",
    }  # fmt: skip
    document = cluster.model_dump(
        mode="json", exclude={"plan_memory_bytes": True, "pod": True, "kernels": kernels,
        "host_slowdown": True, "node": {"interference", "meshed", "collective_fits"},
        "network": {"interference", "meshed", "collective_fits"},
        "collective_points": {"__all__": {"processor_s", "apart"}},
        "collective_fits": {"__all__": {"apart"}}},
    )  # fmt: skip
    content = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def test_whose_constants_an_engine_has_is_read_without_its_tables() -> None:
    """The head of a file says what the validated file does, inherited or its own."""
    every = [*engine_names(), *(path.stem for path in VARIANTS.glob("*.toml"))]
    found = {name: fitted_as(name) for name in every}
    assert found == {name: load_engine(name).fitted_as or name for name in every}
    assert found["megatron-bridge-2025"] == "megatron-bridge"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param("", "spede: no such field (got 1)", id="one fault"),
        pytest.param("other = 2\n", "no such field (got 1) (and 1 more)", id="two"),
    ],
)
def test_a_slip_of_the_pen_is_the_first_fault(tmp_path: Path, more: str, said: str) -> None:
    """Of the others so many are said."""
    save_cluster(load_cluster("dgx-h100"), tmp_path / "mine.toml")
    text = (tmp_path / "mine.toml").read_text()
    (tmp_path / "mine.toml").write_text(f"spede = 1\n{more}{text}")
    with pytest.raises(UnknownProfile) as found:
        load_cluster(tmp_path / "mine.toml")
    assert str(found.value).endswith(said)
