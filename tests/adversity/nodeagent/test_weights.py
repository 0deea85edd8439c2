"""Weights under adversity: killed downloads, full disks, trickles, stalls, disguises."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import pickle
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from libs.events.views import WeightsWanted
from libs.testing.files import FileServer, serving
from libs.testing.waiting import eventually
from services.nodeagent.adapters.host import machine
from services.nodeagent.adapters.weights import download, store
from services.nodeagent.adapters.weights.store import Rejected
from services.nodeagent.shard.fetching import Fetching
from tests.unit.nodeagent.wanted import weights

CHILD = """
import asyncio, sys, msgspec
from pathlib import Path
from libs.events.views import WeightsWanted
from services.nodeagent.shard.fetching import Fetching
asyncio.run(Fetching(Path(sys.argv[1])).ensure(msgspec.json.decode(sys.argv[2], type=WeightsWanted), lambda: None))
"""
MB = 2**20


@pytest.fixture
def mirror() -> Iterator[FileServer]:
    with serving() as files:
        yield files


@pytest.fixture
async def fetching(tmp_path: Path) -> AsyncIterator[Fetching]:
    made = Fetching(tmp_path / "weights")
    yield made
    await made.close()


def no_news() -> None:
    return


def sum_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def child(folder: Path, wanted: WeightsWanted) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(folder), msgspec.json.encode(wanted).decode()])


async def test_a_download_killed_ten_times_is_never_served_wrongly_and_ends_well(
    tmp_path: Path, mirror: FileServer
) -> None:
    chance = random.Random(7)
    contents = [os.urandom(8 * MB) for _ in range(3)]
    files = [mirror.add(content, f"part-{n}.gguf") for n, content in enumerate(contents)]
    mirror.rate_bytes_s = 12 * MB
    wanted = weights(*files, mirrors=(mirror.url,))
    folder = tmp_path / "weights"
    killed = 0
    for _ in range(10):
        process = child(folder, wanted)
        before = sum(path.stat().st_size for path in folder.glob("parts/*")) if folder.exists() else 0
        enough = before + chance.randrange(0, 3 * MB)

        def far(enough: int = enough, process: subprocess.Popen[bytes] = process) -> bool:
            there = sum(path.stat().st_size for path in folder.glob("parts/*")) if folder.exists() else 0
            return there > enough or process.poll() is not None

        await eventually(far, 15)
        killed += process.poll() is None
        process.kill()
        process.wait()
        for path in folder.glob("content/*"):
            if path.suffix != ".checked" and not path.name.startswith("."):
                assert sum_of(path) == path.name, "what is here is right"
        assert not list(folder.glob("models/*/*/*.gguf")) or len(list(folder.glob("content/*.checked"))) == 3
    assert killed >= 5
    mirror.rate_bytes_s = None
    assert child(folder, wanted).wait(30) == 0
    assert [sum_of(folder / "models/demo/v1" / file.path) for file in files] == [file.sha256 for file in files]
    assert list(folder.glob("parts/*")) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 6 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small filesystem cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_is_said_before_and_while_it_happens(
    small_disk: Path, mirror: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(4 * MB)
    wanted = weights(mirror.add(content), mirrors=(mirror.url,))
    made = Fetching(small_disk)
    with pytest.raises(Rejected, match=r"4 MB must be fetched and \d MB are free"):
        await made.ensure(wanted, no_news)
    assert mirror.requests == []
    monkeypatch.setattr(store, "_KEPT_FREE_BYTES", 0)
    mirror.hold = threading.Event()
    fetching = asyncio.create_task(made.ensure(wanted, no_news))
    await eventually(lambda: bool(mirror.sent_bytes))
    with contextlib.suppress(OSError):  # the download goes on meanwhile: full it is either way
        (small_disk / "somebody-elses").write_bytes(b"x" * (6 * MB - shutil.disk_usage(small_disk).used))
    mirror.hold.set()
    with pytest.raises(Rejected, match="No space left on device"):
        await fetching
    (small_disk / "somebody-elses").unlink()
    mirror.hold = None
    fetched = await made.ensure(wanted, no_news)
    assert (fetched.folder / "model.gguf").read_bytes() == content
    assert fetched.fetched_bytes < 4 * MB, "what had come stayed"
    await made.close()


async def test_a_model_of_many_files_is_refused_as_a_whole(
    small_disk: Path, mirror: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_KEPT_FREE_BYTES", 0)
    files = [mirror.add(os.urandom(3 * MB), f"model-{n}.safetensors") for n in range(3)]
    made = Fetching(small_disk)

    with pytest.raises(Rejected, match=r"9 MB must be fetched and [56] MB are free"):
        await made.ensure(weights(*files, mirrors=(mirror.url,)), no_news)

    assert mirror.requests == [], "refused before a byte came"
    await made.close()


def test_the_disk_that_counts_is_the_one_weights_are_kept_on(small_disk: Path) -> None:
    (small_disk / "weights").mkdir()

    assert machine.free_for_weights_mb(small_disk) in (5, 6)
    # Not made yet: the folder above it, and not the roomiest disk there is.
    assert machine.free_for_weights_mb(small_disk / "not" / "made") in (5, 6)


async def test_a_trickle_is_progress_and_a_stall_is_not(
    fetching: Fetching, mirror: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_SILENCE_S", 0.5)
    content = os.urandom(60_000)
    file = mirror.add(content)
    mirror.rate_bytes_s = 50_000
    signs: list[float] = []
    await fetching.ensure(weights(file, mirrors=(mirror.url,)), lambda: signs.append(time.monotonic()))
    assert len(signs) >= 2

    other = os.urandom(1 * MB)
    with serving() as stalled, serving() as second:
        stalled.hold = threading.Event()
        stalled.add(other, "b.gguf")
        file = second.add(other, "b.gguf")
        begun = time.monotonic()
        fetched = await fetching.ensure(weights(file, mirrors=(stalled.url, second.url), name="b"), no_news)
        assert time.monotonic() - begun < 5
        assert sum_of(fetched.folder / "b.gguf") == file.sha256
        assert second.requests == [f"bytes={MB // 2}-"], "the second mirror gives the rest"


async def test_a_truncated_file_is_fetched_again(fetching: Fetching, mirror: FileServer, tmp_path: Path) -> None:
    file = mirror.add(os.urandom(300_000))
    wanted = weights(file, mirrors=(mirror.url,))
    await fetching.ensure(wanted, no_news)
    os.truncate(tmp_path / "weights" / "content" / file.sha256, 100_000)
    fetched = await fetching.ensure(wanted, no_news)
    assert sum_of(fetched.folder / "model.gguf") == file.sha256


async def test_links_that_lead_elsewhere_are_set_right_and_their_targets_left(
    fetching: Fetching, mirror: FileServer, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "precious.gguf"
    elsewhere.write_text("precious")
    wanted = weights(mirror.add(b"GGUF right"), mirrors=(mirror.url,))
    link = tmp_path / "weights/models/demo/v1/model.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    fetched = await fetching.ensure(wanted, no_news)
    assert (fetched.folder / "model.gguf").read_bytes() == b"GGUF right"
    assert elsewhere.read_text() == "precious"


async def test_pickles_only_for_the_model_that_says_so(fetching: Fetching, mirror: FileServer) -> None:
    content = pickle.dumps({"a": 1}, 4)
    by_name = weights(mirror.add(content, "pytorch_model.bin"), mirrors=(mirror.url,))
    disguised = weights(mirror.add(content, "model.gguf"), mirrors=(mirror.url,), name="other")
    with pytest.raises(Rejected, match="allow_pickle"):
        await fetching.ensure(by_name, no_news)
    assert mirror.requests == [], "refused before a byte came"
    fetched = await fetching.ensure(by_name, no_news, pickles_allowed=True)
    assert (fetched.folder / "pytorch_model.bin").read_bytes() == content
    with pytest.raises(Rejected, match="pickle inside"):
        await fetching.ensure(disguised, no_news)
    assert (fetched.folder / "pytorch_model.bin").exists(), "the other model keeps its file"


@pytest.mark.slow
async def test_weights_come_at_four_fifths_of_curls_speed(
    fetching: Fetching, mirror: FileServer, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    content = os.urandom(MB) * 600
    file = mirror.add(content)
    url = f"{mirror.url}/v1/files/{file.sha256}"

    async def curl() -> float:
        begun = time.monotonic()
        process = await asyncio.create_subprocess_exec("curl", "-s", "-o", str(tmp_path / "curl"), url)
        assert await process.wait() == 0
        with (tmp_path / "curl").open("rb") as got:
            os.fsync(got.fileno())
        return time.monotonic() - begun

    async def ours(n: int) -> float:
        made = Fetching(tmp_path / f"again-{n}")
        begun = time.monotonic()
        await made.ensure(weights(file, mirrors=(mirror.url,)), no_news)
        took = time.monotonic() - begun
        await made.close()
        return took

    theirs, own = [], []
    for n in range(3):
        theirs.append(await curl())
        own.append(await ours(n))
        shutil.rmtree(tmp_path / f"again-{n}")
    share = min(theirs) / min(own)
    record_property("weights against curl", f"{100 * share:.0f} % ({600 / min(own):.0f} MB/s, checked)")
    assert share >= 0.8
