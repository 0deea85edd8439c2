"""Free ports and waiting for one to answer."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable


class NotReady(Exception):
    """A server did not come up in time, or ended before it did."""


LOWEST, HIGHEST = 12000, 32000
"""Ports a server is put on. Below the range outgoing connections take theirs from (32768 on, Linux's default): a
client that keeps trying a server which is down would otherwise, now and then, connect to itself and hold the port."""


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port nobody listens on at this moment. Raises OSError when none of many is free."""
    for _ in range(200):
        port = random.randint(LOWEST, HIGHEST)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free TCP port between {LOWEST} and {HIGHEST} was found on {host}")


def wait_until(
    ready: Callable[[], bool], what: str, ended: Callable[[], int | None] = lambda: None, deadline_s: float = 20.0
) -> None:
    """Poll ``ready`` until it is true.

    ``ended`` gives the exit status of the process waited for, or None while it runs. Raises NotReady naming ``what``.
    """
    end = time.monotonic() + deadline_s
    pause_s = 0.005
    while not ready():
        status = ended()
        if status is not None:
            raise NotReady(f"{what} ended with exit status {status} before it was ready; see its log")
        if time.monotonic() > end:
            raise NotReady(f"{what} was not ready after {deadline_s:g} s; see its log")
        time.sleep(pause_s)
        pause_s = min(0.1, pause_s * 1.5)
