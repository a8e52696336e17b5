"""`meshplan execute --nodes 2 --rendezvous` on two hosts, which are network namespaces.

    pytest -m netns        (docs/execute.md says what it needs)

Each host is a process that holds a namespace open until its stdin is closed: with this process,
however that ends, both namespaces and the wire between them are gone. Both call themselves by this
machine's name, which stands for the loopback address of each, as on many Debian hosts.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_runs import tiny_plan, tiny_prediction

from meshplan.planner.case.plan_file import write_plan

ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 29517
MESHPLAN = Path(sys.executable).with_name("meshplan")
ENDLESS = ("--steps", "1000000")
HOLD = "ip link set lo up && echo ready && exec cat"


def _can_be_made() -> bool:
    """Whether this machine lets this user make a network namespace."""
    if not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return False
    tried = subprocess.run(["unshare", "--net", "ip", "link"], capture_output=True, check=False)
    return tried.returncode == 0


pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(
        not _can_be_made(), reason="needs root, iproute2 and util-linux: no network namespace here"
    ),
]


class Hosts:
    """Two hosts with a wire between them, and a plan of one rank for each in a folder of both."""

    def __init__(self, folder: Path) -> None:
        self.plan, self.out = folder / "plan.yaml", folder / "plan.run"
        write_plan(tiny_plan(prediction=tiny_prediction(1.0)), self.plan)
        self._started: list[subprocess.Popen[str]] = []
        self._holders = [
            subprocess.Popen(
                ["unshare", "--net", "sh", "-c", HOLD],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for _ in ADDRESSES
        ]  # fmt: skip
        for holder in self._holders:
            assert holder.stdout
            assert holder.stdout.readline() == "ready\n"
        self.on(0, "ip", "link", "add", "wire", "type", "veth",
                "peer", "name", "wire", "netns", str(self._holders[1].pid))  # fmt: skip
        for host, address in enumerate(ADDRESSES):
            self.on(host, "ip", "address", "add", f"{address}/24", "dev", "wire")
            self.on(host, "ip", "link", "set", "wire", "up")

    def _inside(self, host: int) -> list[str]:
        return ["nsenter", "--target", str(self._holders[host].pid), "--net"]

    def on(self, host: int, *command: str) -> None:
        """Run a command on a host to its end."""
        subprocess.run([*self._inside(host), *command], check=True, capture_output=True)

    def execute(self, host: int, *options: str, out: Path | None = None) -> "subprocess.Popen[str]":
        """Start the command on a host: it is the same on both."""
        command = [MESHPLAN, "execute", self.plan, "--out", out or self.out, "--nodes", "2",
                   "--rendezvous", f"{ADDRESSES[0]}:{PORT}", "--band", "1e9", *options]  # fmt: skip
        process = subprocess.Popen(
            [*self._inside(host), *command], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._started.append(process)
        return process

    def step(self, *processes: "subprocess.Popen[str]") -> None:
        """Wait until a timed step is in the result."""
        path, deadline = self.out / "result.json", time.monotonic() + 180
        while not (path.exists() and json.loads(path.read_text())["step_time_s"]):
            assert all(each.poll() is None for each in processes), list(map(ended, processes))
            assert time.monotonic() < deadline, "no step"
            time.sleep(0.2)

    def close(self) -> None:
        """Leave no command and no host behind."""
        for process in self._started:
            process.terminate()
            process.communicate()
        for holder in self._holders:
            holder.communicate()


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """The exit code of a command, and all that it said."""
    said, complained = process.communicate(timeout=300)
    return process.returncode, said + complained


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts, for one test."""
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.close()


def test_two_hosts_train(hosts: Hosts) -> None:
    """The same command on both: they meet, train over the wire, and both compare all ranks."""
    ran = [ended(process) for process in [
        hosts.execute(host, "--steps", "3", "--warmup", "1") for host in (0, 1)
    ]]  # fmt: skip
    for code, said in ran:
        assert code == 0, said
        assert re.search(r"step time +[\d.]+ m?s +[\d.]+ m?s", said), said
    result = json.loads((hosts.out / "result.json").read_text())
    assert result["status"] == "complete"
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1]
    assert {path.name for path in (hosts.out / "logs").iterdir()} == set(ADDRESSES)


def test_a_host_that_disappears(hosts: Hosts) -> None:
    """Its wire is cut and it dies without a word: the other ends within --timeout with a line."""
    alive, gone = (hosts.execute(host, *ENDLESS, "--timeout", "8") for host in (0, 1))
    hosts.step(alive, gone)
    hosts.on(1, "ip", "link", "set", "wire", "down")
    gone.send_signal(signal.SIGKILL)
    code, said = ended(alive)
    assert code == 1
    assert re.search(r"no progress for \d+ s \(--timeout 8\): rank [01] hangs in phase", said), said
    assert json.loads((hosts.out / "result.json").read_text())["status"] == "failed"


def test_a_host_whose_ranks_die(hosts: Hosts) -> None:
    """While the wire holds, the other hears of it: exit 1 well before the timeout."""
    alive, gone = (hosts.execute(host, *ENDLESS) for host in (0, 1))
    hosts.step(alive, gone)
    os.kill(gone.pid, signal.SIGKILL)
    code, said = ended(alive)
    assert code == 1
    assert "error: rank " in said, said


def test_a_folder_of_one_host_only(hosts: Hosts, tmp_path: Path) -> None:
    """Records that this host does not see are no comparison: exit 1, and what --out must be."""
    first = hosts.execute(0, "--steps", "2", "--warmup", "1")
    other = hosts.execute(1, "--steps", "2", "--warmup", "1", out=tmp_path / "other")
    for process in (first, other):
        code, said = ended(process)
        assert code == 1
        assert re.search(r"has no steps of rank [01] .*give an --out that every host sees", said)
