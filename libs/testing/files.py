"""Files over HTTP with ranges, and ways to fail: a mirror, a hub's storage or a web server of a test's own."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from libs.events.library import WeightFile

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class QuietHandler(BaseHTTPRequestHandler):
    """HTTP/1.1, one request a connection, nothing printed."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        return

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """A whole answer."""
        self.close_connection = True
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on a port of its own; its address, without a path."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def file_of(content: bytes, path: str = "model.gguf") -> WeightFile:
    """How the library lists a file."""
    return WeightFile(path=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


class FileServer:
    """Serves ``contents``, by path or by the last part of it. Counts what it was asked and what it sent."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.moved: dict[str, str] = {}
        """Path to the address it leads to."""
        self.requests: list[str | None] = []
        """The ``Range`` of each request."""
        self.authorizations: list[str | None] = []
        """And its ``Authorization``."""
        self.tokens: dict[str, str | None] = {}
        """Path to the ``Authorization`` it was last asked with."""
        self.sent: list[tuple[str, int]] = []
        """Path of each answer, and its bytes so far."""
        self.cut_after: int | None = None
        """Break off the next answer after so many bytes."""
        self.ranges = True
        self.hold: threading.Event | None = None
        """Stop half-way until it is set."""
        self.rate_bytes_s: float | None = None
        """How fast an answer goes out at most."""
        self.url = ""

    @property
    def sent_bytes(self) -> int:
        """Of all answers together."""
        return sum(size for _, size in self.sent)

    def add(self, content: bytes, path: str = "model.gguf") -> WeightFile:
        """Serve a file by its SHA-256."""
        file = file_of(content, path)
        self.contents[file.sha256] = content
        return file

    def pieces(self, body: bytes) -> list[bytes]:
        """What is sent at a time: halves, or fiftieths of a second's worth."""
        if self.rate_bytes_s is None:
            half = len(body) // 2
            return [body[:half], body[half:]]
        step = max(1, int(self.rate_bytes_s / 50))
        return [body[at : at + step] for at in range(0, len(body), step)]


@contextmanager
def serving() -> Iterator[FileServer]:
    """A file server that runs meanwhile."""
    files = FileServer()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            content = files.contents.get(self.path, files.contents.get(self.path.rpartition("/")[2]))
            asked = self.headers.get("Range")
            files.requests.append(asked)
            files.authorizations.append(self.headers.get("Authorization"))
            files.tokens[self.path] = self.headers.get("Authorization")
            if self.path in files.moved:
                return self.answer(302, Location=files.moved[self.path])
            if content is None:
                return self.answer(404)
            part = _RANGE.fullmatch(asked or "") if files.ranges else None
            start = int(part[1]) if part else 0
            body = content[start : int(part[2]) + 1 if part and part[2] else None]
            self.close_connection = True
            self.send_response(206 if part else 200)
            self.send_header("Content-Length", str(len(body)))
            if part:
                self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(content)}")
            self.end_headers()
            if files.cut_after is not None:
                body, files.cut_after = body[: files.cut_after], None
            number = len(files.sent)
            files.sent.append((self.path, 0))
            try:
                for piece in files.pieces(body):
                    files.sent[number] = self.path, files.sent[number][1] + len(piece)
                    self.wfile.write(piece)
                    self.wfile.flush()
                    if files.hold is not None:
                        files.hold.wait(10)
                    if files.rate_bytes_s is not None:
                        time.sleep(0.02)
            except OSError:
                pass

    with listening(Handler) as files.url:
        try:
            yield files
        finally:
            if files.hold is not None:
                files.hold.set()
