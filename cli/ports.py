"""Ports of a cluster on this machine: chosen once, remembered, and checked before they are used."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping

from cli.failure import Failed
from cli.processes import listener
from libs.runtime.servers.ports import free_port

DEFAULT_GATEWAY = 8080
HOST = "127.0.0.1"


def choose(names: Iterable[str], remembered: Mapping[str, int], gateway: int | None) -> dict[str, int]:
    """A port for every name. ``gateway``: as asked for; 0 for a free one; None for the remembered one or 8080.

    A remembered port that somebody else took meanwhile is replaced. Raises Failed when the gateway's is taken.
    """
    wanted = gateway if gateway is not None else remembered.get("gateway", DEFAULT_GATEWAY)
    if wanted == 0:
        wanted = remembered.get("gateway", 0) if is_free(remembered.get("gateway", 0)) else 0
    elif not is_free(wanted):
        who = listener(wanted)
        taken = f"port {wanted} is taken{f' by {who}' if who else ''}"
        raise Failed(f"{taken}: choose another with --port N or LLMGW_GATEWAY_PORT=N (0 takes a free one)")
    ports = {"gateway": wanted} if wanted else {}
    for name in ("gateway", *names):
        if name not in ports:
            port = remembered.get(name, 0)
            while port in ports.values() or not is_free(port):
                port = free_port(HOST)
            ports[name] = port
    return ports


def is_free(port: int) -> bool:
    """Whether nobody listens on a port of this machine. 0 is no port."""
    if not 0 < port < 65536:
        return False
    with socket.socket() as probe:
        # As servers do: connections of an earlier run that linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
