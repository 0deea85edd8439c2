"""Files from another mirror. Blocking; runs in a thread."""

from __future__ import annotations

import http.client
from typing import BinaryIO, cast
from urllib.parse import urlsplit

from libs.events.library import WeightFile

from .store import Moved, Store

SILENCE_S = 20.0
"""A mirror that sends nothing for so long is given up."""


class PeerFailed(Exception):
    """The other mirror did not give the file."""


def fetch(url: str, file: WeightFile, store: Store, moved: Moved) -> None:
    """Copy a file from the mirror at ``url``. It is kept only if it is the right one.

    Raises PeerFailed, WrongSum, OSError (the disk) and what ``moved`` raises.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PeerFailed(f"{url!r} is not the address of a mirror")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=SILENCE_S)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/v1/files/{file.sha256}")
        response = connection.getresponse()
        if response.status != 200:
            raise PeerFailed(f"{url} answers {response.status} for {file.path}")
        store.add(cast(BinaryIO, response), moved, file)
    except http.client.HTTPException as error:
        raise PeerFailed(f"{url} does not speak HTTP as it should: {error or type(error).__name__}") from None
    finally:
        connection.close()
