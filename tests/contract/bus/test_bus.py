from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from libs.bus import (
    Again,
    AskFailed,
    BusSettings,
    Delivery,
    Fence,
    NotLeader,
    Overtaken,
    OwnedView,
    Park,
    Unanswered,
    connect,
    ensure,
)
from libs.bus.nats_transport import NatsTransport
from libs.bus.transport import BusAway, TooLarge, WrongSequence
from libs.events import encode
from libs.events.commands import RevokeKey
from libs.events.leadership import SchedulerElected, SchedulerPulse
from libs.events.machine import MachineErrandEnded
from libs.events.model import ModelRemoved
from libs.events.node import NodeCordoned, NodeJoined
from libs.events.policy import Check, Segment
from libs.events.questions import ListNodes, NodesAnswer, SchedulerStanding, Standing
from libs.events.refusal import Refused
from libs.events.usage import UsageBatch
from libs.events.views import LibraryEntry, Spend
from libs.testing import eventually
from libs.testing.nats import NatsServer

from .conftest import Open

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def spend(cost: int) -> Spend:
    return Spend(key_id="k", period="2026-01", requests=1, prompt_tokens=1, completion_tokens=1, cost_micros=cost)


def joined(machine: str) -> NodeJoined:
    return NodeJoined(at=NOW, machine_id=machine)


async def test_what_is_appended_is_followed_in_order_by_late_and_early_readers(open_bus: Open) -> None:
    bus = await open_bus("scheduler")
    seen: list[tuple[int, str]] = []

    async def handle(delivery: Delivery) -> None:
        assert isinstance(delivery.message, NodeJoined)
        seen.append((delivery.sequence, delivery.message.machine_id))

    early = await bus.follow("EVENTS", ["llmgw.evt.>"], handle)
    await early.caught_up.wait()
    sequences = [await bus.append(joined(f"m{i}"), cause=f"c{i}") for i in range(20)]
    await early.reached(sequences[-1])
    assert seen == [(s, f"m{i}") for i, s in enumerate(sequences)]

    seen.clear()
    late = await bus.follow("EVENTS", ["llmgw.evt.node.>"], handle, start=sequences[9])
    await late.caught_up.wait()
    assert [name for _, name in seen] == [f"m{i}" for i in range(10, 20)]
    await early.stop()
    await late.stop()


async def test_the_same_decision_made_again_is_the_same_message(open_bus: Open) -> None:
    bus = await open_bus("scheduler")
    first = await bus.append(joined("m"), cause="EVENTS:7")
    again = await bus.append(joined("m"), cause="EVENTS:7")
    other = await bus.append(joined("m"), cause="EVENTS:8")
    assert first == again
    assert other > first


async def test_an_event_keeps_its_cause_its_actor_and_a_machine_name_with_dots(open_bus: Open) -> None:
    bus = await open_bus("scheduler")
    got: list[Delivery] = []

    async def handle(delivery: Delivery) -> None:
        got.append(delivery)

    await bus.append(joined("gpu.07"), cause="c-1", actor="ada")
    follower = await bus.follow("EVENTS", ["llmgw.evt.>"], handle)
    await follower.caught_up.wait()
    assert (got[0].cause, got[0].actor, got[0].message) == ("c-1", "ada", joined("gpu.07"))
    assert got[0].subject == "llmgw.evt.node.gpu=2E07.joined"
    await follower.stop()


async def test_two_leaders_want_one_gpu_and_only_the_newer_gets_it(open_bus: Open) -> None:
    older, newer = await open_bus("scheduler"), await open_bus("scheduler")
    subject = "llmgw.evt.scheduler.main.elected"
    first = await older.append(SchedulerElected(at=NOW, instance="a"), cause="a")
    await older.append(joined("gpu-1"), cause="x", fence=Fence(subject, first))
    second = await newer.append(SchedulerElected(at=NOW, instance="b"), cause="b")
    await newer.append(joined("gpu-2"), cause="y", fence=Fence(subject, second))
    with pytest.raises(NotLeader):
        await older.append(joined("gpu-2"), cause="z", fence=Fence(subject, first))
    with pytest.raises(NotLeader):  # whatever subject it publishes to
        await older.append(ModelRemoved(at=NOW, model="m"), cause="z", fence=Fence(subject, first))


async def test_a_fenced_decision_sent_again_after_its_answer_was_lost_counts_as_made(open_bus: Open) -> None:
    bus = await open_bus("scheduler")
    subject = "llmgw.evt.scheduler.main.elected"
    fence = Fence(subject, await bus.append(SchedulerElected(at=NOW, instance="a"), cause="a"))
    made = await bus.append(joined("m"), cause="x", fence=fence)
    await bus.append(SchedulerElected(at=NOW, instance="b"), cause="b")
    assert await bus.append(joined("m"), cause="x", fence=fence) == made


DEEP = b'{"type":"node.joined.v1","at":"2026-01-01T00:00:00Z","machine_id":"m","x":' + b"[" * 5000 + b"]" * 5000 + b"}"


async def test_nothing_is_believed_that_stands_on_a_subject_of_another(open_bus: Open) -> None:
    bus = await open_bus("operator")
    own = "llmgw.evt.machine.m1.registered"
    forged = [
        (own, encode(ModelRemoved(at=NOW, model="chat"))),
        ("llmgw.evt.node.m1.joined", encode(joined("m2"))),
        ("llmgw.evt.node.m1.joined", encode(joined(""))),
        ("llmgw.evt.node.m.joined", DEEP),
        (own, b"\xff"),
    ]
    for subject, payload in forged:
        await bus.transport.store(subject, payload, {})
    await bus.append(joined("m3"), cause="true")
    seen: list[Any] = []

    async def note(delivery: Delivery) -> None:
        seen.append(delivery.message)

    await bus.follow("EVENTS", ["llmgw.evt.>"], note)
    await eventually(lambda: seen)

    assert seen == [joined("m3")], "and the reader goes on after all of them"
    assert not bus.failed.is_set()


async def test_telemetry_of_another_is_not_heard(open_bus: Open) -> None:
    bus = await open_bus("operator")
    heard: list[SchedulerPulse] = []

    async def note(pulse: SchedulerPulse) -> None:
        heard.append(pulse)

    await bus.listen(SchedulerPulse, note)
    pulse = SchedulerPulse(at=NOW, instance="one")
    await bus.transport.publish("llmgw.tel.scheduler.two.pulse", encode(pulse))
    await bus.tell(pulse)
    await eventually(lambda: heard)

    assert heard == [pulse]


async def test_a_view_lists_follows_and_forgets(open_bus: Open) -> None:
    bus, reader = await open_bus("accounting"), await open_bus("gateway")
    view = bus.view("spend", Spend)

    await view.put("k.1", spend(1))
    await view.put("k.1", spend(2))
    await view.put("gone", spend(3))
    await view.delete("gone")
    seen: list[tuple[str, int | None]] = []

    async def on_change(key: str, value: Spend | None) -> None:
        seen.append((key, value.cost_micros if value else None))

    watch = await reader.view("spend", Spend).watch(on_change)
    await watch.caught_up.wait()
    assert seen == [("k.1", 2)]
    await view.put("k.2", spend(9))
    await view.delete("k.1")
    await eventually(lambda: seen == [("k.1", 2), ("k.2", 9), ("k.1", None)])
    assert await view.get("k.1") is None
    assert await view.get("k.2") == spend(9)
    assert set(await view.all()) == {"k.2"}
    await watch.stop()


async def test_a_view_refuses_a_writer_that_another_has_succeeded(open_bus: Open) -> None:
    bus, other = await open_bus("accounting"), await open_bus("accounting")
    early, late = OwnedView(bus.view("spend", Spend)), OwnedView(other.view("spend", Spend))
    assert await early.take_over(1)
    assert not await early.take_over(1)
    await early.put("k.1", spend(1))
    await early.put("k.2", spend(1))
    await early.delete("k.2")
    assert await late.take_over(2)
    assert late.values == {"k.1": spend(1)}
    await late.put("k.1", spend(5))
    await late.put("k.2", spend(6))
    for key in ("k.1", "k.2"):
        with pytest.raises(Overtaken):
            await early.put(key, spend(2))
    with pytest.raises(Overtaken):
        await early.delete("k.1")
    assert await bus.view("spend", Spend).all() == {"k.1": spend(5), "k.2": spend(6)}
    assert not early.owned
    assert await early.take_over(1)
    await early.put("k.1", spend(7))
    await early.put("k.3", spend(8))
    assert early.values == await other.view("spend", Spend).all()


async def test_a_write_to_a_view_whose_answer_was_lost_counts_as_made(open_bus: Open) -> None:
    bus = await open_bus("accounting")
    owned = OwnedView(bus.view("spend", Spend))
    await owned.take_over(1)
    await bus.view("spend", Spend).put("k.1", spend(1))
    await owned.put("k.1", spend(1))
    await owned.put("k.1", spend(2))
    assert await bus.view("spend", Spend).get("k.1") == spend(2)


async def test_an_empty_view_catches_up_at_once_and_single_keys_can_be_watched(open_bus: Open) -> None:
    bus = await open_bus("mirror")
    view = bus.view("library", LibraryEntry)
    seen: list[str] = []

    async def on_change(key: str, value: LibraryEntry | None) -> None:
        seen.append(key)

    watch = await view.watch(on_change, keys=["mine"])
    await asyncio.wait_for(watch.caught_up.wait(), 5)
    entry = LibraryEntry(name="x", versions={}, latest="1")
    await view.put("other", entry)
    await view.put("mine", entry)
    await eventually(lambda: seen == ["mine"])
    await watch.stop()


def batch(offset: int) -> UsageBatch:
    return UsageBatch(gateway_id="gw", offset=offset, records=())


async def test_work_is_done_once_and_a_bad_message_does_not_take_its_neighbours_along(open_bus: Open) -> None:
    bus = await open_bus("accounting")
    done: list[int] = []

    async def handle(deliveries: list[Delivery]) -> None:
        offsets = [m.message.offset for m in deliveries if isinstance(m.message, UsageBatch)]
        if 3 in offsets:
            raise Park("three is not liked")
        done.extend(offsets)

    for i in range(6):
        await bus.append(batch(i), cause=f"gw:{i}")
    worker = await bus.work("accounting-ledger", handle, batch=10)
    await eventually(lambda: sorted(done) == [0, 1, 2, 4, 5])
    parked = await eventually(lambda: bus.transport.last("PARKED", "llmgw.dlq.USAGE.accounting-ledger"))
    assert parked.headers["Llmgw-Reason"] == "three is not liked"
    assert parked.headers["Llmgw-Subject"] == "llmgw.use.gateway.gw.batch"
    await worker.stop()


async def test_work_that_must_wait_comes_again_without_being_parked(open_bus: Open) -> None:
    bus = await open_bus("accounting")
    tries = 0

    async def handle(deliveries: list[Delivery]) -> None:
        nonlocal tries
        tries += 1
        if tries <= 7:
            raise Again("the database is away", 0.02)

    await bus.append(batch(1), cause="gw:1")
    worker = await bus.work("accounting-ledger", handle)
    await eventually(lambda: tries == 8)
    assert await bus.transport.last("PARKED", "llmgw.dlq.USAGE.accounting-ledger") is None
    await worker.stop()


async def test_what_a_dead_worker_held_goes_to_another_within_two_seconds(open_bus: Open) -> None:
    gateway, first, second = await open_bus("gateway"), await open_bus("guard"), await open_bus("guard")
    stuck = asyncio.Event()

    async def never(deliveries: list[Delivery]) -> None:
        stuck.set()
        await asyncio.Event().wait()

    dying = await first.work("guard-checks", never, batch=1)
    await gateway.tell(Check(gateway_id="g", check_id="1", request_id="r", project="p", policies=(), segments=()))
    await asyncio.wait_for(stuck.wait(), 5)
    assert dying._task is not None
    dying._task.cancel()  # what is left of a process that was killed: an unacknowledged message
    taken: list[str] = []

    async def take(deliveries: list[Delivery]) -> None:
        taken.extend(m.message.check_id for m in deliveries if isinstance(m.message, Check))

    worker = await second.work("guard-checks", take)
    await eventually(lambda: taken == ["1"], deadline_s=4)
    await worker.stop()
    await asyncio.gather(dying._task, return_exceptions=True)


async def test_a_lease_is_held_by_one_and_expires(open_bus: Open) -> None:
    one, two = await open_bus("scheduler"), await open_bus("scheduler")
    mine, theirs = one.lease("scheduler", "a"), two.lease("scheduler", "b")
    assert await mine.acquire()
    assert not await theirs.acquire()
    assert await mine.renew()
    await mine.release()
    assert await theirs.acquire()
    assert not await mine.acquire()
    assert not await mine.renew()


async def test_a_lease_whose_answer_was_lost_is_its_takers(open_bus: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    bus, other = await open_bus("scheduler"), await open_bus("scheduler")
    lease, theirs = bus.lease("scheduler", "a"), other.lease("scheduler", "b")
    store, problems = bus.transport.store, [BusAway("no answer came")]

    async def store_and_fail(*arguments: Any, **options: Any) -> int:
        sequence = await store(*arguments, **options)
        if problems:
            raise problems.pop()
        return sequence

    monkeypatch.setattr(bus.transport, "store", store_and_fail)
    assert not await lease.acquire()
    assert await lease.acquire()
    assert not await theirs.acquire()

    async def in_process(*arguments: Any, **options: Any) -> int:
        raise WrongSequence("beside one that three servers do not agree on yet")

    monkeypatch.setattr(bus.transport, "store", in_process)
    assert await lease.renew()  # it lasts on
    monkeypatch.setattr(bus.transport, "store", store)
    assert await lease.renew()
    assert not await theirs.acquire()
    await lease.release()


async def test_a_restarted_instance_takes_its_own_lease_at_once_and_the_earlier_run_loses_it(open_bus: Open) -> None:
    one, two = await open_bus("scheduler"), await open_bus("scheduler")
    before, after = one.lease("scheduler", "a"), two.lease("scheduler", "a")
    assert await before.acquire()
    assert await after.acquire()
    assert not await before.renew()


async def test_questions_are_answered_refused_and_unanswered(open_bus: Open) -> None:
    service, client = await open_bus("scheduler"), await open_bus("operator")
    with pytest.raises(AskFailed, match="no scheduler answered"):
        await client.ask(ListNodes(), NodesAnswer, timeout_s=0.5)

    async def nodes(question: ListNodes) -> NodesAnswer:
        return NodesAnswer(nodes=())

    await service.answer("scheduler", {ListNodes: nodes})
    assert await client.ask(ListNodes(), NodesAnswer) == NodesAnswer(nodes=())


async def test_an_error_in_an_answer_is_safe(open_bus: Open) -> None:
    service, client = await open_bus("scheduler"), await open_bus("operator")
    errors: list[Exception] = [Refused.one("model", "there is no model 'x'"), RuntimeError("password=secret")]

    async def nodes(question: ListNodes) -> NodesAnswer:
        raise errors.pop(0)

    await service.answer("scheduler", {ListNodes: nodes})
    with pytest.raises(AskFailed, match="model: there is no model 'x'"):
        await client.ask(ListNodes(), NodesAnswer)
    with pytest.raises(AskFailed) as caught:
        await client.ask(ListNodes(), NodesAnswer)
    assert "secret" not in str(caught.value)


async def test_a_command_without_an_owner_is_logged_and_said_to_wait(open_bus: Open) -> None:
    bus = await open_bus("operator")
    with pytest.raises(Unanswered, match="carried out when the owner is back"):
        await bus.command(RevokeKey(key_id="k"), timeout_s=0.3)


async def test_what_the_bus_does_not_take_is_said_and_harms_nothing_else(nats_server: NatsServer) -> None:
    bus = await connect(BusSettings(url=nats_server.url, identity="gateway"))
    try:
        await ensure(bus)
        assert isinstance(bus.transport, NatsTransport)
        since = bus.transport.connected_since
        for characters in (8 * 1024 * 1024 - 40, 9_000_000):  # with the headers, and alone, over the server's limit
            check = Check(
                gateway_id="g",
                check_id="1",
                request_id="r",
                project="p",
                policies=(),
                segments=(Segment(path="/prompt", text="x" * characters),),
            )
            await bus.tell(check)
            with pytest.raises(TooLarge):
                await bus.transport.store("llmgw.chk.g.1", b"x" * characters, {})
        await bus.transport.store("llmgw.chk.g.2", b"x", {})
        assert bus.transport.connected_since == since, "the server did not close the connection"
    finally:
        await bus.close()


async def test_telemetry_is_heard_and_not_missed_when_the_bus_is_gone(open_bus: Open) -> None:
    bus = await open_bus("scheduler")
    heard: list[Any] = []

    async def hear(message: NodeCordoned) -> None:
        heard.append(message)

    stop = await bus.listen(NodeCordoned, hear)
    message = NodeCordoned(at=NOW, machine_id="m", reason="r")
    await bus.append(message, cause="x")
    await eventually(lambda: heard == [message])
    await stop()


async def test_a_question_that_a_frozen_instance_got_is_answered_by_another(open_bus: Open) -> None:
    frozen, alive, client = await open_bus("scheduler"), await open_bus("scheduler"), await open_bus("operator")
    held = asyncio.Event()

    async def never(question: ListNodes) -> NodesAnswer:
        held.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def nodes(question: ListNodes) -> NodesAnswer:
        return NodesAnswer(nodes=())

    await frozen.answer("scheduler", {ListNodes: never})
    while not held.is_set():  # who gets it is chance: until the frozen one got one
        asking = asyncio.ensure_future(client.ask(ListNodes(), NodesAnswer, timeout_s=20))
        await asyncio.wait_for(held.wait(), 5)
    await alive.answer("scheduler", {ListNodes: nodes})
    assert await asyncio.wait_for(asking, 25) == NodesAnswer(nodes=())


async def test_an_id_is_the_same_for_an_identity_and_another_s_is_another(open_bus: Open) -> None:
    scheduler, standby, node = await open_bus("scheduler"), await open_bus("scheduler"), await open_bus("node-x")
    name = "c-1/llmgw.evt.node.m.cordoned"
    assert scheduler.transport.message_id(name) == standby.transport.message_id(name)
    assert scheduler.transport.message_id(name) != node.transport.message_id(name)
    assert scheduler.transport.message_id(name) != scheduler.transport.message_id(name + "x")


async def test_a_node_speaks_for_itself_whatever_its_header_says(open_bus: Open) -> None:
    node, reader = await open_bus("node-gpu=2E07"), await open_bus("operator")
    got: list[Delivery] = []

    async def handle(delivery: Delivery) -> None:
        got.append(delivery)

    fact = MachineErrandEnded(
        at=NOW, machine_id="gpu.07", errand=1, kind="restart_agent", outcome="done", reason="as I was told"
    )
    await node.append(fact, cause="c", actor="ada")
    follower = await reader.follow("EVENTS", ["llmgw.evt.>"], handle)
    await follower.caught_up.wait()
    assert got[0].actor == "node-gpu=2E07"
    await follower.stop()


async def test_a_question_that_takes_long_is_worked_on_once_and_holds_up_no_other(open_bus: Open) -> None:
    service, client = await open_bus("scheduler"), await open_bus("operator")
    begun: list[ListNodes] = []
    done = asyncio.Event()

    async def nodes(question: ListNodes) -> NodesAnswer:
        begun.append(question)
        await done.wait()
        return NodesAnswer(nodes=())

    async def standing(question: SchedulerStanding) -> Standing:
        return Standing(instance="a", leads=False, position=0)

    await service.answer("scheduler", {ListNodes: nodes, SchedulerStanding: standing})
    asking = asyncio.ensure_future(client.ask(ListNodes(), NodesAnswer, timeout_s=20))
    asking_too = asyncio.ensure_future(client.ask(ListNodes(), NodesAnswer, timeout_s=20))
    await eventually(lambda: bool(begun))
    with pytest.raises(AskFailed):  # meanwhile it was put again several times
        await client.ask(ListNodes(), NodesAnswer, timeout_s=2)
    assert (await client.ask(SchedulerStanding(), Standing)).instance == "a"
    done.set()
    assert await asyncio.wait_for(asking, 5) == await asyncio.wait_for(asking_too, 5) == NodesAnswer(nodes=())
    assert await client.ask(ListNodes(), NodesAnswer) == NodesAnswer(nodes=())
    assert len(begun) == 2, "once for all who asked meanwhile, once for who asked afterwards"
