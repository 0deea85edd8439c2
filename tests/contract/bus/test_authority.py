from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.bus import AskFailed, Authority, Bus, Snapshot
from libs.bus.delivery import MESSAGE_ID, REPLY, TYPE
from libs.bus.snapshot import Found
from libs.events import Event, Question, decode_as, state_hash, subject_of, tag_of
from libs.events.commands import CordonNode, Outcome, Problem, UncordonNode
from libs.events.node import NodeCordoned, NodeDrained, NodeUncordoned
from libs.events.questions import Examined, ExamineScheduler, ListNodes, SchedulerStanding, Standing
from libs.events.refusal import Refused
from libs.testing import eventually

from .conftest import Open


class State(msgspec.Struct):
    folded: int = 0
    """Events folded: one folded twice shows."""
    cordoned: dict[str, str] = {}
    drained: tuple[str, ...] = ()


def evolve(state: State, event: Event, position: int) -> State:
    state.folded += 1
    if isinstance(event, NodeCordoned):
        state.cordoned[event.machine_id] = event.reason
    elif isinstance(event, NodeUncordoned):
        state.cordoned.pop(event.machine_id, None)
    elif isinstance(event, NodeDrained):
        state.drained = (*state.drained, event.machine_id)
    return state


def decide(state: State, command: Any, command_id: str, now: datetime) -> Event | None:
    if isinstance(command, CordonNode):
        if command.machine_id == "bad":
            raise Refused([Problem(path="machine_id", message="is bad"), Problem(path="reason", message="is missing")])
        if command.machine_id in state.cordoned:
            return None
        return NodeCordoned(at=now, machine_id=command.machine_id, reason=command.reason)
    assert isinstance(command, UncordonNode)
    return NodeUncordoned(at=now, machine_id=command.machine_id)


def react(state: State, now: datetime) -> list[tuple[str, Event]]:
    """Drains what is cordoned for long: settled by its own event."""
    return [
        (f"{name}:drain", NodeDrained(at=now, machine_id=name))
        for name, reason in state.cordoned.items()
        if reason == "drain" and name not in state.drained
    ]


def authority(
    bus: Bus,
    instance: str,
    seen: list[int] | None = None,
    snapshot: Snapshot[State] | None = None,
    on_known: Callable[[], Awaitable[None]] | None = None,
    questions: Mapping[type[Question], Callable[[Any], Awaitable[Any]]] = {},
    owns: tuple[str, ...] = (),
) -> Authority[State]:
    async def on_change(state: State, position: int) -> None:
        if seen is not None:
            seen.append(position)

    return Authority(
        bus,
        "scheduler",
        instance,
        subjects=["llmgw.evt.node.>"],
        initial=State(),
        evolve=evolve,
        decide=decide,
        react=react,
        on_change=on_change,
        questions=lambda: questions,
        on_known=on_known,
        owns=owns,
        snapshot=snapshot,
    )


async def test_commands_are_decided_answered_and_reacted_to(open_bus: Open) -> None:
    bus, client = await open_bus("scheduler"), await open_bus("operator")
    positions: list[int] = []
    leader = authority(bus, "a", positions)
    await leader.start()
    done = await client.command(CordonNode(machine_id="m", reason="drain"), actor="ada")
    assert (done.status, done.event) == ("done", "node.cordoned.v1")
    assert positions[-1] >= (done.sequence or 0)  # the view is written before the answer
    assert (await client.command(CordonNode(machine_id="m"))).status == "unchanged"
    refused = await client.command(CordonNode(machine_id="bad"))
    assert refused.status == "refused"
    assert [p.path for p in refused.problems] == ["machine_id", "reason"]
    await eventually(lambda: leader.state.drained == ("m",))
    await leader.stop()


@pytest.mark.parametrize(("identity", "actor"), [("gateway", "ada"), ("operator", "operator"), ("guard", "guard")])
async def test_only_a_gateway_is_believed_that_a_command_is_for_another(
    open_bus: Open, identity: str, actor: str
) -> None:
    bus, client = await open_bus("scheduler"), await open_bus(identity)
    leader = authority(bus, "a")
    await leader.start()
    outcome = await client.command(CordonNode(machine_id="m"), actor="ada")
    assert outcome.sequence is not None
    stored = await bus.transport.message("EVENTS", outcome.sequence)
    assert stored is not None
    assert stored.headers["Llmgw-Actor"] == actor
    await leader.stop()


async def test_nothing_is_answered_before_the_log_is_read_to_its_end(open_bus: Open) -> None:
    bus, client = await open_bus("scheduler"), await open_bus("operator")
    for n in range(200):
        await bus.append(NodeCordoned(at=datetime.now(UTC), machine_id=f"m{n}"), cause=f"x:{n}")

    async def list_nodes(question: ListNodes) -> Examined:
        return Examined(problems=tuple(Problem(path=name, message="") for name in leader.state.cordoned))

    leader = authority(bus, "a", questions={ListNodes: list_nodes})
    asking = asyncio.ensure_future(client.ask(ListNodes(), Examined))
    await leader.start()
    assert len((await asking).problems) == 200
    await leader.stop()


async def test_a_service_that_cannot_open_ends(open_bus: Open) -> None:
    bus = await open_bus("scheduler")

    async def fails() -> None:
        raise OSError("no more files")

    leader = authority(bus, "a", on_known=fails)
    await leader.start()
    await asyncio.wait_for(bus.failed.wait(), 10)
    assert "no more files" in str(bus.failure)
    await leader.stop()


async def test_a_command_sent_again_is_carried_out_once(open_bus: Open) -> None:
    bus, client = await open_bus("scheduler"), await open_bus("operator")
    leader = authority(bus, "a")
    await leader.start()
    first = await client.command(UncordonNode(machine_id="m"), command_id="c-1")
    # Past the server's own memory of ids, as a redelivery after minutes would be.
    leader_position = leader.position
    again = await leader._carry_out(await _command_again(client, "c-1"), "c-1")
    assert again.sequence == first.sequence
    assert leader.position == leader_position
    await leader.stop()


async def _command_again(client: Bus, command_id: str) -> Any:
    from libs.bus.delivery import Delivery
    from libs.bus.transport import RawMessage
    from libs.events import encode

    command = UncordonNode(machine_id="m")
    return Delivery.of(RawMessage(subject_of(command), encode(command), {"Nats-Msg-Id": command_id}))


async def test_a_standby_holds_the_same_state_and_takes_over_when_the_leader_stops(open_bus: Open) -> None:
    first, second, client = await open_bus("scheduler"), await open_bus("scheduler"), await open_bus("operator")
    leader, standby = authority(first, "a"), authority(second, "b")
    await leader.start()
    await eventually(lambda: leader.leading)
    await standby.start()
    for name in "xyz":
        await client.command(CordonNode(machine_id=name))
    await eventually(lambda: standby.position == leader.position)
    assert state_hash(standby.state) == state_hash(leader.state)
    assert not standby.leading
    await leader.stop()
    await eventually(lambda: standby.leading, deadline_s=3)
    assert (await client.command(CordonNode(machine_id="w"))).status == "done"
    await standby.stop()


async def test_a_deposed_leader_notices_by_the_fence_and_its_command_is_carried_out_by_the_newer(
    open_bus: Open,
) -> None:
    first, second, client = await open_bus("scheduler"), await open_bus("scheduler"), await open_bus("operator")
    # The same instance name lets the second take the lease at once: two leaders for a moment.
    older, newer = authority(first, "a"), authority(second, "a")
    await older.start()
    await eventually(lambda: older.leading)
    await newer.start()
    await eventually(lambda: newer.leading)
    outcomes = await asyncio.gather(*(client.command(CordonNode(machine_id=f"m{i}")) for i in range(20)))
    assert {o.status for o in outcomes} == {"done"}
    await eventually(lambda: not older.leading)
    await eventually(lambda: len(newer.state.cordoned) == 20)
    assert len({o.sequence for o in outcomes}) == 20
    await older.stop()
    await newer.stop()


async def test_commands_can_be_examined_without_being_sent(open_bus: Open) -> None:
    from libs.events import encode

    bus = await open_bus("scheduler")
    leader = authority(bus, "a")
    await leader.start()
    await eventually(lambda: leader.leading)

    def examined(command: str, *after: str) -> Examined:
        return leader.examine(ExamineScheduler(command=command, after=after))

    bad, good = (encode(CordonNode(machine_id=name)).decode() for name in ("bad", "good"))
    assert examined(bad).problems[0].path == "machine_id"
    assert examined(good) == Examined()
    assert examined(good, good) == Examined(unchanged=True)  # as it would be after the first of the two
    assert examined(good, bad, "nonsense") == Examined()
    assert "no contract" in examined('{"type": "x.y.v1"}').problems[0].message
    assert leader.state.cordoned == {}
    await leader.stop()


async def test_many_commands_examined_after_each_other_copy_the_state_once(
    open_bus: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from libs.events import encode

    copies: list[int] = []

    def copied(state: State) -> State:
        copies.append(state.folded)
        return deepcopy(state)

    monkeypatch.setattr("libs.bus.examiner.copy.deepcopy", copied)
    bus = await open_bus("scheduler")
    leader = authority(bus, "a")
    await leader.start()
    await eventually(lambda: leader.leading)
    names = [f"m{i}" for i in range(50)]
    texts = [encode(CordonNode(machine_id=name)).decode() for name in names]

    def examined() -> list[bool]:
        """Each after all before it, and again after itself."""
        answers = []
        for number, text in enumerate(texts):
            for after in (texts[:number], texts[: number + 1]):
                answers.append(leader.examine(ExamineScheduler(command=text, after=tuple(after))).unchanged)
        return answers

    assert examined() == [False, True] * len(texts)
    assert len(copies) == 1
    client = await open_bus("operator")
    await client.command(CordonNode(machine_id="m7"))
    assert examined() == [name == "m7" or again for name in names for again in (False, True)]
    assert len(copies) == 2
    assert leader.state.cordoned == {"m7": ""}
    await leader.stop()


def test_the_memory_of_commands_outlasts_the_stream_they_wait_in() -> None:
    from libs.bus.folded_state import REMEMBER
    from libs.bus.topology import SECOND, STREAMS

    commands = next(s for s in STREAMS if s.name == "COMMANDS")
    assert timedelta(seconds=commands.config["max_age"] / SECOND) < REMEMBER


async def test_a_start_from_a_snapshot_comes_to_the_same_state_as_one_without(
    open_bus: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("libs.bus.folded_state.SNAPSHOT_EVERY", 7)
    bus, client = await open_bus("scheduler"), await open_bus("operator")

    def kept(instance: str) -> Authority[State]:
        snapshot = Snapshot(tmp_path / "state.json", State)
        return authority(bus, instance, snapshot=snapshot)

    first = kept("a")
    await first.start()
    for i in range(10):
        await client.command(CordonNode(machine_id=f"m{i}"), command_id=f"c-{i}")
    await first.stop()
    late = (await client.transport.extent("EVENTS")).last
    restored, fresh = kept("b"), authority(bus, "c")
    await restored.start()
    await eventually(lambda: restored.leading)
    await fresh.start()
    await eventually(lambda: fresh.position == restored.position > late)
    assert state_hash(restored.state) == state_hash(fresh.state)
    assert len(restored.state.cordoned) == 10
    again = await restored._carry_out(await _command_again(client, "c-3"), "c-3")
    assert again.event == "node.cordoned.v1"  # what was done before the snapshot is remembered too
    await restored.stop()
    await fresh.stop()


async def test_a_snapshot_of_other_code_another_log_or_with_a_broken_file_is_not_used(tmp_path: Path) -> None:
    import services.guard.core

    path = tmp_path / "state.json"
    snapshot = Snapshot(path, State)
    snapshot.write(snapshot.packed("stream-1", 5, "c-1", State(drained=("m",)), {}))
    assert Snapshot(path, State).load("stream-1", 5) == Found(State(drained=("m",)), 5, "c-1", {})
    assert Snapshot(path, State).load("stream-1", 4) is None  # ahead of the log
    assert Snapshot(path, State).load("stream-2", 5) is None
    assert Snapshot(path, State, services.guard.core).load("stream-1", 5) is None
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'["m"]', b'["x"]'))  # changed, and still one that can be read
    assert Snapshot(path, State).load("stream-1", 5) is None
    path.write_bytes(whole[:-9])
    assert Snapshot(path, State).load("stream-1", 5) is None
    path.write_bytes(whole)
    assert Snapshot(path, State).load("stream-1", 5) is not None
    path.write_bytes(b"")
    assert Snapshot(path, State).load("stream-1", 5) is None


@pytest.mark.parametrize("disk", ["sound", "read only"])
async def test_a_snapshot_of_a_log_that_went_on_differently_is_not_used(
    open_bus: Open, tmp_path: Path, disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after it was put back from a copy: the same stream, long enough, and another event stands there."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    bus, client = await open_bus("scheduler"), await open_bus("operator")
    leader = authority(bus, "a")
    await leader.start()
    await client.command(CordonNode(machine_id="m"))
    stream, last, _ = await bus.transport.extent("EVENTS")
    snapshot = Snapshot(tmp_path / "state.json", State)
    snapshot.write(snapshot.packed(stream, last, "c-other/llmgw.evt.node.x.cordoned", State(drained=("x",)), {}))
    if disk == "read only":
        monkeypatch.setattr("libs.bus.snapshot.Path.unlink", refuse)
        monkeypatch.setattr("libs.bus.snapshot.os.open", refuse)
    standby = authority(bus, "b", snapshot=snapshot)
    await standby.start()
    await eventually(lambda: standby.caught_up)
    assert standby.state == leader.state
    await standby.stop()
    await leader.stop()


async def _unknown_event(bus: Bus) -> None:
    """As a newer version would write it."""
    await _store(bus, "node.frobnicated.v1", b'{"type":"node.frobnicated.v1"}')


async def _event_of_another_shape(bus: Bus) -> None:
    """As a newer version would write it that widened a field."""
    payload = b'{"type":"node.drained.v1","at":"2026-01-01T00:00:00Z","machine_id":"m","force":"if idle"}'
    await _store(bus, tag_of(NodeDrained), payload)


async def _store(bus: Bus, tag: str, payload: bytes) -> None:
    subject = f"llmgw.evt.node.m.{tag.split('.')[1]}"
    await bus.transport.store(subject, payload, {"Nats-Msg-Id": f"c-new/{subject}", "Llmgw-Type": tag})


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (_unknown_event, "node.m.frobnicated at 4, which this version cannot read (no contract is registered"),
        (_event_of_another_shape, "node.m.drained at 4, which this version cannot read (NodeDrained: Expected `bool`"),
    ],
)
async def test_one_that_cannot_read_its_own_log_does_not_lead_folds_nothing_beyond_and_says_why(
    open_bus: Open, tmp_path: Path, write: Callable[[Bus], Awaitable[None]], why: str
) -> None:
    bus, client = await open_bus("scheduler"), await open_bus("operator")
    snapshot = Snapshot[State](tmp_path / "state.json", State)
    answered: list[Question] = []
    told: list[str] = []

    async def list_nodes(question: ListNodes) -> Examined:
        answered.append(question)
        return Examined()

    async def stopped() -> None:
        told.append("it works with the state no more")

    def started() -> Authority[State]:
        one = authority(bus, "a", snapshot=snapshot, owns=("node",), questions={ListNodes: list_nodes})
        one._on_unreadable = stopped
        return one

    leader = started()
    await leader.start()
    await client.command(CordonNode(machine_id="m"))
    await client.command(CordonNode(machine_id="n"))
    assert await client.ask(ListNodes(), Examined) == Examined()
    read, folded = leader.position, leader.state.folded
    await write(bus)
    await eventually(lambda: not leader.leading and bool(told))
    await bus.append(NodeDrained(at=datetime.now(UTC), machine_id="n"), cause="after it")
    last = (await bus.transport.extent("EVENTS")).last
    await eventually(lambda: leader._log._follower is not None and leader._log._follower.position == last)
    assert (leader.position, leader.state.folded, leader.state.drained) == (read, folded, ())
    await leader.stop()
    kept = snapshot.load((await bus.transport.extent("EVENTS")).epoch, last)
    assert kept is None or kept.position <= read

    again = started()
    await again.start()
    await eventually(lambda: again.caught_up)
    refused = await asyncio.wait_for(client.command(CordonNode(machine_id="o")), 5)
    assert refused.status == "refused"
    assert why in refused.problems[0].message
    standing = await client.ask(SchedulerStanding(), Standing)
    assert (standing.instance, standing.leads, standing.position) == ("a", False, read)
    assert why in standing.problems[-1]
    with pytest.raises(AskFailed, match="start a scheduler as new as the one that wrote it"):
        await client.ask(ListNodes(), Examined)
    assert len(answered) == 1
    await again.stop()


async def test_questions_are_left_to_an_instance_that_can_read_the_log(open_bus: Open) -> None:
    first, second, client = await open_bus("scheduler"), await open_bus("scheduler"), await open_bus("operator")

    async def list_nodes(question: ListNodes) -> Examined:
        return Examined(unchanged=True)

    await _unknown_event(first)
    older = authority(first, "older", owns=("node",), questions={ListNodes: list_nodes})
    newer = authority(second, "newer", questions={ListNodes: list_nodes})
    await older.start()
    await newer.start()
    await eventually(lambda: newer.leading)
    for _ in range(4):
        assert await client.ask(ListNodes(), Examined) == Examined(unchanged=True)
    await older.stop()
    await newer.stop()


async def test_an_event_that_is_skipped_at_the_end_of_the_log_does_not_make_the_log_look_another(
    open_bus: Open, tmp_path: Path
) -> None:
    bus, client = await open_bus("scheduler"), await open_bus("operator")
    snapshot = Snapshot[State](tmp_path / "state.json", State)
    leader = authority(bus, "a", snapshot=snapshot)
    await leader.start()
    await client.command(CordonNode(machine_id="m"))
    await _unknown_event(bus)  # of somebody else, newer than this one
    last = (await bus.transport.extent("EVENTS")).last
    await eventually(lambda: leader.position == last)
    await leader.stop()

    again = authority(bus, "a", snapshot=snapshot)
    await again.start()
    assert snapshot.dropped(datetime.now(UTC)) == ""
    assert again.state.folded == leader.state.folded, "it began with its snapshot"
    await again.stop()


async def test_who_cannot_lead_leaves_commands_to_one_that_can(open_bus: Open) -> None:
    first, second, client = await open_bus("scheduler"), await open_bus("scheduler"), await open_bus("operator")
    await _unknown_event(first)
    older, newer = authority(first, "older", owns=("node",)), authority(second, "newer")  # owns nothing it cannot read
    await older.start()
    await eventually(lambda: bool(older.not_ready()))
    assert (await client.command(CordonNode(machine_id="m"))).status == "refused"
    await newer.start()
    await eventually(lambda: newer.leading)
    outcomes = [await client.command(CordonNode(machine_id=f"m{n}")) for n in range(10)]
    assert {one.status for one in outcomes} == {"done"}
    await older.stop()
    await newer.stop()


@pytest.mark.parametrize(
    ("tag", "change", "why"),
    [
        ("cmd.scheduler.cordon_node.v99", {}, "no contract is registered for the tag 'cmd.scheduler.cordon_node.v99'"),
        ("cmd.scheduler.cordon_node.v1", {"reason": 5}, "Expected `str`, got `int` - at `$.reason`"),
    ],
)
async def test_a_command_the_owner_cannot_read_is_refused_at_once(
    open_bus: Open, tag: str, change: dict[str, Any], why: str
) -> None:
    """Its sender is newer: an unknown tag, or a value the owner does not know."""
    bus, operator = await open_bus("scheduler"), await open_bus("operator")
    leader = authority(bus, "s1")
    await leader.start()
    await eventually(lambda: leader.leading)
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    command = CordonNode(machine_id="n1", reason="x")
    headers = {MESSAGE_ID: "c-1", TYPE: tag, REPLY: await operator.inbox(heard.put)}
    payload = msgspec.json.encode(msgspec.to_builtins(command) | {"type": tag} | change)
    await operator.transport.store(subject_of(command), payload, headers)
    async with asyncio.timeout(5):
        outcome = decode_as(Outcome, await heard.get())
    assert (outcome.command_id, outcome.status) == ("c-1", "refused")
    assert outcome.message.startswith(f"scheduler cannot read the command {tag}: ")
    assert why in outcome.message
    assert outcome.message.endswith("It is older than what sent the command: update scheduler, then send it again")
    assert await bus.transport.last("PARKED", "llmgw.dlq.COMMANDS.cmd-scheduler") is not None
    await leader.stop()
