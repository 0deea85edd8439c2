from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from libs.bus import Bus
from libs.testing.nats import NatsServer

from .box import Box

Connect = Callable[[str], Awaitable[Bus]]


@pytest.fixture
async def box(connect_as: Connect, nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Box]:
    """A machine with the sim engine; its agent is not started yet."""
    made = await Box(await connect_as("scheduler"), nats_server.url, tmp_path / "box").open()
    yield made
    await made.close()
