"""Files over HTTP: whole or a range of them, from the page cache to the socket without passing through Python.

Each connection has a thread: a slow disk or a slow reader holds up nobody else, and the event loop least of all.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import struct
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from prometheus_client import Counter

from libs.events.library import WeightFile
from libs.runtime.status import PortTaken
from services.mirror.core.ranges import (
    ByteRange,
    Unsatisfiable,
    byte_range,
    matches_any,
    still_the_same,
)

from .served_files import ServedFiles
from .store import Store

log = logging.getLogger("llmgw.mirror")

MAX_CONNECTIONS = 256
"""A node fetches four files at once: enough for sixty nodes starting together. Others are asked to wait."""
MAX_AT_ONCE_BYTES = 1 << 30
"""Linux sends 2 GiB at most in one call."""
IDLE_S = 60
"""A connection that asks for nothing, or takes nothing, for so long is closed."""
BELIEVED_S = 600.0
"""A file that was read and found right is not read again for so long, however often somebody doubts it."""
_TURNED_AWAY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

_FILE = re.compile(r"^/v1/files/([0-9a-f]{64})$")
_VERSION = re.compile(r"^/v1/library/([^/]+)/([^/]+)$")

SENT = Counter("llmgw_mirror_sent_bytes_total", "Bytes of files sent.")
REQUESTS = Counter("llmgw_mirror_requests_total", "Requests answered.", ["status"])


class FileServer:
    """Serves files at an address. ``served`` says at every request which there are."""

    def __init__(
        self,
        host: str,
        port: int,
        store: Store,
        served: Callable[[], ServedFiles],
        most: int = MAX_CONNECTIONS,
        damaged: Callable[[WeightFile], None] = lambda file: None,
    ) -> None:
        """Listen. ``damaged`` is called, from another thread, with a file that a client doubted and that turned out
        damaged. Raises PortTaken."""
        try:
            self._server = _Server((host, port), _handler(store, served, damaged), most)
        except OSError as error:
            raise PortTaken(f"port {host}:{port} cannot be used ({error.strerror}); set port to a free one") from None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="files", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on, also where it was given 0."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Answer from now on, in threads."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more requests and cut what is being sent: whoever fetches goes on elsewhere, by a range. Blocking."""
        self._server.shutdown()
        self._server.server_close()
        self._server.cut()
        self._thread.join(2)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], most: int) -> None:
        self._most = most
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._room = threading.BoundedSemaphore(most)
        self._open: set[socket.socket] = set()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # HTTPServer looks its own name up, which may take seconds where name service is slow.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            log.warning("%d connections are open: %s is turned away", self._most, client_address[0])
            with contextlib.suppress(OSError):
                request.settimeout(0.2)
                request.sendall(_TURNED_AWAY)
                # Closed with the request unread, the answer might be lost on its way.
                request.recv(65536)
            REQUESTS.labels("503").inc()
            self.shutdown_request(request)
            return
        self._open.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection from %s ended", client_address[0], exc_info=True)

    def cut(self) -> None:
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _handler(
    store: Store, served: Callable[[], ServedFiles], damaged: Callable[[WeightFile], None]
) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        def right(self, file: WeightFile) -> bool:
            try:
                if store.intact(file.sha256, lambda count: None, BELIEVED_S):
                    return True
            except FileNotFoundError:
                return True  # which is said where it is opened
            damaged(file)
            return False

        def current(self) -> ServedFiles:
            return served()

        def opened(self, sha256: str) -> BinaryIO:
            return open(store.path(sha256), "rb", buffering=0)

    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "llmgw-mirror"
    sys_version = ""
    disable_nagle_algorithm = True

    def setup(self) -> None:
        # The kernel keeps time: a socket Python keeps time for does not block, and then sendfile comes back to
        # Python for every buffer of it, at half the speed.
        wait = struct.pack("ll", IDLE_S, 0)
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        super().setup()

    def current(self) -> ServedFiles:
        raise NotImplementedError

    def opened(self, sha256: str) -> BinaryIO:
        raise NotImplementedError

    def right(self, file: WeightFile) -> bool:
        """Whether a file is what it should be, by reading it."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = urlsplit(self.path).path
        if "Transfer-Encoding" in self.headers or self.headers.get("Content-Length", "0") != "0":
            # Not read, a body would be taken for the next request.
            self.close_connection = True
            self._refuse(HTTPStatus.BAD_REQUEST, "a request here has no body", Connection="close")
        elif wanted := _FILE.match(path):
            self._file(wanted[1])
        elif wanted := _VERSION.match(path):
            self._version(unquote(wanted[1]), unquote(wanted[2]))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there are /v1/files/<sha256> and /v1/library/<name>/<version>")

    def _file(self, sha256: str) -> None:
        file = self.current().files.get(sha256)
        if file is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"no file of the library with the SHA-256 {sha256} is here")
            return
        # Who got something else from here asks for the file to be looked at before it is sent again.
        if "no-cache" in self.headers.get("Cache-Control", "") and not self.right(file):
            self._refuse(HTTPStatus.NOT_FOUND, f"the copy of the file with the SHA-256 {sha256} here is damaged")
            return
        etag = f'"{sha256}"'
        if matches_any(self.headers.get("If-None-Match"), etag):
            self._head(HTTPStatus.NOT_MODIFIED, ETag=etag)
            return
        asked = None
        if self.command == "GET" and still_the_same(self.headers.get("If-Range"), etag):
            try:
                asked = byte_range(self.headers.get("Range"), file.size_bytes)
            except Unsatisfiable:
                self._refuse(
                    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
                    f"the file has {file.size_bytes} bytes",
                    Content_Range=f"bytes */{file.size_bytes}",
                )
                return
        try:
            content = self.opened(sha256)
        except FileNotFoundError:
            self._refuse(HTTPStatus.NOT_FOUND, f"the file with the SHA-256 {sha256} was removed a moment ago")
            return
        with content:
            self._send(content, file.size_bytes, asked, etag)

    def _send(self, content: BinaryIO, size: int, asked: ByteRange | None, etag: str) -> None:
        fields = {"ETag": etag, "Accept_Ranges": "bytes", "Content_Type": "application/octet-stream"}
        fields["Cache_Control"] = "public, max-age=31536000, immutable"
        if asked is None:
            asked = ByteRange(0, size)
            self._head(HTTPStatus.OK, Content_Length=str(size), **fields)
        else:
            fields["Content_Range"] = f"bytes {asked.start}-{asked.start + asked.length - 1}/{size}"
            self._head(HTTPStatus.PARTIAL_CONTENT, Content_Length=str(asked.length), **fields)
        if self.command == "HEAD" or asked.length == 0:
            return
        at, end = asked.start, asked.start + asked.length
        while at < end:
            sent = os.sendfile(self.connection.fileno(), content.fileno(), at, min(end - at, MAX_AT_ONCE_BYTES))
            if sent == 0:
                # The length was promised: only cutting the connection tells the reader that it is not all.
                log.error("a file in the store is shorter than its manifest says: %s", etag)
                self.close_connection = True
                return
            SENT.inc(sent)
            at += sent

    def _version(self, name: str, version: str) -> None:
        served = self.current()
        manifest = served.manifests.get((name, version))
        if manifest is None:
            newest = served.latest.get(name)
            there = f"; its latest is {newest}" if newest else ""
            self._refuse(HTTPStatus.NOT_FOUND, f"the library has no {name}@{version}{there}")
            return
        if manifest.missing:
            self._refuse(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{len(manifest.missing)} files of {name}@{version} are not here"
            )
            return
        if matches_any(self.headers.get("If-None-Match"), manifest.etag):
            self._head(HTTPStatus.NOT_MODIFIED, ETag=manifest.etag)
            return
        self._text(HTTPStatus.OK, manifest.body, ETag=manifest.etag)

    def _refuse(self, status: HTTPStatus, message: str, **fields: str) -> None:
        self._text(status, json.dumps({"error": {"message": message}}).encode(), **fields)

    def _text(self, status: HTTPStatus, body: bytes, **fields: str) -> None:
        self._head(status, Content_Type="application/json", Content_Length=str(len(body)), **fields)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: HTTPStatus, **fields: str) -> None:
        REQUESTS.labels(str(status.value)).inc()
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s %s", self.client_address[0], format % args)
