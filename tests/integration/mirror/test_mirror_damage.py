"""A copy on a mirror that goes bad: named by whoever gets it, set aside, and taken from another mirror."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from libs.bus import Bus
from libs.events.commands import ImportVersion
from libs.events.library import VersionAdded
from libs.events.views import WeightsWanted
from libs.testing import eventually
from libs.testing.library import imported
from libs.testing.nats import NatsServer
from libs.testing.weights import gguf
from services.mirror import scrub
from services.nodeagent.adapters.weights.store import Rejected
from services.nodeagent.shard.fetching import Fetching

from .test_mirror_service import get, mirror, ready, status

CONTENT = gguf(bytes(range(256)) * 10_000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "w.gguf"
    path.write_bytes(CONTENT)
    return path


def damage(data: Path, sha256: str) -> None:
    """One byte of a stored file flips, and its length and time stay."""
    path = data / "store" / "sha256" / sha256[:2] / sha256
    path.chmod(0o644)
    with path.open("r+b") as file:  # never shorter, whoever looks meanwhile
        file.seek(1234)
        flipped = bytes([file.read(1)[0] ^ 1])
        file.seek(1234)
        file.write(flipped)


def there(url: str) -> bytes:
    return get(url) if status(url) == 200 else b""


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_a_node_names_the_mirror_which_sets_its_copy_aside_and_takes_anothers(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "LOOK_EVERY_S", 0.1)
    async with mirror(nats_server, tmp_path / "one") as first:
        await ready(first)
        added = await imported(bus, ImportVersion(name="tiny", source=f"path:{source}"))
        assert isinstance(added, VersionAdded)
        [file] = added.version.files
        await eventually(lambda: first.not_ready() == [])
        damage(tmp_path / "one", file.sha256)

        fetching = Fetching(tmp_path / "node")
        await fetching.look()
        wanted = WeightsWanted(
            name="tiny", version=added.version.version, files=added.version.files, mirrors=(first.url,)
        )
        with pytest.raises(Rejected) as rejected:
            await fetching.ensure(wanted, lambda: None)
        # It is told when the first try failed, and so the second may already be told that the copy is damaged.
        assert first.url in str(rejected.value)
        await eventually(lambda: counted("llmgw_mirror_damaged_files_total", found_by="somebody who fetched it") == 1)
        assert counted("llmgw_node_damaged_files_total", origin=first.url) >= 1
        await eventually(lambda: any("damaged, as w.gguf" in reason for reason in first.not_ready()))
        assert await asyncio.to_thread(status, f"{first.url}/v1/files/{file.sha256}") == 404
        assert (tmp_path / "one/store/damaged" / file.sha256).exists()

        # Another mirror has none of it either, until it is imported again; then each has it from somewhere.
        async with mirror(nats_server, tmp_path / "two", instance="m-2") as second:
            await eventually(lambda: len(first._authority.state.mirrors) == 2)
            await imported(bus, ImportVersion(name="tiny", source=f"path:{source}"))
            url = f"{second.url}/v1/files/{file.sha256}"
            await eventually(lambda: asyncio.to_thread(there, url))
            await eventually(lambda: first.not_ready() == [])
            assert not (tmp_path / "one/store/damaged" / file.sha256).exists()
            damage(tmp_path / "one", file.sha256)
            await first._scrubber.check(file)
            assert counted("llmgw_mirror_damaged_files_total", found_by="reading it again") == 1
            again = await eventually(lambda: asyncio.to_thread(there, f"{first.url}/v1/files/{file.sha256}"))
            assert again == CONTENT
            assert (await fetching.ensure(wanted, lambda: None)).fetched_bytes == len(CONTENT)
        await fetching.close()


async def test_a_mirror_that_joins_copies_what_the_others_have(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "LOOK_EVERY_S", 0.1)
    async with mirror(nats_server, tmp_path / "one") as first:
        await ready(first)
        added = await imported(bus, ImportVersion(name="tiny", source=f"path:{source}"))
        assert isinstance(added, VersionAdded)
        async with mirror(nats_server, tmp_path / "two", instance="m-2") as second:
            await ready(second)
            [file] = added.version.files
            assert await asyncio.to_thread(get, f"{second.url}/v1/files/{file.sha256}") == CONTENT
