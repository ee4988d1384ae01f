"""The page of an inspection on this machine alone: texts are walked through when they are asked for."""

from __future__ import annotations

import json
import mimetypes
import secrets
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, final
from urllib.parse import parse_qs, unquote, urlsplit

from outlines_phi.errors import OutlinesPhiError, UnsupportedError

from .inspection import Inspection
from .site import DATA, data_of, page_files

LOOPBACK = "127.0.0.1"
MOST_BYTES = 1 << 20  # Of the body of a request
TOKEN = "X-Outlines-Phi-Token"  # The header that only a page of the same origin can send

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    # The graph library writes a style sheet of its own into the page.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
}
"""Headers of every answer: no page of another origin reads, frames or loads any of it."""


@final
class LoopbackServer(ThreadingHTTPServer):
    """A server of an inspection that listens on the loopback interface, at ``port``, or at a free one for 0.

    ``GET /`` and the files beside it are the page, ``GET /data/KEY.json`` its data; ``POST /walk`` takes ``{"text": ..}``, and
    ``POST /why`` ``{"ids": [..], "token": ..}``. The page needs the token of this run in its address, and data need it in a
    header, so that neither another page in the browser nor another user of the machine reads them. Requests that name another
    host or come from a page of another one are refused.

    Raises :class:`UnsupportedError` where the port cannot be had.
    """

    daemon_threads = True

    def __init__(self, inspection: Inspection, texts: Sequence[str] = (), port: int = 0) -> None:
        self.inspection, self.texts, self.files = inspection, list(texts), page_files()
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
        return f"http://{LOOPBACK}:{self.server_port}/?token={self.token}"


@final
class InspectionRequest(BaseHTTPRequestHandler):
    """One request."""

    server: LoopbackServer
    timeout = 60  # Seconds that a body may take to come

    def do_GET(self) -> None:
        """Answer with a file of the page, or data."""
        self._answered(self._read)

    def do_POST(self) -> None:
        """Walk through a text, or say why a token is masked."""
        self._answered(self._asked)

    def _answered(self, find: Callable[[], tuple[bytes, str]]) -> None:
        """Answer with content and its type, or with a refusal."""
        status = HTTPStatus.OK
        try:
            self._check_origin()
            content, kind = find()
        except (OutlinesPhiError, ValueError, PermissionError) as error:
            status = HTTPStatus.BAD_REQUEST if self.command == "POST" else HTTPStatus.NOT_FOUND
            status = HTTPStatus.FORBIDDEN if isinstance(error, PermissionError) else status
            content, kind = _json({"error": " ".join(str(error).split())})
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _read(self) -> tuple[bytes, str]:
        address = urlsplit(self.path)
        path = unquote(address.path, errors="strict").lstrip("/") or "index.html"
        if path == "index.html":
            self._check_token(parse_qs(address.query).get("token", [""])[-1])
        if path in self.server.files:
            return self.server.files[path], f"{mimetypes.guess_type(path)[0] or 'text/plain'}; charset=utf-8"
        if not path.startswith(f"{DATA}/") or not path.endswith(".json"):
            raise UnsupportedError(f"Open the page at /. There is no {f'/{path}'!r:.80}.")
        self._check_token(self.headers.get(TOKEN, ""))
        key = path.removeprefix(f"{DATA}/").removesuffix(".json")
        return _json(data_of(self.server.inspection, key, self.server.texts, is_served=True))

    def _asked(self) -> tuple[bytes, str]:
        self._check_token(self.headers.get(TOKEN, ""))
        size = int(self.headers.get("Content-Length", "0"))
        if not 0 <= size <= MOST_BYTES:
            raise UnsupportedError(f"Give at most {MOST_BYTES:,} bytes. {size:,} were given.")
        try:
            posted = json.loads(self.rfile.read(size))
        except RecursionError:
            raise UnsupportedError(
                "Post an object without others inside. The one that was given is too deep."
            ) from None
        match self.path, posted:
            case "/walk", {"text": str(text)}:
                return _json(self.server.inspection.walk(text))
            case "/why", {"ids": list(ids), "token": str(token)} if all(type(each) is int for each in ids):
                return _json(self.server.inspection.why(ids, token))
        raise UnsupportedError('Post {"text": ".."} to /walk, or {"ids": [..], "token": ".."} to /why.')

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the address was printed, and the page shows errors."""

    def _check_origin(self) -> None:
        """Refuse requests that name another host, or that a page of another origin has made, as the browser says."""
        host = self.headers.get("Host", "")
        hosts = (f"{LOOPBACK}:{self.server.server_port}", f"localhost:{self.server.server_port}")
        origin = self.headers.get("Origin", f"http://{host}")
        site = self.headers.get("Sec-Fetch-Site", "none")  # "none" is what the user has opened
        if host not in hosts or origin != f"http://{host}" or site not in ("none", "same-origin"):
            raise PermissionError(
                f"Open the address that was printed, by hand. {host!r:.60} was asked for, from {origin!r:.60}, {site!r:.20}."
            )

    def _check_token(self, given: str) -> None:
        if not secrets.compare_digest(given.encode(), self.server.token.encode()):
            raise PermissionError(
                "Open the address that was printed, which ends in ?token=... That of another run, or none, was given."
            )


def _json(value: Any) -> tuple[bytes, str]:
    return json.dumps(value).encode(), "application/json"
