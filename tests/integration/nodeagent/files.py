"""A mirror of the tests' own: real HTTP with ranges, and ways to fail."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from libs.events.library import WeightFile


def file_of(content: bytes, path: str = "model.gguf") -> WeightFile:
    return WeightFile(path=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


class FileServer:
    """Serves ``/v1/files/<sha256>``. Counts what it was asked and what it sent."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.requests: list[str | None] = []
        """The ``Range`` of each request."""
        self.authorizations: list[str | None] = []
        """And its ``Authorization``."""
        self.sent_bytes = 0
        self.cut_after: int | None = None
        """Break off the next answer after so many bytes."""
        self.ranges = True
        self.hold: threading.Event | None = None
        """Stop half-way until it is set."""
        self.rate_bytes_s: float | None = None
        """How fast an answer goes out at most."""
        self.url = ""

    def add(self, content: bytes, path: str = "model.gguf") -> WeightFile:
        file = file_of(content, path)
        self.contents[file.sha256] = content
        return file


@contextmanager
def serving() -> Iterator[FileServer]:
    files = FileServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            return

        def do_GET(self) -> None:
            content = files.contents.get(self.path.rpartition("/")[2])
            asked = self.headers.get("Range")
            files.requests.append(asked)
            files.authorizations.append(self.headers.get("Authorization"))
            self.close_connection = True
            if content is None:
                self.send_error(404)
                return
            start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked and files.ranges else 0
            body = content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            if files.cut_after is not None:
                body, files.cut_after = body[: files.cut_after], None
            try:
                half = len(body) // 2
                pieces = [body[:half], body[half:]]
                if files.rate_bytes_s is not None:
                    step = max(1, int(files.rate_bytes_s / 50))
                    pieces = [body[at : at + step] for at in range(0, len(body), step)]
                for piece in pieces:
                    self.wfile.write(piece)
                    self.wfile.flush()
                    files.sent_bytes += len(piece)
                    if files.hold is not None:
                        files.hold.wait(10)
                    if files.rate_bytes_s is not None:
                        time.sleep(0.02)
            except OSError:
                pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    files.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield files
    finally:
        if files.hold is not None:
            files.hold.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
