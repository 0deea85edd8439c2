"""Weights from one commit of a hub: what is fetched, held against which sums, and who gets to see the token."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from libs.bus import AskFailed, Bus
from libs.events.headers import ModelHeaders
from libs.events.machine import MachineErrandEnded, MachineRegistered
from libs.events.node import Errand
from libs.events.questions import AskHeaders, HeadersAnswer
from libs.events.shard import ShardFailed, ShardReady, ShardStopped
from libs.events.sources import kept_as
from libs.events.views import ErrandWanted, WeightsWanted
from libs.testing.files import file_of
from libs.testing.waiting import eventually
from services.nodeagent.adapters.weights.hub import Hub
from services.nodeagent.adapters.weights.store import Rejected
from services.nodeagent.shard import fetching as fetching_module
from services.nodeagent.shard.fetching import Fetched, Fetching
from tests.data.models import gguf_headers
from tests.unit.fit.models import MODELS
from tests.unit.nodeagent.wanted import shard

from .box import Box
from .hub import COMMIT, REPOSITORY, HubServer, hub_serving

TENSORS = b"\x02\0\0\0\0\0\0\0{}" + os.urandom(2_000_000)
GGUF = b"GGUF" + os.urandom(1_000_000)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_serving() as serving:
        serving.put("config.json", b'{"model_type": "tiny"}')
        serving.put("sub/tokenizer.model", b"pieces")
        serving.put("README.md", b"read me")
        serving.put(".gitattributes", b"* lfs")
        serving.put_large("model.safetensors", TENSORS)
        serving.put_large("consolidated.safetensors", b"again" * 100)
        serving.put_large("pytorch_model.bin", pickle.dumps({}, 4))
        serving.put_large("q4/tiny-Q4.gguf", GGUF)
        serving.put_large("tiny-Q8.gguf", b"GGUF other")
        yield serving


@pytest.fixture
async def fetching(tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fetching]:
    monkeypatch.setattr(fetching_module, "_PAUSE_S", 0.01)
    made = Fetching(tmp_path / "weights", Hub(hub.url))
    yield made
    await made.close()


def weights(file: str = "") -> WeightsWanted:
    source = f"hf:{REPOSITORY}@{COMMIT}" + (f":{file}" if file else "")
    name, _, version = kept_as(source).partition("@")
    return WeightsWanted(name=name, version=version, files=(), mirrors=(), source=source)


def no_news() -> None:
    return


async def brought(fetching: Fetching, wanted: WeightsWanted) -> Fetched:
    return await fetching.ensure(await fetching.listed(wanted), no_news)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def test_safetensors_and_what_describes_them_come_and_stay(
    fetching: Fetching, hub: HubServer, tmp_path: Path
) -> None:
    fetched = await brought(fetching, weights())
    assert names(fetched.folder) == {"config.json", "sub/tokenizer.model", "model.safetensors"}
    assert (fetched.folder / "model.safetensors").read_bytes() == TENSORS
    assert fetched.fetched_bytes == hub.storage.sent_bytes == len(TENSORS)
    (here,) = fetching.complete
    assert here.weights == f"HF--acme--tiny@{COMMIT}"
    assert here.size_bytes == len(TENSORS) + len(b'{"model_type": "tiny"}pieces')

    asked = len(hub.requests)
    again = Fetching(tmp_path / "weights", Hub("http://127.0.0.1:9"))
    assert (await brought(again, weights())).fetched_bytes == 0
    await again.close()
    assert len(hub.requests) == asked, "a commit's files never change: the next agent asks nobody"


async def test_the_gguf_that_was_chosen_comes_alone(fetching: Fetching, hub: HubServer) -> None:
    fetched = await brought(fetching, weights("q4/tiny-Q4.gguf"))
    assert names(fetched.folder) == {"config.json", "q4/tiny-Q4.gguf"}
    assert (fetched.folder / "q4/tiny-Q4.gguf").read_bytes() == GGUF
    both = await asyncio.gather(*(brought(fetching, weights()) for _ in range(3)))
    assert sorted(one.fetched_bytes for one in both) == [0, 0, len(TENSORS)], "one download, however many ask"
    assert hub.storage.sent_bytes == len(GGUF) + len(TENSORS)
    assert len([path for path, _ in hub.requests if path.startswith("/api/")]) == 2


async def test_what_is_not_in_the_commit_is_said_with_what_is(fetching: Fetching, hub: HubServer) -> None:
    with pytest.raises(Rejected, match=r"has no no\.gguf at that commit; it has: q4/tiny-Q4\.gguf, tiny-Q8\.gguf"):
        await fetching.listed(weights("no.gguf"))
    del hub.large["model.safetensors"], hub.large["consolidated.safetensors"]
    with pytest.raises(Rejected, match=r"no safetensors at that commit: choose one of its GGUF files with :FILE: q4"):
        await fetching.listed(weights())
    hub.sha = "f" * 40
    with pytest.raises(Rejected, match=f"answered with the commit {'f' * 40} when asked for {COMMIT}"):
        await fetching.listed(weights())


async def test_a_broken_download_goes_on_and_a_part_is_taken_up(
    fetching: Fetching, hub: HubServer, tmp_path: Path
) -> None:
    hub.failing = 2
    hub.storage.cut_after = 700_000
    fetched = await brought(fetching, weights())
    assert hub.storage.requests == [None, "bytes=700000-"]
    assert (fetched.folder / "model.safetensors").read_bytes() == TENSORS

    parts = tmp_path / "weights" / "parts"
    (parts / hub.large["q4/tiny-Q4.gguf"]).write_bytes(GGUF[:600_000])
    assert (await brought(fetching, weights("q4/tiny-Q4.gguf"))).fetched_bytes == len(GGUF) - 600_000
    assert list(parts.iterdir()) == []


async def test_a_flipped_byte_is_found_deleted_and_both_sums_named(
    fetching: Fetching, hub: HubServer, tmp_path: Path
) -> None:
    published = hub.large["model.safetensors"]
    flipped = bytearray(TENSORS)
    flipped[1234] ^= 1
    hub.storage.contents[published] = bytes(flipped)
    with pytest.raises(Rejected) as rejected:
        await brought(fetching, weights())
    assert published in str(rejected.value)
    assert file_of(bytes(flipped)).sha256 in str(rejected.value)
    assert not (tmp_path / "weights" / "content" / published).exists()
    assert fetching.complete == ()


async def test_a_small_file_is_held_against_gits_sum(fetching: Fetching, hub: HubServer, tmp_path: Path) -> None:
    hub.published["config.json"] = "e" * 40
    with pytest.raises(Rejected, match=f"config.json of .* has git's SHA-1 [0-9a-f]{{40}} and should have {'e' * 40}"):
        await fetching.listed(weights())
    assert list((tmp_path / "weights" / "listings").iterdir()) == []


async def test_pickles_in_disguise_are_refused(fetching: Fetching, hub: HubServer, tmp_path: Path) -> None:
    sha256 = hub.put_large("model.safetensors", pickle.dumps({"a": 1}, 4))
    with pytest.raises(Rejected, match="pickle inside"):
        await brought(fetching, weights())
    assert not (tmp_path / "weights" / "content" / sha256).exists()


async def test_the_token_goes_to_the_hub_and_no_further(hub: HubServer, tmp_path: Path) -> None:
    hub.token = "hf_secret"
    without = Fetching(tmp_path / "without", Hub(hub.url))
    with pytest.raises(Rejected, match=r"HTTP 401 .*name a file with one in the agent's setting hf_token_file"):
        await without.listed(weights())
    await without.close()

    token = tmp_path / "token"
    fetching = Fetching(tmp_path / "weights", Hub(hub.url, token))
    with pytest.raises(Rejected, match=f"hf_token_file {token} cannot be read"):
        await fetching.listed(weights())
    token.write_text("hf_secret\n")
    assert (await brought(fetching, weights())).fetched_bytes == len(TENSORS)
    await fetching.close()
    assert {given for path, given in hub.requests if path.startswith(f"/{REPOSITORY}")} == {"Bearer hf_secret"}
    assert hub.storage.authorizations == [None], "large files are on another host"


async def test_it_is_removed_like_any_copy_and_listed_anew(fetching: Fetching, hub: HubServer, tmp_path: Path) -> None:
    wanted = weights()
    await brought(fetching, wanted)
    used = {"r-1-0": (wanted,)}
    assert fetching.stays(wanted.name, wanted.version, used, {}) == (
        f"r-1-0 uses HF--acme--tiny@{COMMIT}: stop its model first"
    )
    assert await fetching.remove(wanted.name, wanted.version, {}, {}) > len(TENSORS)
    assert list((tmp_path / "weights" / "listings").iterdir()) == []
    assert fetching.complete == ()
    assert (await brought(fetching, wanted)).fetched_bytes == len(TENSORS)


async def test_an_agent_that_is_killed_over_it_goes_on_and_serves(box: Box, hub: HubServer) -> None:
    box.settings = msgspec.structs.replace(box.settings, hf_endpoint=hub.url)
    box.start_agent()
    await box.next(MachineRegistered)
    elsewhere = msgspec.structs.replace(weights(), name="../elsewhere")
    await box.want(shard("r-0-0", weights=elsewhere))
    assert "is kept as HF--acme--tiny@" in (await box.next(ShardFailed)).reason
    hub.storage.hold = threading.Event()
    await box.want(shard(weights=weights()))
    await eventually(lambda: any(one.done_bytes for sample in box.samples for one in sample.shards))
    one = next(one for sample in box.samples for one in sample.shards if one.done_bytes)
    assert (one.phase, one.total_bytes) == ("fetching", len(TENSORS) + len(b'{"model_type": "tiny"}pieces'))
    box.kill_agent()
    hub.storage.hold.set()
    hub.storage.hold = None
    box.start_agent()
    await box.next(ShardReady, deadline_s=30)
    first, *_, last = hub.storage.requests
    assert first is None
    assert last is not None, "what had come is not fetched again"

    errand = Errand(kind="remove_weights", weights=weights().source)
    await box.want()
    await box.next(ShardStopped)
    await box.want(errands=(ErrandWanted(number=1, errand=errand),))
    removed = await box.next(MachineErrandEnded)
    assert (removed.outcome, removed.reason) == ("done", "1 MB became free")


async def test_headers_are_read_where_the_weights_are(box: Box, bus: Bus, hub: HubServer, tmp_path: Path) -> None:
    models = MODELS / "llama-3-8b"
    for name in ("config.json", "model.safetensors.index.json"):
        hub.put(name, (models / name).read_bytes())
    parts = set(json.loads((models / "model.safetensors.index.json").read_bytes())["weight_map"].values())
    for part in parts:
        hub.put_large(part, TENSORS)
    gguf = tmp_path / "gemma.gguf"
    gguf.write_bytes(gguf_headers.gemma_3_270m())
    box.settings = msgspec.structs.replace(box.settings, hf_endpoint=hub.url)
    box.start_agent()
    machine = await box.next(MachineRegistered)
    assert "ask.node.headers.v1" in machine.features

    async def headers(source: str) -> ModelHeaders:
        answer = await bus.ask(AskHeaders(machine_id="box", source=source), HeadersAnswer, timeout_s=20)
        return answer.headers

    del hub.large["model.safetensors"], hub.large["consolidated.safetensors"]
    found = await headers(f"hf:{REPOSITORY}@{COMMIT}")
    assert (found.name, found.format, found.layers, found.context) == (REPOSITORY, "safetensors", 32, 8192)
    assert found.weights.total == 16_060_522_496
    assert (await headers(f"file:{gguf}")).parameters > 2e8
    sent = hub.storage.sent_bytes
    for source, said in (
        (f"hf:{REPOSITORY}@{COMMIT}:tiny-Q8.gguf", "tiny-Q8.gguf: "),
        (f"file:{tmp_path}/nowhere", "is not on this machine"),
        ("library:x", "the library keeps them"),
    ):
        with pytest.raises(AskFailed, match=said):
            await headers(source)
    assert hub.storage.sent_bytes - sent <= len(GGUF), "nothing but headers is fetched"
