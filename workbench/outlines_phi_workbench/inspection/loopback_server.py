"""The page of an inspection on this machine alone: texts are walked through when they are typed."""

from __future__ import annotations

import mimetypes
import secrets
import threading
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, final
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from outlines_phi import OutlinesPhiError, UnsupportedError

from .pages import FILES, Inspection

LOOPBACK = "127.0.0.1"

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    # The graph library writes a style sheet of its own into the page.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
}
"""Headers of every answer: no page of another origin reads, frames or loads any of it."""


@final
class LoopbackServer(ThreadingHTTPServer):
    """A server of an inspection that listens on the loopback interface, at ``port``, or at a free one for 0.

    Pages need the token of this run in their address, so that neither another page in the browser nor another user of the machine
    reads them. Requests that name another host or come from a page of another one are refused.

    Raises :class:`UnsupportedError` where the port cannot be had.
    """

    daemon_threads = True

    def __init__(self, inspection: Inspection, port: int = 0) -> None:
        self.inspection, self.turn = inspection, threading.Lock()
        self.token = secrets.token_urlsafe(16)
        try:
            super().__init__((LOOPBACK, port), InspectionRequest)
        except OSError as error:
            raise UnsupportedError(
                f"Give another --port, or leave it out for a free one. Port {port} cannot be had: {error.strerror}."
            ) from error

    @property
    def address(self) -> str:
        """The address of the page, with the token of this run."""
        return f"http://{LOOPBACK}:{self.server_port}{self.link('states')}"

    def link(self, view: str, argument: str = "") -> str:
        """Return the address of a view; a text is named by its number among those that were given, or ``typed``."""
        path = {"states": "/", "theorems": "/theorems"}.get(view, f"/text{argument and '-'}{argument}")
        return f"{path}?{urlencode({'token': self.token})}"


@final
class InspectionRequest(BaseHTTPRequestHandler):
    """One request."""

    server: LoopbackServer
    timeout = 60

    def do_GET(self) -> None:
        """Answer with a page, or a file beside it; or with a refusal."""
        status, kind = HTTPStatus.OK, "text/html"
        try:
            self._check_origin()
            address = urlsplit(self.path)
            path = unquote(address.path, errors="strict").lstrip("/")
            if path in FILES:
                content, kind = FILES[path], mimetypes.guess_type(path)[0] or "text/plain"
            else:
                given = {name: values[-1] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
                self._check_token(given.get("token", ""))
                content = self._page(path, given).encode()
        except (OutlinesPhiError, ValueError, PermissionError) as error:
            status = HTTPStatus.FORBIDDEN if isinstance(error, PermissionError) else HTTPStatus.BAD_REQUEST
            content = f"<!doctype html><p>{escape(' '.join(str(error).split()))}</p>".encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            **HEADERS,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _page(self, path: str, given: dict[str, str]) -> str:
        inspection, link = self.server.inspection, self.server.link
        view, _, number = path.partition("-")
        with self.server.turn:
            if path in ("", "index.html"):
                return inspection.states(link)
            if path == "theorems":
                return inspection.theorems(link)
            if view == "text" and (text := given.get("typed", self._given(number))) is not None:
                asked = (int(given["step"]), given["why"]) if given.get("why") else None
                return inspection.text(text, link, asked=asked, typed=True)
        raise UnsupportedError(f"Open the page at /. There is no {f'/{path}'!r:.80}.")

    def _given(self, number: str) -> str | None:
        texts = self.server.inspection.texts
        return texts[int(number)] if number.isdecimal() and int(number) < len(texts) else None

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the address was printed, and the page shows errors."""

    def _check_origin(self) -> None:
        """Refuse requests that name another host, or that a page of another origin has made, as the browser says."""
        host = self.headers.get("Host", "")
        hosts = (f"{LOOPBACK}:{self.server.server_port}", f"localhost:{self.server.server_port}")
        site = self.headers.get("Sec-Fetch-Site", "none")  # "none" is what the user has opened
        origin = self.headers.get("Origin", f"http://{host}")
        if host not in hosts or site not in ("none", "same-origin") or origin != f"http://{host}":
            raise PermissionError(
                f"Open the address that was printed, by hand. {host!r:.60} was asked for, from {origin!r:.60}, {site!r:.20}."
            )

    def _check_token(self, given: str) -> None:
        if not secrets.compare_digest(given.encode(), self.server.token.encode()):
            raise PermissionError(
                "Open the address that was printed, which ends in ?token=... That of another run, or none, was given."
            )
