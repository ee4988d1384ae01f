"""The page of an inspection on this machine alone: texts are walked through when they are asked for."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, final
from urllib.parse import urlsplit

from ..errors import OutlinesPhiError, UnsupportedError
from .inspection import Inspection
from .site import DATA, data_of, page_files, script

LOOPBACK = "127.0.0.1"
MOST_BYTES = 1 << 20  # Of the body of a request


@final
class LoopbackServer(ThreadingHTTPServer):
    """A server of an inspection that listens on the loopback interface, at ``port``, or at a free one for 0.

    ``GET /`` and the files beside it are the page, ``GET /data/KEY.js`` its data; ``POST /walk`` takes ``{"text": ..}``, and
    ``POST /why`` ``{"ids": [..], "token": ..}``. Requests that name another host or come from a page of another one
    are refused.

    Raises :class:`UnsupportedError` where the port cannot be had.
    """

    daemon_threads = True

    def __init__(self, inspection: Inspection, texts: Sequence[str] = (), port: int = 0) -> None:
        self.inspection, self.texts, self.files = inspection, list(texts), page_files()
        try:
            super().__init__((LOOPBACK, port), InspectionRequest)
        except OSError as error:
            raise UnsupportedError(
                f"Give another --port, or leave it out for a free one. Port {port} cannot be had: {error.strerror}."
            ) from error

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/"


@final
class InspectionRequest(BaseHTTPRequestHandler):
    """One request."""

    server: LoopbackServer

    def do_GET(self) -> None:
        """Answer with a file of the page, or data."""
        path = urlsplit(self.path).path.lstrip("/") or "index.html"
        if not self._is_ours():
            return
        if path in self.server.files:
            kind = mimetypes.guess_type(path)[0] or "text/plain"
            self._answer(self.server.files[path], f"{kind}; charset=utf-8")
        elif path.startswith(f"{DATA}/") and path.endswith(".js"):
            key = path.removeprefix(f"{DATA}/").removesuffix(".js")
            try:
                found = data_of(self.server.inspection, key, self.server.texts, is_served=True)
            except OutlinesPhiError as error:
                self._refuse(HTTPStatus.NOT_FOUND, error)
            else:
                self._answer(script(key, found), "text/javascript; charset=utf-8")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, UnsupportedError(f"Open the page at /. There is no /{path}."))

    def do_POST(self) -> None:
        """Walk through a text, or say why a token is masked."""
        if not self._is_ours():
            return
        try:
            size = int(self.headers.get("Content-Length", "0"))
            if not 0 <= size <= MOST_BYTES:
                raise UnsupportedError(f"Give at most {MOST_BYTES:,} bytes. {size:,} were given.")
            match self.path, json.loads(self.rfile.read(size)):
                case "/walk", {"text": str(text)}:
                    found = self.server.inspection.walk(text)
                case "/why", {"ids": list(ids), "token": str(token)} if all(type(each) is int for each in ids):
                    found = self.server.inspection.why(ids, token)
                case _:
                    raise UnsupportedError('Post {"text": ".."} to /walk, or {"ids": [..], "token": ".."} to /why.')
        except (OutlinesPhiError, ValueError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, error)
        else:
            self._answer(json.dumps(found, ensure_ascii=False).encode(), "application/json")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the address was printed, and the page shows errors."""

    def _is_ours(self) -> bool:
        host = self.headers.get("Host", "")
        hosts = (f"{LOOPBACK}:{self.server.server_port}", f"localhost:{self.server.server_port}")
        origin = self.headers.get("Origin", f"http://{host}")  # browsers name that of the page which posts
        if host in hosts and origin == f"http://{host}":
            return True
        self._refuse(
            HTTPStatus.FORBIDDEN,
            UnsupportedError(f"Open {self.server.address}. Another was asked for: {host!r:.60}, from {origin!r:.60}."),
        )
        return False

    def _refuse(self, status: HTTPStatus, error: Exception) -> None:
        said = json.dumps({"error": " ".join(str(error).split())}, ensure_ascii=False)
        self._answer(said.encode(), "application/json", status)

    def _answer(self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)
