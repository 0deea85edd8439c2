"""A hub of the tests' own: the two addresses of the real one that agents use, and large files on another port."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .files import FileServer, serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "acme/tiny"


class HubServer:
    """Serves one commit of one repository. What it was asked is in ``requests``, with the header ``Authorization``."""

    def __init__(self, storage: FileServer) -> None:
        self.storage = storage
        """Where large files are: it gives them by their SHA-256, without asking who wants them."""
        self.small: dict[str, bytes] = {}
        self.large: dict[str, str] = {}
        """Path to SHA-256."""
        self.published: dict[str, str] = {}
        """Path to the sum a small file is said to have, where that is not its own."""
        self.token: str | None = None
        """Refuse whoever has another."""
        self.failing = 0
        """Answer so many requests with HTTP 503."""
        self.sha = COMMIT
        self.requests: list[tuple[str, str | None]] = []
        self.url = ""

    def put(self, path: str, content: bytes) -> None:
        self.small[path] = content

    def put_large(self, path: str, content: bytes) -> str:
        self.large[path] = self.storage.add(content, path).sha256
        return self.large[path]

    def listing(self) -> dict[str, Any]:
        files: list[dict[str, Any]] = []
        for path, content in self.small.items():
            sum_ = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            files.append({"rfilename": path, "size": len(content), "blobId": self.published.get(path, sum_)})
        for path, sha256 in self.large.items():
            size = len(self.storage.contents[sha256])
            lfs = {"sha256": sha256, "size": size, "pointerSize": 135}
            files.append({"rfilename": path, "size": size, "blobId": "f" * 40, "lfs": lfs})
        return {"id": REPOSITORY, "sha": self.sha, "private": False, "siblings": files}


@contextmanager
def hub_serving() -> Iterator[HubServer]:
    with serving() as storage:
        hub = HubServer(storage)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def do_GET(self) -> None:
                given = self.headers.get("Authorization")
                hub.requests.append((self.path, given))
                self.close_connection = True
                path = self.path.removeprefix(f"/{REPOSITORY}/resolve/{COMMIT}/")
                if hub.failing:
                    hub.failing -= 1
                    self._answer(503, b"")
                elif hub.token is not None and given != f"Bearer {hub.token}":
                    self._answer(401, b"")
                elif self.path == f"/api/models/{REPOSITORY}/revision/{COMMIT}?blobs=true":
                    self._answer(200, json.dumps(hub.listing()).encode())
                elif path in hub.small:
                    self._answer(200, hub.small[path])
                elif path in hub.large:
                    self._answer(302, b"", Location=f"{hub.storage.url}/v1/files/{hub.large[path]}")
                else:
                    self._answer(404, b"")

            def _answer(self, status: int, body: bytes, **headers: str) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield hub
        finally:
            server.shutdown()
            server.server_close()
            thread.join(5)
