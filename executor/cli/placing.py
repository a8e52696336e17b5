"""From the options of `meshplan execute` to where the ranks of a plan go."""

from dataclasses import dataclass, replace
from pathlib import Path

import typer

from meshplan.executor.launch.preflight import (
    CannotRun,
    check_data,
    check_host,
    nodes_of,
    notices,
    place,
    profile_of,
)
from meshplan.executor.launch.probe import Found, find_hardware
from meshplan.executor.launch.rendezvous import endpoint, meeting_at
from meshplan.executor.launch.run import RunSettings
from meshplan.executor.launch.start import Launcher, Starter
from meshplan.planner.case.plan_file import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where the ranks go; `started`: they will be, not only printed."""

    nodes: int | None
    rendezvous: str | None
    cluster: str | None
    data: Path | None
    started: bool


FIRST_HOST = "FIRST_HOST:29500"
"""Stands in a printed command for what only its reader knows."""


def settings_of(plan: Plan, starter: Starter, where: Where) -> RunSettings:
    """Preflight: where the ranks go, and what the user should know before they start."""
    by_hand = starter.launcher is Launcher.torchrun
    if where.nodes and where.nodes > 1 and where.rendezvous is None and by_hand:
        raise CannotRun(
            f"--nodes {where.nodes} needs --rendezvous HOST:PORT, and the same command on every "
            "host; or --launcher slurm"
        )
    if where.rendezvous:
        endpoint(where.rendezvous)
    here = by_hand and where.started
    meeting = meeting_at(where.rendezvous) if where.rendezvous and here else None
    found = find_hardware() if by_hand else None
    priced_by = profile_of(plan, where.cluster)
    for_cpus = priced_by is not None and priced_by.gpu.vendor == "cpu"
    if found and for_cpus:
        found = found.as_cpu()
    nodes = where.nodes or (1 if here or for_cpus else nodes_of(plan, priced_by))
    placement = place(plan, nodes, found if where.started or nodes == 1 else None)
    if found and where.started:
        if where.data is not None:
            check_data(where.data)
        check_host(plan, placement, found, priced_by)
        for line in notices(plan, placement, found, priced_by):
            typer.echo(f"note: {line}", err=True)
    return RunSettings(
        placement=placement,
        starter=replace(starter, host=meeting.local_address) if meeting else starter,
        meeting=meeting,
        rendezvous=where.rendezvous or (FIRST_HOST if by_hand and nodes > 1 else None),
        device="cpu" if for_cpus else "cuda",
        versions=_versions(found),
        gpu=priced_by.gpu.name if priced_by else None,
    )


def _versions(found: Found | None) -> dict[str, str]:
    if found is None:
        return {}
    said = {"torch": found.torch, "device": found.name, "host": found.host}
    return {**said, "cuda": found.cuda} if found.cuda else said
