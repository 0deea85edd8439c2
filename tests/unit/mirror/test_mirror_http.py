"""The file server over real sockets."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.events.library import LibraryVersion
from libs.runtime.status import PortTaken
from libs.testing.weights import gguf
from services.mirror.adapters import http as module
from services.mirror.adapters.http import FileServer
from services.mirror.adapters.intake import Intake
from services.mirror.adapters.served_files import ServedFiles, inventory
from services.mirror.adapters.store import Store
from services.mirror.core.source import PathSource

CONTENT = gguf(bytes(range(256)) * 5000)
SUM = hashlib.sha256(CONTENT).hexdigest()
ETAG = f'"{SUM}"'


class Served:
    def __init__(self, folder: Path) -> None:
        source = folder / "m"
        source.mkdir()
        (source / "w.gguf").write_bytes(CONTENT)
        (source / "empty.txt").write_bytes(b"")
        self.store = Store(folder / "data")
        self.store.open()
        taken = Intake(self.store).bring_in(PathSource(str(source)), "m")
        self.version = LibraryVersion(name="m.x", version="v1", files=taken.files, source="path:/m")
        self.served = inventory(self.store, [self.version])
        self.server = FileServer("127.0.0.1", 0, self.store, lambda: self.served)
        self.server.start()

    def ask(self, method: str, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=5)
        connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response, body


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.server.stop()
    served.store.close()


def test_a_file_whole(served: Served) -> None:
    response, body = served.ask("GET", f"/v1/files/{SUM}")
    assert (response.status, body) == (200, CONTENT)
    assert response.headers["ETag"] == ETAG
    assert response.headers["Accept-Ranges"] == "bytes"
    assert response.headers["Content-Length"] == str(len(CONTENT))


def test_head_says_the_same_without_the_bytes(served: Served) -> None:
    response, body = served.ask("HEAD", f"/v1/files/{SUM}", Range="bytes=0-5")
    assert (response.status, body) == (200, b"")
    assert response.headers["Content-Length"] == str(len(CONTENT))
    assert response.headers["ETag"] == ETAG


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, len(CONTENT) - 1), st.integers(0, len(CONTENT) + 10))
def test_a_range(served: Served, start: int, length: int) -> None:
    response, body = served.ask("GET", f"/v1/files/{SUM}", Range=f"bytes={start}-{start + length}")
    assert response.status == 206
    assert body == CONTENT[start : start + length + 1]
    assert response.headers["Content-Range"] == f"bytes {start}-{start + len(body) - 1}/{len(CONTENT)}"


def test_a_range_after_the_end_and_several_ranges(served: Served) -> None:
    response, body = served.ask("GET", f"/v1/files/{SUM}", Range=f"bytes={len(CONTENT)}-")
    assert response.status == 416
    assert response.headers["Content-Range"] == f"bytes */{len(CONTENT)}"
    assert json.loads(body)["error"]["message"] == f"the file has {len(CONTENT)} bytes"
    response, body = served.ask("GET", f"/v1/files/{SUM}", Range="bytes=0-1,5-6")
    assert (response.status, body) == (200, CONTENT)


def test_conditions(served: Served) -> None:
    response, body = served.ask("GET", f"/v1/files/{SUM}", If_None_Match=ETAG)
    assert (response.status, body) == (304, b"")
    assert served.ask("GET", f"/v1/files/{SUM}", If_None_Match='"other"')[0].status == 200
    assert served.ask("GET", f"/v1/files/{SUM}", Range="bytes=0-1", If_Range=ETAG)[1] == CONTENT[:2]
    assert served.ask("GET", f"/v1/files/{SUM}", Range="bytes=0-1", If_Range='"other"')[1] == CONTENT


def test_an_empty_file(served: Served) -> None:
    empty = hashlib.sha256(b"").hexdigest()
    response, body = served.ask("GET", f"/v1/files/{empty}")
    assert (response.status, body) == (200, b"")


def test_the_manifest(served: Served) -> None:
    response, body = served.ask("GET", "/v1/library/m.x/v1")
    assert response.status == 200
    assert json.loads(body)["files"][1] == {"path": "w.gguf", "size_bytes": len(CONTENT), "sha256": SUM}
    assert served.ask("GET", "/v1/library/m.x/v1", If_None_Match=response.headers["ETag"])[0].status == 304
    response, body = served.ask("GET", "/v1/library/m.x/v2")
    assert response.status == 404
    assert "its latest is v1" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        f"/v1/files/{'0' * 64}",
        "/v1/files/../../etc/passwd",
        f"/v1/files/{SUM.upper()}",
        "/v1/files/%2e%2e",
        "/v1/library/a/b/c",
    ],
)
def test_what_is_not_there(served: Served, path: str) -> None:
    response, body = served.ask("GET", path)
    assert response.status == 404
    assert json.loads(body)["error"]["message"]


def test_a_file_the_library_does_not_name_is_not_served(served: Served) -> None:
    served.served = ServedFiles()
    assert served.ask("GET", f"/v1/files/{SUM}")[0].status == 404


def test_a_version_that_is_not_all_here_is_not_served(served: Served) -> None:
    served.store.path(SUM).unlink()
    assert served.ask("GET", f"/v1/files/{SUM}")[0].status == 404
    served.served = inventory(served.store, [served.version])
    assert served.served.missing() == [
        "m.x@v1: 1 files are not here, as w.gguf: import it again, unless another mirror has it"
    ]
    assert served.ask("GET", "/v1/library/m.x/v1")[0].status == 503
    assert served.ask("GET", f"/v1/files/{SUM}")[0].status == 404


def test_one_connection_for_many_requests(served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.server.port, timeout=5)
    for start in range(0, 1000, 100):
        connection.request("GET", f"/v1/files/{SUM}", headers={"Range": f"bytes={start}-{start + 99}"})
        assert connection.getresponse().read() == CONTENT[start : start + 100]
    connection.close()


def test_other_methods_are_refused(served: Served) -> None:
    assert served.ask("DELETE", f"/v1/files/{SUM}")[0].status == 501


def test_many_readers_get_the_same_bytes(served: Served) -> None:
    wrong: list[int] = []

    def read(number: int) -> None:
        if served.ask("GET", f"/v1/files/{SUM}")[1] != CONTENT:
            wrong.append(number)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert wrong == []


def test_a_connection_too_many_is_turned_away(served: Served) -> None:
    """Given a server with room for one, when a second asks while the first is connected, then it is told to wait."""
    small = FileServer("127.0.0.1", 0, served.store, lambda: served.served, most=1)
    small.start()
    first = http.client.HTTPConnection("127.0.0.1", small.port, timeout=5)
    first.request("HEAD", f"/v1/files/{SUM}")
    assert first.getresponse().read() == b""
    second = http.client.HTTPConnection("127.0.0.1", small.port, timeout=5)
    second.request("HEAD", f"/v1/files/{SUM}")
    response = second.getresponse()
    assert response.status == 503
    assert response.headers["Retry-After"] == "2"
    first.close()
    second.close()
    small.stop()


def test_a_connection_that_asks_nothing_is_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 1)
    idle = socket.create_connection(("127.0.0.1", served.server.port), timeout=5)
    assert idle.recv(100) == b""
    idle.close()


def test_a_port_that_is_taken_is_said_in_one_sentence(served: Served) -> None:
    with pytest.raises(PortTaken, match="set port to a free one"):
        FileServer("127.0.0.1", served.server.port, served.store, ServedFiles)


def test_stopping_cuts_a_reader_that_does_not_read(served: Served) -> None:
    reader = socket.create_connection(("127.0.0.1", served.server.port))
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.sendall(f"GET /v1/files/{SUM} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert reader.recv(12) == b"HTTP/1.1 200"
    served.server.stop()
    assert not [t for t in threading.enumerate() if t.name == "files" and t.is_alive()]
    reader.close()


@pytest.mark.parametrize("field", ["Content-Length: 38", "Transfer-Encoding: chunked", "Content-Length: 0, 38"])
def test_a_body_is_never_taken_for_the_next_request(served: Served, field: str) -> None:
    with socket.create_connection(("127.0.0.1", served.server.port), timeout=5) as connection:
        connection.sendall(
            f"GET /v1/files/{SUM} HTTP/1.1\r\n{field}\r\n\r\nGET /v1/files/{SUM} HTTP/1.1\r\n\r\n".encode()
        )
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(65536):
                answer += data
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
