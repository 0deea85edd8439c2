"""One file from one mirror, or from a hub: HTTP with ranges, summed while it comes in. Blocking: runs in a thread."""

from __future__ import annotations

import hashlib
import http.client
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit, urlunsplit

from libs.events.library import WeightFile

from .store import (
    BLOCK,
    Rejected,
    Store,
    WrongSum,
)

_SILENCE_S = 20.0
"""A mirror that sends nothing for so long is given up for the next one."""


Answer = tuple[http.client.HTTPConnection, http.client.HTTPResponse]


class MirrorFailed(Exception):
    """This mirror did not give the file; another may."""

    def __init__(self, message: str, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting
        """It answered, and asking again will not change the answer soon."""


class Damaged(Rejected):
    """What came in is not the file."""

    def __init__(self, wrong: Rejected, origins: Sequence[Origin]) -> None:
        self.origins = tuple(origins)
        """Those that gave some of it; none: it lay here."""
        came = f"came from {' and '.join(map(str, origins))}" if origins else "lay in the data folder"
        super().__init__(f"{wrong}; it {came}")


class Cancelled(Exception):
    """Nobody wants the file any more. What has come in stays for the next time."""


class Part:
    """What is here of one file, and the sum of it so far, kept across mirrors. A context manager."""

    def __init__(self, store: Store, file: WeightFile, pickles_allowed: bool) -> None:
        self.file = file
        self._pickles_allowed = pickles_allowed
        self.have = 0
        self.origins: list[Origin] = []
        """Those that gave some of it."""
        self._store = store
        self._digest = hashlib.sha256()
        self._out = store.part(file.sha256).open("ab+", buffering=0)

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()

    def resume(self, progress: Callable[[int], None], cancelled: threading.Event) -> None:
        """Sum what an earlier download left; ``progress`` is told the bytes so far. Raises Cancelled once it is."""
        buffer = memoryview(bytearray(BLOCK))
        self._out.seek(0)
        while count := self._out.readinto(buffer):
            if cancelled.is_set():
                raise Cancelled
            self._digest.update(buffer[:count])
            self.have += count
            progress(self.have)
        if self.have > self.file.size_bytes:
            self.restart()

    def restart(self) -> None:
        """Forget what is here of the file."""
        self._out.truncate(0)
        self.have, self._digest = 0, hashlib.sha256()
        self.origins = []

    def append(self, block: memoryview) -> None:
        """Write more of the file. Raises OSError."""
        left = block
        while left:
            left = left[os.write(self._out.fileno(), left) :]
        self._digest.update(block)
        self.have += len(block)

    def keep(self) -> None:
        """Make the finished part the file. Raises ``store.Rejected`` and starts over when its sum is wrong."""
        os.fsync(self._out.fileno())
        try:
            self._store.keep(self.file, self._digest.hexdigest(), self._pickles_allowed)
        except WrongSum as wrong:
            origins = self.origins
            self._begin_again()
            raise Damaged(wrong, origins) from None
        except Rejected:
            self._begin_again()
            raise

    def _begin_again(self) -> None:
        self._out.close()
        self._out = self._store.part(self.file.sha256).open("ab+", buffering=0)
        self.restart()


class Origin(Protocol):
    """Where files come from; as text it is what sentences call it."""

    def open(self, file: WeightFile, offset: int) -> Answer:
        """An answer with status 200, or 206 from ``offset`` on. Raises MirrorFailed."""

    def doubt(self, file: WeightFile) -> None:
        """Say that what came from here was not the file. Nobody waits for what becomes of that."""


class Mirror(NamedTuple):
    """A mirror of the library."""

    url: str

    def __str__(self) -> str:
        return self.url

    def open(self, file: WeightFile, offset: int) -> Answer:
        answer = request(self.url, f"{self.url.rstrip('/')}/v1/files/{file.sha256}", ranged(offset))
        if answer[1].status == 404:
            answer[0].close()
            raise MirrorFailed(f"{self} does not have {file.path} ({file.sha256})", lasting=True)
        return content_of(answer, self.url, file, offset)

    def doubt(self, file: WeightFile) -> None:
        """It reads its copy, and sets it aside where that is damaged."""
        with suppress(MirrorFailed):
            url = f"{self.url.rstrip('/')}/v1/files/{file.sha256}"
            request(self.url, url, {"Cache-Control": "no-cache"}, "HEAD")[0].close()


def fetch(part: Part, origin: Origin, progress: Callable[[int], None], cancelled: threading.Event) -> int:
    """Fetch what ``part`` lacks and keep it. Returns the bytes that came over the network.

    ``progress`` is told how many bytes of the file are here. Raises MirrorFailed, Cancelled, OSError (disk) and
    ``store.Rejected`` when the finished file is not what it should be.
    """
    file = part.file
    fetched = 0
    if part.have < file.size_bytes:
        connection, response = origin.open(file, part.have)
        try:
            if response.status == 200 and part.have:
                # It does not do ranges: from the beginning, then.
                part.restart()
            if origin not in part.origins:
                part.origins.append(origin)
            while part.have < file.size_bytes:
                if cancelled.is_set():
                    raise Cancelled
                try:
                    # What there is, not a whole block: of a slow mirror every byte is a sign of life.
                    block = response.read1(min(BLOCK, file.size_bytes - part.have))
                except (OSError, http.client.HTTPException) as error:
                    raise MirrorFailed(f"{origin} broke off: {sentence_of(error)}") from None
                if not block:
                    raise MirrorFailed(
                        f"{origin} broke off after {part.have} of {file.size_bytes} bytes of {file.path}"
                    )
                part.append(memoryview(block))
                fetched += len(block)
                progress(part.have)
        finally:
            connection.close()
    part.keep()
    return fetched


def ranged(offset: int) -> dict[str, str]:
    """Headers that ask for a file from ``offset`` on."""
    return {"Range": f"bytes={offset}-", "Accept-Encoding": "identity"} if offset else {}


def request(called: str, url: str, headers: Mapping[str, str], method: str = "GET") -> Answer:
    """One request, no redirect followed; the caller closes the connection. Raises MirrorFailed, about ``called``."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise MirrorFailed(f"{called!r} is not the address of a mirror (http://host:port)", lasting=True)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=_SILENCE_S)
    try:
        connection.request(method, urlunsplit(("", "", parts.path or "/", parts.query, "")), headers=dict(headers))
        return connection, connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise MirrorFailed(f"{called} did not answer: {sentence_of(error)}") from None


def content_of(answer: Answer, called: str, file: WeightFile, offset: int) -> Answer:
    """An answer that is the file, whole or from ``offset`` on. Raises MirrorFailed for any other."""
    connection, response = answer
    if response.status == 206 and (response.headers.get("Content-Range") or "").startswith(f"bytes {offset}-"):
        return answer
    if response.status == 200:
        return answer
    connection.close()
    raise MirrorFailed(f"{called} answered HTTP {response.status} for {file.path}")


def sentence_of(error: Exception) -> str:
    """What an error says; its type when it says nothing."""
    return str(error) or type(error).__name__
