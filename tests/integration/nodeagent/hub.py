"""A hub of the tests' own: the two addresses of the real one that agents use, and large files on another port."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from libs.testing.files import FileServer, QuietHandler, listening, serving

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

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                given = self.headers.get("Authorization")
                hub.requests.append((self.path, given))
                path = self.path.removeprefix(f"/{REPOSITORY}/resolve/{COMMIT}/")
                if hub.failing:
                    hub.failing -= 1
                    self.answer(503)
                elif hub.token is not None and given != f"Bearer {hub.token}":
                    self.answer(401)
                elif self.path == f"/api/models/{REPOSITORY}/revision/{COMMIT}?blobs=true":
                    self.answer(200, json.dumps(hub.listing()).encode())
                elif path in hub.small:
                    self.answer(200, hub.small[path])
                elif path in hub.large:
                    self.answer(302, Location=f"{hub.storage.url}/v1/files/{hub.large[path]}")
                else:
                    self.answer(404)

        with listening(Handler) as hub.url:
            yield hub
