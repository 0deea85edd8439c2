"""What nats-server lets each identity do: its own, and nothing of another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from libs.bus import Bus, BusAway, BusSettings, connect, ensure, verify
from libs.bus.delivery import MESSAGE_ID
from libs.bus.identities import GRANTS, OPERATOR, authorization, ensure_seed, grants, node_identity
from libs.bus.nats_transport import NatsTransport
from libs.bus.topology import CONSUMERS
from libs.events import encode, subject_of
from libs.events.machine import MachineRegistered
from libs.testing import eventually
from libs.testing.nats import NatsServer
from services.nodeagent.adapters.disk.outbox import Outbox

NOW = datetime(2026, 1, 1, tzinfo=UTC)

MACHINE = "gpu-07.example"
OTHER = "gpu-08.example"
IDENTITIES = (*GRANTS, node_identity(MACHINE), node_identity(OTHER))
REFUSED_S = 0.2
OWN = {
    "scheduler": "llmgw.evt.replica.r-1.ready",
    "accounting": "llmgw.evt.key.k-1.created",
    "guard": "llmgw.evt.policy.p.defined",
    "mirror": "llmgw.evt.library.w.version_added",
    "gateway": "llmgw.use.gateway.g-1.batch",
    node_identity(MACHINE): "llmgw.evt.shard.gpu-07=2Eexample.r-1-0.ready",
    node_identity(OTHER): "llmgw.evt.machine.gpu-08=2Eexample.registered",
}
"""A subject each identity publishes, and nobody else may."""
VIEWS = {
    "scheduler": ("routes", "desired", "nodes", "models"),
    "accounting": ("keys", "spend", "prices"),
    "guard": ("policies",),
    "mirror": ("library",),
}


@pytest.fixture
def seeds(tmp_path: Path) -> dict[str, Path]:
    return {name: tmp_path / f"{name}.nk" for name in IDENTITIES}


@pytest.fixture
def server(tmp_path: Path, seeds: dict[str, Path]) -> Iterator[NatsServer]:
    allowed = grants([MACHINE, OTHER])
    text = authorization({name: ensure_seed(path) for name, path in seeds.items()}, allowed)
    server = NatsServer(tmp_path / "nats", authorization=text)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def enter(server: NatsServer, seeds: dict[str, Path]) -> AsyncIterator[Callable[[str], Awaitable[Bus]]]:
    """Connect under an identity."""
    connected: list[Bus] = []

    async def enter(identity: str) -> Bus:
        bus = await connect(BusSettings(url=server.url, credentials=seeds[identity], identity=identity))
        connected.append(bus)
        return bus

    await ensure(await enter(OPERATOR))
    yield enter
    for bus in connected:
        await bus.close()


async def may_store(bus: Bus, subject: str) -> bool:
    try:
        await bus.transport.store(subject, b"{}", {}, timeout_s=REFUSED_S)
    except BusAway:
        return False
    return True


async def may_read(bus: Bus, stream: str, subject: str) -> bool:
    try:
        # A call that is refused is never answered.
        async with asyncio.timeout(REFUSED_S):
            reader = await bus.transport.read(stream, [subject], 0)
    except TimeoutError:
        return False
    await reader.close()
    return True


@pytest.mark.parametrize("identity", OWN)
async def test_an_identity_says_its_own_and_nothing_of_another_s(
    enter: Callable[[str], Awaitable[Bus]], identity: str
) -> None:
    bus = await enter(identity)

    may = await asyncio.gather(*(may_store(bus, subject) for subject in OWN.values()))

    assert [subject for subject, said in zip(OWN.values(), may, strict=True) if said] == [OWN[identity]]


@pytest.mark.parametrize("identity", ["gateway", "guard", node_identity(MACHINE)])
async def test_a_view_is_written_by_its_owner_only(enter: Callable[[str], Awaitable[Bus]], identity: str) -> None:
    bus = await enter(identity)

    buckets = [bucket for owned in VIEWS.values() for bucket in owned]
    may = await asyncio.gather(*(may_store(bus, f"$KV.{bucket}.x") for bucket in buckets))

    assert [bucket for bucket, wrote in zip(buckets, may, strict=True) if wrote] == list(VIEWS.get(identity, ()))


async def test_a_node_sees_no_names_of_keys_and_tenants(enter: Callable[[str], Awaitable[Bus]]) -> None:
    bus = await enter(node_identity(MACHINE))
    assert isinstance(bus.transport, NatsTransport)
    async with asyncio.timeout(5):
        await verify(bus)

    for stream in ("EVENTS", "USAGE", "KV_keys", "KV_spend"):
        with pytest.raises(TimeoutError):
            # A call that is refused is never answered.
            async with asyncio.timeout(REFUSED_S):
                await bus.transport.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})


async def test_a_node_reads_what_it_should_run_and_no_other_s(enter: Callable[[str], Awaitable[Bus]]) -> None:
    bus = await enter(node_identity(MACHINE))
    own, other = (f"$KV.desired.{name.removeprefix('node-')}" for name in IDENTITIES[-2:])

    assert await may_read(bus, "KV_desired", own)
    assert not await may_read(bus, "KV_desired", other)
    assert not await may_read(bus, "KV_desired", "$KV.desired.>")
    assert not await may_read(bus, "KV_keys", "$KV.keys.>")
    assert not await may_read(bus, "EVENTS", "llmgw.evt.>")

    mine, another = (f"llmgw.evt.machine.{name.removeprefix('node-')}.registered" for name in IDENTITIES[-2:])
    assert await bus.transport.last_here("EVENTS", mine) is None
    for refused in (another, "llmgw.evt.node.x.joined"):
        with pytest.raises(BusAway):
            await bus.transport.last_here("EVENTS", refused)


async def test_only_gateways_and_operators_give_commands(enter: Callable[[str], Awaitable[Bus]]) -> None:
    """Each on a subject of its own: an owner believes only a gateway that a command is for another."""
    subject = "llmgw.cmd.scheduler.define_model"

    gateway, operator = await enter("gateway"), await enter(OPERATOR)
    assert await may_store(gateway, f"{subject}.gateway")
    assert not await may_store(gateway, subject)
    assert await may_store(operator, subject)
    assert not await may_store(operator, f"{subject}.gateway")
    for identity in ("guard", "scheduler", node_identity(MACHINE)):
        bus = await enter(identity)
        for refused in (subject, f"{subject}.gateway", f"{subject}.{identity}"):
            assert not await may_store(bus, refused)


async def test_nobody_hears_the_answers_of_another(enter: Callable[[str], Awaitable[Bus]]) -> None:
    gateway, guard = await enter("gateway"), await enter("guard")
    heard: list[bytes] = []
    overheard: list[bytes] = []

    async def hear(payload: bytes) -> None:
        heard.append(payload)

    async def overhear(raw: object) -> None:
        overheard.append(b"")

    inbox = await gateway.inbox(hear)
    await guard.transport.subscribe("_INBOX.gateway.>", overhear)
    await guard.reply(inbox, {"verdict": "allow"})

    await eventually(lambda: heard)
    assert overheard == []


def registration(memory_mb: int = 1) -> MachineRegistered:
    return MachineRegistered(
        at=NOW,
        machine_id=MACHINE,
        address="127.0.0.1",
        agent_version="1",
        sealing_key="00",
        os="linux",
        arch="x86_64",
        cpu_count=1,
        memory_total_mb=memory_mb,
    )


async def test_no_identity_silences_another_by_using_up_its_ids(
    enter: Callable[[str], Awaitable[Bus]], tmp_path: Path
) -> None:
    """The server drops a message whose id it knows, wherever it came from: here from the other node."""
    registered = registration()
    subject, cause = subject_of(registered), f"machine.{MACHINE}:registered:1.1"
    other = await enter(node_identity(OTHER))
    outbox = Outbox(tmp_path / "outbox")
    outbox.put(registered, cause)
    for name in (cause, f"{cause}@{(tmp_path / 'outbox' / 'name').read_text()}"):
        for forged in (f"{name}/{subject}", other.transport.message_id(f"{name}/{subject}")):
            await other.transport.store("llmgw.evt.machine.gpu-08=2Eexample.chaos", b"{}", {MESSAGE_ID: forged})

    outbox.start(await enter(node_identity(MACHINE)))
    await eventually(lambda: not outbox.waiting())
    await outbox.stop(1)

    said = await (await enter("scheduler")).transport.last("EVENTS", subject)
    assert said is not None
    assert said.payload == encode(registered)


async def test_an_agent_whose_folder_was_lost_is_heard_at_once(
    enter: Callable[[str], Awaitable[Bus]], tmp_path: Path
) -> None:
    """It counts from one again, and what it says now is no repetition of what the lost one said."""
    bus, reader = await enter(node_identity(MACHINE)), await enter("scheduler")
    for memory_mb in (1, 2):
        registered = registration(memory_mb)
        outbox = Outbox(tmp_path / f"outbox-{memory_mb}")
        outbox.put(registered, f"machine.{MACHINE}:registered:1.1")
        outbox.start(bus)
        await eventually(lambda box=outbox: not box.waiting())
        await outbox.stop(1)
        said = await reader.transport.last("EVENTS", subject_of(registered))
        assert said is not None
        assert said.payload == encode(registered)


async def test_without_a_seed_nobody_comes_in(server: NatsServer, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.nk"
    ensure_seed(stranger)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await connect(BusSettings(url=server.url, credentials=stranger, identity=OPERATOR))


def test_a_service_works_only_through_consumers_that_exist() -> None:
    worked = [durable for grant in GRANTS.values() for durable in grant.works]

    assert sorted(worked) == sorted(CONSUMERS)


def test_a_machine_s_name_is_one_token_whatever_it_is() -> None:
    assert node_identity("gpu-07.example") == "node-gpu-07=2Eexample"


def test_a_seed_is_made_once_and_is_its_owner_s(tmp_path: Path) -> None:
    file = tmp_path / "a" / "operator.nk"

    public = ensure_seed(file)

    assert ensure_seed(file) == public
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("not a seed")
    with pytest.raises(ValueError, match="holds no nkey seed"):
        ensure_seed(file)
