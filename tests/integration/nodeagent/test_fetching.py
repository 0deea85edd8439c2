from __future__ import annotations

import asyncio
import os
import pickle
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from libs.events.views import WeightsWanted
from libs.testing.files import FileServer, file_of, serving
from libs.testing.waiting import eventually
from services.nodeagent.adapters.weights.store import Rejected
from services.nodeagent.shard import fetching as fetching_module
from services.nodeagent.shard.fetching import Fetching

CONTENT = os.urandom(3_000_000)


@pytest.fixture
def mirror() -> Iterator[FileServer]:
    with serving() as files:
        yield files


@pytest.fixture
async def fetching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fetching]:
    monkeypatch.setattr(fetching_module, "_PAUSE_S", 0.01)
    made = Fetching(tmp_path)
    yield made
    await made.close()


def weights(*files: object, mirrors: tuple[str, ...]) -> WeightsWanted:
    return WeightsWanted(name="demo", version="v1", files=files, mirrors=mirrors)  # type: ignore[arg-type]


def no_news() -> None:
    return


async def test_a_set_is_fetched_linked_and_found_again(fetching: Fetching, mirror: FileServer, tmp_path: Path) -> None:
    wanted = weights(
        mirror.add(CONTENT), mirror.add(b"{}", "sub/config.json"), mirror.add(b"{}", "copy.json"), mirrors=(mirror.url,)
    )
    fetched = await fetching.ensure(wanted, no_news)
    assert fetched.fetched_bytes == len(CONTENT) + 2, "equal files come once"
    assert (fetched.folder / "model.gguf").read_bytes() == CONTENT
    assert (fetched.folder / "sub/config.json").read_bytes() == b"{}"
    assert (fetched.folder / "copy.json").is_symlink()
    assert list((tmp_path / "parts").iterdir()) == []

    again = Fetching(tmp_path)
    assert (await again.ensure(wanted, no_news)).fetched_bytes == 0
    await again.close()
    assert len(mirror.requests) == 2


async def test_two_shards_share_one_download(fetching: Fetching, mirror: FileServer) -> None:
    wanted = weights(mirror.add(CONTENT), mirrors=(mirror.url,))
    both = await asyncio.gather(*(fetching.ensure(wanted, no_news) for _ in range(2)))
    assert mirror.sent_bytes == len(CONTENT)
    assert sorted(one.fetched_bytes for one in both) == [0, len(CONTENT)]


async def test_a_broken_download_goes_on_where_it_stopped(fetching: Fetching, mirror: FileServer) -> None:
    wanted = weights(mirror.add(CONTENT), mirrors=(mirror.url,))
    mirror.cut_after = 1_000_000
    fetched = await fetching.ensure(wanted, no_news)
    assert mirror.requests == [None, "bytes=1000000-"]
    assert fetched.folder.joinpath("model.gguf").read_bytes() == CONTENT


async def test_the_next_agent_goes_on_with_the_part(fetching: Fetching, mirror: FileServer, tmp_path: Path) -> None:
    file = mirror.add(CONTENT)
    (tmp_path / "parts" / file.sha256).write_bytes(CONTENT[:2_000_000])
    fetched = await fetching.ensure(weights(file, mirrors=(mirror.url,)), no_news)
    assert fetched.fetched_bytes == 1_000_000
    assert mirror.requests == ["bytes=2000000-"]


async def test_a_mirror_without_ranges_starts_over(fetching: Fetching, mirror: FileServer, tmp_path: Path) -> None:
    file = mirror.add(CONTENT)
    mirror.ranges = False
    (tmp_path / "parts" / file.sha256).write_bytes(b"x" * 1000)
    fetched = await fetching.ensure(weights(file, mirrors=(mirror.url,)), no_news)
    assert fetched.folder.joinpath("model.gguf").read_bytes() == CONTENT


async def test_a_mirror_that_is_away_is_passed_over(fetching: Fetching, mirror: FileServer) -> None:
    wanted = weights(mirror.add(CONTENT), mirrors=("http://127.0.0.1:9", mirror.url))
    assert (await fetching.ensure(wanted, no_news)).fetched_bytes == len(CONTENT)


async def test_a_flipped_byte_is_found_deleted_and_both_sums_named(
    fetching: Fetching, mirror: FileServer, tmp_path: Path
) -> None:
    file = mirror.add(CONTENT)
    flipped = bytearray(CONTENT)
    flipped[1234] ^= 1
    mirror.contents[file.sha256] = bytes(flipped)
    with pytest.raises(Rejected) as rejected:
        await fetching.ensure(weights(file, mirrors=(mirror.url,)), no_news)
    assert file.sha256 in str(rejected.value)
    assert file_of(bytes(flipped)).sha256 in str(rejected.value)
    assert f"it came from {mirror.url}" in str(rejected.value)
    assert not (tmp_path / "content" / file.sha256).exists()

    with serving() as good:
        good.add(CONTENT)
        fetched = await fetching.ensure(weights(file, mirrors=(mirror.url, good.url)), no_news)
    assert fetched.folder.joinpath("model.gguf").read_bytes() == CONTENT


async def test_a_part_damaged_at_rest_costs_one_more_download(
    fetching: Fetching, mirror: FileServer, tmp_path: Path
) -> None:
    file = mirror.add(CONTENT)
    (tmp_path / "parts" / file.sha256).write_bytes(b"\0" * 500)
    fetched = await fetching.ensure(weights(file, mirrors=(mirror.url,)), no_news)
    assert fetched.folder.joinpath("model.gguf").read_bytes() == CONTENT


async def test_a_file_damaged_on_disk_is_fetched_again(fetching: Fetching, mirror: FileServer, tmp_path: Path) -> None:
    file = mirror.add(CONTENT)
    wanted = weights(file, mirrors=(mirror.url,))
    await fetching.ensure(wanted, no_news)
    with (tmp_path / "content" / file.sha256).open("r+b") as opened:
        opened.write(b"!")
    assert (await fetching.ensure(wanted, no_news)).fetched_bytes == len(CONTENT)
    assert (tmp_path / "content" / file.sha256).read_bytes() == CONTENT


async def test_what_no_mirror_has_is_said(fetching: Fetching, mirror: FileServer) -> None:
    with pytest.raises(Rejected, match=r"does not have model\.gguf"):
        await fetching.ensure(weights(file_of(b"other"), mirrors=(mirror.url,)), no_news)
    with pytest.raises(Rejected, match="no mirror was named"):
        await fetching.ensure(weights(file_of(b"other"), mirrors=()), no_news)


async def test_a_pickle_in_disguise_is_deleted(fetching: Fetching, mirror: FileServer, tmp_path: Path) -> None:
    file = mirror.add(pickle.dumps({"a": 1}, 4))
    with pytest.raises(Rejected, match="pickle inside"):
        await fetching.ensure(weights(file, mirrors=(mirror.url,)), no_news)
    assert not (tmp_path / "content" / file.sha256).exists()


async def test_a_download_nobody_waits_for_stops_and_can_be_taken_up(fetching: Fetching, mirror: FileServer) -> None:
    mirror.hold = threading.Event()
    wanted = weights(mirror.add(CONTENT), mirrors=(mirror.url,))
    waiting = asyncio.create_task(fetching.ensure(wanted, no_news))
    await eventually(lambda: not fetching.progress().get("demo@v1", "0/").startswith("0/"))
    assert fetching.progress()["demo@v1"].endswith(f"/{len(CONTENT)} bytes")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    mirror.hold.set()
    mirror.hold = None
    fetched = await fetching.ensure(wanted, no_news)
    assert fetched.folder.joinpath("model.gguf").read_bytes() == CONTENT
    assert fetching.progress() == {}


async def test_a_large_file_comes_at_the_speed_of_disk_and_sum(fetching: Fetching, mirror: FileServer) -> None:
    content = os.urandom(1_000_000) * 120
    wanted = weights(mirror.add(content), mirrors=(mirror.url,))
    begun = time.monotonic()
    await fetching.ensure(wanted, no_news)
    assert time.monotonic() - begun < 5, "120 MB from this machine"
