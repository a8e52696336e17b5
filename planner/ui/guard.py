"""Who may talk to the page's server: this machine's own page, with the token of this start.

Host      must be this server's own address: a name that a hostile page rebinds to 127.0.0.1 (DNS
          rebinding) is sent as the Host, and refused
Origin    must be this server's own where a browser sends one: another page's requests are refused
token     every answer needs it in a header, which another origin cannot send without being asked
"""

import secrets
from dataclasses import field

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshplan.hardware_profiles.dataclass import dataclass

TOKEN_HEADER = "x-meshplan-token"
SECURE = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Access:
    """The port that the server listens on, and the token of this start."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The values of `Host` that are this server's own."""
        return (f"127.0.0.1:{self.port}", f"localhost:{self.port}")

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{self.hosts[0]}/?token={self.token}"

    def refusal(self, headers: Headers, path: str) -> str | None:
        """Why a request is not answered, in one line; None if it is."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self.hosts:
            return f"Host {host!r} is not this server; open {self.hosts[0]}"
        if origin is not None and origin not in (f"http://{each}" for each in self.hosts):
            return f"Origin {origin!r} is another page; only this server's own page may ask"
        given = headers.get(TOKEN_HEADER, "")
        known = secrets.compare_digest(given.encode(), self.token.encode())
        if path.startswith("/api/") and not known:
            return "no token of this start: open the address that `meshplan ui` printed"
        return None


class Guard:
    """Refuses what `Access` refuses, and sets headers that keep the page to itself."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURE)
            await send(message)

        refusal = self._access.refusal(Headers(scope=scope), scope["path"])
        app = JSONResponse({"error": refusal}, 403) if refusal else self._app
        await app(scope, receive, secured)
