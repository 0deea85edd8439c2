"""``llmgw event …``: the log, read by people."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import click
import msgspec

from cli.cluster import Cluster, on_cluster, until_interrupted
from cli.failure import Failed
from cli.log import events_until, last_sequence
from cli.numbers import Whole
from cli.times import PAST
from libs.bus import Delivery
from libs.events.contract import Contract
from libs.events.policy import VerdictBatch
from libs.events.questions import SchedulerState, StateAnswer
from libs.events.sentences import sentence
from libs.events.subjects import plane
from libs.events.times import rfc3339
from services.entry import fold_events

STREAMS = {"EVENTS": plane("evt"), "USAGE": plane("use")}
"""Streams that are told from, and their subjects."""
LINES = 20
"""How many events back the telling begins, unless asked otherwise."""


class Fact(msgspec.Struct, frozen=True):
    """Something that happened, with its sentence."""

    time: datetime
    stream: str
    sequence: int
    tag: str
    sentence: str
    actor: str
    message: Contract


@click.group()
def event() -> None:
    """Events: what happened, in sentences and as it is on the log."""


def one_beginning(ctx: click.Context, param: click.Parameter, value: int | bool | None) -> int | bool | None:
    """Callback of ``-n`` and ``--all``. Raises UsageError where both are given."""
    before = ctx.params.get("everything" if param.name == "lines" else "lines")
    if all(given is not None and given is not False for given in (before, value)):
        raise click.UsageError("-n and --all contradict each other: give one of them", ctx)
    return value


def begin_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``-n`` and ``--all``: where in the log to begin."""
    for option in (
        click.option(
            "--all", "everything", is_flag=True, callback=one_beginning, help="Begin at the beginning of the log."
        ),
        click.option(
            "-n", "--lines", type=Whole(0), callback=one_beginning, help=f"Begin so many back.  [default: {LINES}]"
        ),
    ):
        function = option(function)
    return function


@event.command("list")
@begin_options
@on_cluster
async def list_events(cluster: Cluster, lines: int | None, everything: bool) -> None:
    """What happened, a sentence for each fact. Verdicts that found nothing are left out."""
    await tell(cluster, lines, everything)


@event.command("tail")
@begin_options
@click.option("--no-follow", is_flag=True, hidden=True)
@until_interrupted
@on_cluster
async def tail(cluster: Cluster, lines: int | None, everything: bool, no_follow: bool) -> None:
    """What happened, and then what happens, as it happens, until Ctrl-C."""
    await tell(cluster, lines, everything)
    if not no_follow:
        await asyncio.Event().wait()


async def tell(cluster: Cluster, lines: int | None, everything: bool) -> None:
    """Print what is on the log; what comes later is printed as it comes, for as long as the command runs."""
    lines = LINES if lines is None else lines
    waiting: list[Fact] = []
    caught_up = asyncio.Event()

    async def handle(stream: str, delivery: Delivery) -> None:
        if isinstance(delivery.message, VerdictBatch) and not says_something(delivery.message):
            return
        fact = Fact(
            delivery.time,
            stream,
            delivery.sequence,
            delivery.tag,
            sentence(delivery.message),
            delivery.actor,
            delivery.message,
        )
        if caught_up.is_set():
            show(fact)
        else:
            waiting.append(fact)

    def show(fact: Fact) -> None:
        where = f"#{fact.sequence}" if fact.stream == "EVENTS" else f"{fact.stream.lower()}#{fact.sequence}"
        cluster.out.event(fact, f"{rfc3339(fact.time)} {where:>6}  {fact.sentence}")

    followers = []
    for stream, subject in STREAMS.items():
        start = 0 if everything else max(0, await last_sequence(cluster, stream) - lines)
        followers.append(await cluster.bus.follow(stream, [subject], partial(handle, stream), start=start))
    for follower in followers:
        await follower.caught_up.wait()
    waiting.sort(key=lambda fact: fact.time)
    for fact in waiting if everything or not lines else waiting[-lines:]:
        show(fact)
    caught_up.set()


def says_something(verdicts: VerdictBatch) -> bool:
    """Whether the guard found anything: where it did not, there is one for every request."""
    return any(record.findings or not record.allow for record in verdicts.records)


@event.command("show")
@click.argument("sequence", type=Whole(1))
@click.option(
    "--stream", type=click.Choice(["EVENTS", "USAGE", "PARKED"]), default="EVENTS", show_default=True,
    help="Where it is; PARKED: messages that could not be handled.",
)  # fmt: skip
@on_cluster
async def show_event(cluster: Cluster, sequence: int, stream: str) -> None:
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
    cluster.out.result(value, lines)


class Replayed(msgspec.Struct, frozen=True):
    """The state a fold of the log gives, beside the one a running leader has."""

    position: int
    hash: str
    leader_hash: str
    same: bool


@event.command("replay")
@click.option("--at", type=PAST, help="As of a time; nothing is compared then.")
@on_cluster
async def replay(cluster: Cluster, at: datetime | None) -> None:
    """Fold the log with the scheduler's core and compare the state with the running leader's.

    With --at: nodes and models as they were then.
    """
    if at is not None:
        past = fold_events(await events_until(cluster, await last_sequence(cluster, "EVENTS"), at))
        value = {"position": past.position, "hash": past.hash, "nodes": past.nodes(), "models": past.models()}
        state = f"as of {rfc3339(at)}, event #{past.position}: state {past.hash}"
        cluster.out.result(value, [*past.summary, state])
        return
    leader = await cluster.ask(SchedulerState(), StateAnswer)
    happened = await events_until(cluster, leader.position)
    fold = fold_events(happened)
    result = Replayed(leader.position, fold.hash, leader.hash, fold.hash == leader.hash)
    lines = [
        *fold.summary,
        f"{len(happened)} events up to #{leader.position} folded: state {fold.hash}",
        f"{leader.instance} at the same position: state {leader.hash}",
    ]
    cluster.out.result(result, lines)
    if not result.same:
        raise Failed("the states differ: the leader holds something that is not in the log, or runs another version")
