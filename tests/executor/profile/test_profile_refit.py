"""Half of a profile's points must predict the other half, and noise must show."""

import subprocess
import sys
from pathlib import Path

import pytest

from meshplan.executor.profile.refit import Refit, collective_errors, main, matmul_errors, refits
from meshplan.hardware_profiles.load import load_cluster, save_cluster
from meshplan.hardware_profiles.network_schema import CurvePoint
from meshplan.hardware_profiles.schema import MatmulPoint

SIDES = (256, 512, 1024, 2048)


def _matmuls(wobble: float = 0.0) -> list[MatmulPoint]:
    """A machine whose rate grows slowly with every side; `wobble` alternates between shapes."""
    return [
        MatmulPoint(
            dtype="fp32", m=m, n=n, k=k,
            flops_per_s=1e9 * (m * n * k) ** 0.05 * (1 + wobble * (-1) ** index),
        )
        for index, (m, n, k) in enumerate((m, n, k) for m in SIDES for n in SIDES for k in SIDES)
    ]  # fmt: skip


def _curve(wobble: float = 0.0) -> list[CurvePoint]:
    """100 us + size / (1 GB/s) at 1 KiB to 64 MiB; `wobble` alternates between sizes."""
    return [
        CurvePoint(
            kind="all_reduce", ranks_per_node=2, nodes=1, size_bytes=1024 * 2**i,
            seconds=(1e-4 + 1024 * 2**i / 1e9) * (1 + wobble * (-1) ** i),
        )
        for i in range(17)
    ]  # fmt: skip


def test_a_smooth_machine_predicts_itself() -> None:
    """Rates that change slowly are interpolated to a few per cent, a straight line exactly."""
    errors = list(matmul_errors(_matmuls()))
    assert len(errors) == 32  # half of 4 x 4 x 4
    assert max(errors) < 0.10
    assert max(collective_errors(_curve())) < 0.02


def test_noise_shows() -> None:
    """Points that contradict each other by 60 % are not called trustworthy."""
    noisy = Refit("matmul fp32", tuple(matmul_errors(_matmuls(wobble=0.3))), limit=0.1)
    assert not noisy.trustworthy
    assert Refit("all_reduce", tuple(collective_errors(_curve(0.3))), 0.15).median > 0.15


def test_no_layout_of_a_held_out_shape_is_fitted() -> None:
    """A shape measured in three layouts is held out in all of them: none of them may leak."""
    points = _matmuls()
    both = [*points, *(p.model_copy(update={"layout": "NN"}) for p in points)]
    assert len(list(matmul_errors(both))) == 2 * 32


@pytest.mark.parametrize(("wobble", "code"), [(0.0, 0), (0.3, 1)])
def test_the_command_answers_by_its_exit_code(tmp_path: Path, wobble: float, code: int) -> None:
    """0 for a profile that predicts itself, 1 for one that does not."""
    cluster = load_cluster("local-cpu:2")
    assert cluster.kernels is not None
    kernels = cluster.kernels.model_copy(update={"matmul_points": tuple(_matmuls(wobble))})
    points = {"kernels": kernels, "collective_points": tuple(_curve(wobble))}
    save_cluster(cluster.model_copy(update=points), tmp_path / "x.toml")
    answer = subprocess.run(
        [sys.executable, "-m", "meshplan.executor.profile.refit", str(tmp_path / "x.toml")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == code, answer.stdout + answer.stderr
    assert "matmul fp32" in answer.stdout
    assert "all_reduce" in answer.stdout


def test_without_a_profile_it_says_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and exit code 2."""
    monkeypatch.setattr(sys, "argv", ["refit"])
    assert main() == 2
    assert capsys.readouterr().err.startswith("error: give one profile")


def test_both_kinds_are_judged_by_their_own_limit() -> None:
    """10 % for matmuls on a CPU, 15 % for collectives."""
    cluster = load_cluster("local-cpu:2")
    assert cluster.kernels is not None
    kernels = cluster.kernels.model_copy(update={"matmul_points": tuple(_matmuls())})
    found = refits(
        cluster.model_copy(update={"kernels": kernels, "collective_points": tuple(_curve())})
    )
    assert {refit.name: refit.limit for refit in found} == {"matmul fp32": 0.10, "all_reduce": 0.15}
