"""Ports are chosen once, kept, and given up only when somebody else has them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from cli.failure import Failed
from cli.ports import choose, is_free


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of this machine that is listened on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_every_port_is_free_and_another() -> None:
    ports = choose(["nats", "postgres", "guard status"], {}, 0)

    assert set(ports) == {"gateway", "nats", "postgres", "guard status"}
    assert len(set(ports.values())) == 4
    assert all(is_free(port) for port in ports.values())


def test_ports_are_remembered() -> None:
    first = choose(["nats", "postgres"], {}, 0)

    assert choose(["nats", "postgres"], first, None) == first
    assert choose(["nats", "postgres"], first, 0) == first


def test_a_remembered_port_somebody_took_is_replaced(taken: int) -> None:
    ports = choose(["nats"], {"nats": taken, "gateway": taken}, 0)

    assert taken not in ports.values()


def test_the_gateway_s_port_is_the_one_asked_for_or_none(taken: int) -> None:
    with pytest.raises(Failed) as caught:
        choose(["nats"], {}, taken)

    assert f"port {taken} is taken by " in caught.value.message
    assert f"(pid {os.getpid()})" in caught.value.message


def test_a_remembered_port_never_serves_twice() -> None:
    ports = choose(["nats"], {"gateway": 0, "nats": 0}, 0)

    assert choose(["nats", "postgres"], {**ports, "postgres": ports["nats"]}, None)["postgres"] != ports["nats"]
