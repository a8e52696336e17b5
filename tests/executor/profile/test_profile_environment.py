"""What stands beside a profile's numbers."""

import subprocess

import pytest

from meshplan.executor.profile.environment import CLOCKS, asked_clocks


def test_clocks_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nvidia-smi writes them on one line, in the order asked for."""
    line = ", ".join(f"{number} MHz" for number in range(len(CLOCKS)))
    answer = subprocess.CompletedProcess((), 0, stdout=f"{line}\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    found = asked_clocks("x")
    assert (found["clocks_sm"], found["clocks_max_sm"]) == ("0 MHz", "1 MHz")
    assert len(found) == len(CLOCKS)


@pytest.mark.parametrize("hangs", [True, False])
def test_a_profile_is_kept_where_nvidia_smi_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """It says why: it hung, or refused."""

    def run(command: list[str], timeout: float, **_: object) -> subprocess.CompletedProcess[str]:
        if hangs:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 9, stdout="no driver\n", stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    assert asked_clocks("x") == {"nvidia-smi": "no answer within 30 s" if hangs else "no driver"}
