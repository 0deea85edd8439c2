"""``llmgw events …``: the log, read by people."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import click
import msgspec

from cli.cluster import Cluster, on_cluster
from cli.failure import Failed
from cli.past import events_until
from cli.times import PAST
from libs.bus import Delivery, Misconfigured
from libs.events.contract import Contract
from libs.events.policy import VerdictBatch
from libs.events.questions import SchedulerState, StateAnswer
from libs.events.sentences import sentence
from libs.events.subjects import plane
from libs.events.times import rfc3339
from services.entry import fold_events

TOLD = {"EVENTS": plane("evt"), "USAGE": plane("use")}
"""Streams the story is told from, and their subjects."""


class Told(msgspec.Struct, frozen=True):
    """One fact of the story."""

    time: datetime
    stream: str
    sequence: int
    tag: str
    sentence: str
    actor: str
    message: Contract


@click.group()
def events() -> None:
    """What happened."""


@events.command("tail")
@click.option("-n", "--lines", type=click.IntRange(0), default=20, show_default=True, help="Begin so many back.")
@click.option("--all", "everything", is_flag=True, help="Begin at the beginning of the log.")
@click.option("--no-follow", "ends", is_flag=True, help="End when everything that is there was told.")
@on_cluster
async def tail(cluster: Cluster, lines: int, everything: bool, ends: bool) -> None:
    """Tell what happens, one sentence for each fact. Verdicts that found nothing are left out."""
    waiting: list[Told] = []
    caught_up = asyncio.Event()

    async def tell(stream: str, delivery: Delivery) -> None:
        if isinstance(delivery.message, VerdictBatch) and not says_something(delivery.message):
            return
        told = Told(
            delivery.time,
            stream,
            delivery.sequence,
            delivery.tag,
            sentence(delivery.message),
            delivery.actor,
            delivery.message,
        )
        if caught_up.is_set():
            say(told)
        else:
            waiting.append(told)

    def say(told: Told) -> None:
        where = f"#{told.sequence}" if told.stream == "EVENTS" else f"{told.stream.lower()}#{told.sequence}"
        cluster.out.event(told, f"{rfc3339(told.time)} {where:>6}  {told.sentence}")

    followers = []
    for stream, subject in TOLD.items():

        async def handle(delivery: Delivery, stream: str = stream) -> None:
            await tell(stream, delivery)

        start = 0 if everything else max(0, await last_sequence(cluster, stream) - lines)
        followers.append(await cluster.bus.follow(stream, [subject], handle, start=start))
    for follower in followers:
        await follower.caught_up.wait()
    waiting.sort(key=lambda told: told.time)
    for told in waiting if everything or not lines else waiting[-lines:]:
        say(told)
    caught_up.set()
    if not ends:
        await asyncio.Event().wait()


def says_something(verdicts: VerdictBatch) -> bool:
    """Whether the guard found anything: where it did not, there is one for every request."""
    return any(record.findings or not record.allow for record in verdicts.records)


async def last_sequence(cluster: Cluster, stream: str) -> int:
    """The last sequence of a stream; 0 when it is empty."""
    info = await api(cluster, f"STREAM.INFO.{stream}")
    return int(info["state"]["last_seq"])


async def api(cluster: Cluster, call: str) -> dict[str, Any]:
    """A JetStream call. Raises Failed."""
    try:
        answer: dict[str, Any] = await cluster.bus.transport.api(call)  # type: ignore[attr-defined]
        return answer
    except Misconfigured as error:
        raise Failed(f"{error}: has `llmgw bus init` been run?") from None


@events.command("show")
@click.argument("sequence", type=click.IntRange(1))
@click.option("--stream", type=click.Choice(["EVENTS", "USAGE", "PARKED"]), default="EVENTS", show_default=True)
@on_cluster
async def show(cluster: Cluster, sequence: int, stream: str) -> None:
    """One message as it is on the log, with its headers."""
    raw = await cluster.bus.transport.message(stream, sequence)
    if raw is None:
        last = await last_sequence(cluster, stream)
        raise Failed(f"{stream} holds no message {sequence}: its last is {last}")
    message = msgspec.json.decode(raw.payload) if raw.payload else None
    value = {
        "stream": stream,
        "sequence": raw.sequence,
        "time": raw.time,
        "subject": raw.subject,
        "headers": dict(raw.headers),
        "message": message,
    }
    stored = f"  {rfc3339(raw.time)}" if raw.time is not None else ""
    lines = [f"{stream} #{raw.sequence}  {raw.subject}{stored}"]
    lines += [f"{name}: {text}" for name, text in raw.headers.items()]
    lines += ["", msgspec.json.format(msgspec.json.encode(message), indent=2).decode()]
    cluster.out.one(value, lines)


class Replayed(msgspec.Struct, frozen=True):
    """The state a fold of the log gives, beside the one a running leader has."""

    position: int
    hash: str
    leader_hash: str
    same: bool


@events.command("replay")
@click.option("--at", type=PAST, help="As of a time; nothing is compared then.")
@on_cluster
async def replay(cluster: Cluster, at: datetime | None) -> None:
    """Fold the log with the scheduler's core and compare the state with the running leader's.

    With --at: nodes and models as they were then.
    """
    if at is not None:
        past = fold_events(await events_until(cluster, await last_sequence(cluster, "EVENTS"), at))
        value = {"position": past.position, "hash": past.hash, "nodes": past.nodes(), "models": past.models()}
        said = f"as of {rfc3339(at)}, event #{past.position}: state {past.hash}"
        cluster.out.one(value, [*past.summary, said])
        return
    leader = await cluster.ask(SchedulerState(), StateAnswer)
    happened = await events_until(cluster, leader.position)
    found = fold_events(happened)
    result = Replayed(leader.position, found.hash, leader.hash, found.hash == leader.hash)
    lines = [
        *found.summary,
        f"{len(happened)} events up to #{leader.position} folded: state {found.hash}",
        f"{leader.instance} at the same position: state {leader.hash}",
    ]
    cluster.out.one(result, lines)
    if not result.same:
        raise Failed("the states differ: the leader holds something that is not in the log, or runs another version")
