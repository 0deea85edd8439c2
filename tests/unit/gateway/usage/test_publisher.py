"""What a gateway publishes goes out in few messages: each is a write of the stream and a transaction of the ledger."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from libs.bus.bus import Bus
from libs.bus.memory import MemoryCluster, MemoryTransport
from libs.events import Contract
from libs.events.usage import UsageBatch
from libs.testing import eventually
from services.gateway.usage.publisher import EVERY_S, Publisher
from services.gateway.usage.spool import READ_BYTES, Spool

from .test_spool import MIB, closed


class Busy(Bus):
    """While one of the first messages is on its way another request is answered."""

    def __init__(self, spool: Spool, requests: int) -> None:
        super().__init__(MemoryTransport(MemoryCluster(), "gateway"))
        self._spool = spool
        self._left = requests
        self.sent_at: list[float] = []
        self.records = 0

    async def append(self, message: Contract, *, cause: str, **others: object) -> int:  # type: ignore[override]
        assert isinstance(message, UsageBatch)
        if self._left:
            self._left -= 1
            self._spool.closed(None, closed("meanwhile"))
        self.sent_at.append(time.monotonic())
        self.records += len(message.records)
        return await super().append(message, cause=cause)


async def test_under_load_a_message_is_published_now_and_then(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB)
    bus = Busy(spool, 2)
    spool.closed(None, closed("first"))
    publisher = Publisher(bus, spool, "gw-1", lambda: None)
    publisher.start()
    await eventually(lambda: bus.records == 3)
    await publisher.stop()
    spool.close()
    await bus.close()
    first, second, third = bus.sent_at
    assert min(second - first, third - second) > EVERY_S * 0.9


async def test_what_is_more_than_a_message_takes_is_published_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.usage.publisher.EVERY_S", 3600.0)
    spool = Spool(tmp_path, 8 * MIB)
    bus = Busy(spool, 0)
    while spool.backlog_bytes < 3 * READ_BYTES:
        spool.closed(None, closed("waits"))
    publisher = Publisher(bus, spool, "gw-1", lambda: None)
    publisher.start()
    await eventually(lambda: spool.backlog_bytes < READ_BYTES)
    assert len(bus.sent_at) >= 2
    await publisher.stop()
    spool.close()
    await bus.close()
