"""`meshplan ui`: a local page over the same functions as the command line."""

import importlib.util
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

NEEDED = ("starlette", "uvicorn")
PORT = 8577


class NoPage(Exception):
    """The page cannot be served: its extra is not installed, or its port is taken."""


def ui(
    cluster: Annotated[
        list[Path] | None,
        typer.Option(help="Profile file that the page may use. Repeatable."),
    ] = None,
    port: Annotated[
        int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)
    ] = PORT,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Open a local page: drag the parallel degrees, see memory and time, solve for the best layout.

    Example: meshplan ui --cluster my-cluster.toml

    Only this machine can reach it, with the token in the address that is printed. Ctrl-C ends it.
    """
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        raise NoPage("the page needs the extra `ui`: pip install 'meshplan[ui]'")
    from meshplan.planner.case.resolve import cluster_named
    from meshplan.planner.cli.main import exit_code
    from meshplan.planner.ui.guard import Access
    from meshplan.planner.ui.server import Server, listen, server_of

    profiles = tuple(str(path) for path in cluster or ())
    for profile in profiles:
        cluster_named(profile)
    try:
        socket = listen(port)
    except OSError as error:
        raise NoPage(
            f"--port {port}: {error.strerror}; take another, or 0 for a free one"
        ) from None
    access = Access(socket.getsockname()[1])
    app = Server(profiles, lambda error: exit_code(error) is not None).app(access)
    print(access.address)
    print("Ctrl-C ends it", file=sys.stderr)
    if open_browser:
        webbrowser.open(access.address)
    server_of(app).run([socket])
