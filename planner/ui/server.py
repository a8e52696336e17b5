"""The page's server: three questions as JSON, and the page's own files.

    GET  /api/catalogue  what may be picked
    POST /api/price      the layout of the sliders, priced          (`PriceRequest`)
    POST /api/solve      the proved best, pinned axes kept          (`SolveRequest`)
    GET  /api/progress   where the running search stands, one line
    POST /api/compare    a training config beside the layout        (`CompareRequest`)

A user's mistake is 400 with {"error": one line}, in the words of the command line.
"""

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from meshplan.hardware_profiles.files.profile_file import first_fault
from meshplan.planner.case.input_limits import MAX_BYTES
from meshplan.planner.case.settings import one_line
from meshplan.planner.search.progress import Progress
from meshplan.planner.ui.answers import (
    catalogue,
    compare_document,
    price_document,
    solve_document,
)
from meshplan.planner.ui.guard import Access, Guard
from meshplan.planner.ui.requests import CompareRequest, JobWords, PriceRequest, SolveRequest

PAGE = Path(__file__).parent / "page"
MOST_BODY = 2 * MAX_BYTES + 2**16  # a model's config and a training config
LOOPBACK = "127.0.0.1"
Asking = TypeVar("Asking", bound=BaseModel)


class Refused(ValueError):
    """A request that cannot be answered: one line, and the HTTP status."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class Server:
    """One start of the page: the profiles that it may open, and the search that is running.

    is_users  whether an error is a user's to mend (the command line's table); others are ours
    """

    def __init__(
        self, profiles: tuple[str, ...], is_users: Callable[[BaseException], bool]
    ) -> None:
        self._profiles, self._is_users = profiles, is_users
        self._searching = threading.Lock()
        self._progress = ""

    def app(self, access: Access) -> Starlette:
        """The application."""
        return Starlette(
            routes=[
                Route("/api/catalogue", self.catalogue),
                Route("/api/price", self.price, methods=["POST"]),
                Route("/api/solve", self.solve, methods=["POST"]),
                Route("/api/progress", self.progress),
                Route("/api/compare", self.compare, methods=["POST"]),
                Mount("/", StaticFiles(directory=PAGE, html=True)),
            ],
            middleware=[Middleware(Guard, access=access)],
        )

    async def catalogue(self, request: Request) -> JSONResponse:
        """What may be picked."""
        return JSONResponse(catalogue(self._profiles))

    async def progress(self, request: Request) -> JSONResponse:
        """Where the running search stands; empty where none runs."""
        return JSONResponse({"line": self._progress})

    async def price(self, request: Request) -> JSONResponse:
        """The layout of the sliders."""
        return await self._answer(request, PriceRequest, price_document)

    async def compare(self, request: Request) -> JSONResponse:
        """A training config beside it."""
        return await self._answer(request, CompareRequest, compare_document)

    async def solve(self, request: Request) -> JSONResponse:
        """The proved best; one search at a time."""
        return await self._answer(request, SolveRequest, self._solved)

    def _solved(self, request: SolveRequest) -> dict[str, Any]:
        if not self._searching.acquire(blocking=False):
            raise Refused("a search is running already; wait for it to end", 409)
        started = time.monotonic()

        def told(progress: Progress) -> None:
            self._progress = progress_line(progress, time.monotonic() - started)

        try:
            return solve_document(request, told)
        finally:
            self._progress = ""
            self._searching.release()

    async def _answer(
        self, request: Request, kind: type[Asking], answer: Callable[[Any], dict[str, Any]]
    ) -> JSONResponse:
        try:
            asked = await body_of(request, kind)
            self._check_files(getattr(asked, "job", None))
            started = time.perf_counter()
            document = await run_in_threadpool(answer, asked)
            took_ms = (time.perf_counter() - started) * 1e3
            return JSONResponse(document, headers={"server-timing": f"answer;dur={took_ms:.2f}"})
        except Refused as error:
            return JSONResponse({"error": one_line(error)}, error.status)
        except Exception as error:
            if not self._is_users(error):
                raise
            return JSONResponse({"error": one_line(error)}, 400)

    def _check_files(self, job: JobWords | None) -> None:
        """A page opens no profile by path but those named at the start."""
        if job and ("/" in job.cluster or job.cluster.endswith(".toml")):  # noqa: SIM102
            if job.cluster not in self._profiles:
                raise Refused(
                    f"the page does not open {job.cluster}; start it with "
                    "`meshplan ui --cluster FILE`"
                )


def progress_line(progress: Progress, elapsed_s: float) -> str:
    """Time, the best plan so far and its distance from the bound."""
    return f"{elapsed_s:.0f} s: {progress.words}, {progress.candidates:,} layouts"


async def body_of(request: Request, kind: type[Asking]) -> Asking:
    """The request's JSON body as `kind`; raises `Refused` with one line."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MOST_BODY:
            raise Refused(f"a request has at most {MOST_BODY} bytes; upload a smaller file", 413)
    try:
        return kind.model_validate(json.loads(data))
    except ValidationError as error:
        raise Refused(first_fault(error, "request")) from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"not JSON: {one_line(error)}") from None


def listen(port: int) -> socket.socket:
    """A socket on the loopback address; port 0 takes a free one. Raises `OSError`."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((LOOPBACK, port))
    found.listen(128)
    return found


def server_of(app: Starlette) -> uvicorn.Server:
    """The server that runs `app`; it says nothing but errors."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
    )
