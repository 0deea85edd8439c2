"""A mirror dies in the middle of an import."""

from __future__ import annotations

import asyncio
import hashlib
import random
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from libs.bus import Bus
from libs.events.commands import ImportVersion
from libs.events.library import VersionAdded, WeightFile
from libs.events.questions import LibraryAnswer, ListLibrary
from libs.events.views import LibraryEntry
from libs.testing import eventually
from libs.testing.library import ended
from libs.testing.nats import NatsServer
from libs.testing.weights import gguf
from services.mirror.adapters.intake import Intake
from services.mirror.adapters.store import Store
from services.mirror.core.source import PathSource

IMPORT = """
import sys
from pathlib import Path
from services.mirror.adapters.intake import Intake
from services.mirror.adapters.store import Store
from services.mirror.core.source import PathSource
store = Store(Path(sys.argv[1]))
store.open()
print("begins", flush=True)
Intake(store).bring_in(PathSource(sys.argv[2]), "m")
"""
MIRROR = """
import sys
from pathlib import Path
from libs.runtime.run import serve
from services.mirror.app import build
from services.mirror.settings import MirrorSettings
settings = MirrorSettings(nats_url=sys.argv[1], data_dir=Path(sys.argv[2]), instance="m-1", port=0)
sys.exit(serve("mirror", settings, build))
"""


def folder(directory: Path, size: int, count: int) -> Path:
    directory.mkdir()
    for number in range(count):
        (directory / f"w-{number + 1:05}-of-{count:05}.gguf").write_bytes(gguf(random.Random(number).randbytes(size)))
    return directory


def placed(data: Path) -> list[Path]:
    return [p for p in (data / "store" / "sha256").rglob("*") if p.is_file()]


def whole(path: Path) -> bool:
    return hashlib.sha256(path.read_bytes()).hexdigest() == path.name


def test_killed_at_any_moment_the_store_holds_whole_files_only(tmp_path: Path) -> None:
    """Given an import, when it is killed ten times at random moments, then every stored file is what its name says."""
    models = folder(tmp_path / "models", 4_000_000, 5)
    data = tmp_path / "data"
    moment = random.Random(5)
    cut = 0
    for _ in range(10):
        child = subprocess.Popen([sys.executable, "-c", IMPORT, str(data), str(models)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"begins\n"
        try:
            child.wait(moment.uniform(0, 0.12))
        except subprocess.TimeoutExpired:
            child.kill()
            cut += 1
        child.wait()
        child.stdout.close()
        assert all(whole(path) for path in placed(data))
    assert cut > 0
    store = Store(data)
    store.open()
    taken = Intake(store).bring_in(PathSource(str(models)), "m")
    assert len(placed(data)) == 5
    assert all(store.has(file) for file in taken.files)
    assert list((data / "store" / "incoming").iterdir()) == []
    store.close()


async def test_a_mirror_killed_while_importing_comes_back_and_serves_the_right_bytes(
    bus: Bus, nats_server: NatsServer, tmp_path: Path
) -> None:
    models = folder(tmp_path / "models", 30_000_000, 3)
    data = tmp_path / "data"

    async def start() -> asyncio.subprocess.Process:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", MIRROR, nats_server.url, str(data)), stderr=asyncio.subprocess.DEVNULL
        )
        await eventually(lambda: bus.ask(ListLibrary(), LibraryAnswer, timeout_s=0.5), 20)
        return child

    child = await start()
    try:
        begun = await bus.command(ImportVersion(name="m", source=f"path:{models}"))
        await eventually(lambda: any(p.stat().st_size for p in (data / "store/incoming").iterdir()), every_s=0.001)
        child.kill()
        await child.wait()
        assert all(whole(path) for path in placed(data))
        assert await bus.view("library", LibraryEntry).get("m") is None

        child = await start()
        started = time.monotonic()
        # Nobody asks again: what was started is ended by whoever leads next.
        assert isinstance(await ended(bus, "m", begun.sequence or 0), VersionAdded)
        assert time.monotonic() - started < 30
        await eventually(lambda: _announced(bus))
        entry = await bus.view("library", LibraryEntry).get("m")
        assert entry is not None
        for file in entry.versions[entry.latest]:
            assert await asyncio.to_thread(_sum, entry.mirrors[0], file) == file.sha256
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def _announced(bus: Bus) -> bool:
    entry = await bus.view("library", LibraryEntry).get("m")
    return entry is not None and bool(entry.mirrors)


def _sum(mirror: str, file: WeightFile) -> str:
    with urllib.request.urlopen(f"{mirror}/v1/files/{file.sha256}", timeout=10) as response:
        return hashlib.sha256(response.read()).hexdigest()
