"""``llmgw model fit`` on a cluster's machines and from its library, over a real bus."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime

import msgspec
import pytest
from click.testing import CliRunner, Result

from cli import fleet
from cli.main import llmgw
from libs.bus import Bus
from libs.events.library import WeightFile
from libs.events.questions import LibraryAnswer, ListLibrary, ListNodes, NodesAnswer
from libs.events.views import LibraryEntry, NodeView
from libs.testing.files import serving
from libs.testing.nats import NatsServer
from tests.data.models.gguf_headers import qwen2_5_0_5b
from tests.unit.fit.models import FLEETS, MODELS

SHA256 = "ab" * 32


@pytest.fixture
def weights() -> Iterator[str]:
    """A mirror's address for one file; it answers ranges from the beginning."""
    body = qwen2_5_0_5b() + bytes(1 << 20)
    with serving() as files:
        files.contents[f"/v1/files/{SHA256}"] = body
        yield files.url


@pytest.fixture
async def owners(connect_as: Callable[[str], Awaitable[Bus]], weights: str) -> None:
    """What agents, scheduler and mirror of a cluster say: the example's eight cards, and a node that is drained."""
    now = datetime.now(UTC)
    (machine,) = fleet.load(FLEETS / "h100x8.yaml").machines
    machines = [machine, msgspec.structs.replace(machine, id="drained"), msgspec.structs.replace(machine, id="gone")]
    for one in machines:
        bus = await connect_as(f"node-{one.id}")
        registered = msgspec.structs.replace(fleet.registered(one), at=now)
        # Said twice, as after a restart: the last word counts.
        await bus.append(msgspec.structs.replace(registered, cpu_count=1), cause=f"start-1-{one.id}")
        await bus.append(registered, cause=f"start-2-{one.id}")
        await bus.tell(msgspec.structs.replace(fleet.sample(one), at=now))

    def node(name: str, state: str) -> NodeView:
        return NodeView(machine_id=name, state=state, address="", cpu_count=224, memory_total_mb=2097152)

    async def nodes(_: ListNodes) -> NodesAnswer:
        return NodesAnswer(nodes=(node("dgx", "ready"), node("drained", "drained")))

    async def library(_: ListLibrary) -> LibraryAnswer:
        file = WeightFile(path="qwen.gguf", size_bytes=1, sha256=SHA256)
        entry = LibraryEntry(name="qwen", versions={"v1": (file,)}, latest="v1", mirrors=(weights,))
        return LibraryAnswer(entries=(entry,))

    await (await connect_as("scheduler")).answer("scheduler", {ListNodes: nodes})
    await (await connect_as("mirror")).answer("mirror", {ListLibrary: library})


async def llmgw_plan(server: NatsServer, *arguments: str) -> Result:
    command = ["model", "fit", *arguments, "--nats", server.url]
    return await asyncio.to_thread(CliRunner().invoke, llmgw, command)


async def test_on_the_clusters_machines(nats_server: NatsServer, owners: None) -> None:
    result = await llmgw_plan(nats_server, str(MODELS / "qwen3-235b-a22b"), "--nodes-from-cluster", "--json")

    made = json.loads(result.output)
    (best,) = [layout for layout in made["ways"] if layout["best"]]
    assert (best["nodes"], best["cards"], best["machines"]) == (1, 8, ["dgx"])
    # Two of its cards are held now.
    assert (best["fits"], best["now"], best["free_units"]) == (True, False, 6)
    assert made["left_out"] == ["drained: it is drained"]


async def test_from_its_library(nats_server: NatsServer, owners: None) -> None:
    result = await llmgw_plan(nats_server, "library:qwen", "--json")

    made = json.loads(result.output)
    assert [(model["name"], model["precision"]) for model in made["models"]] == [("qwen", "Q4_K_M")]
    assert [(layout["gpu_class"], layout["best"]) for layout in made["ways"]] == [("h100-80g", True), (None, False)]
    assert made["ways"][1]["tokens_per_s"] > 0


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("library:other", "the library has no 'other': it has qwen"),
        ("library:qwen@v9", "the library's qwen has no version 'v9': it has v1"),
    ],
)
async def test_what_the_library_does_not_have_is_said(
    nats_server: NatsServer, owners: None, source: str, said: str
) -> None:
    result = await llmgw_plan(nats_server, source)

    assert result.exit_code == 1
    assert said in result.output
