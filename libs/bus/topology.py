"""Streams, buckets and durable consumers, as data. Only ``ensure`` creates or changes them; services ``verify``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from .lease import TTL_S
from .nats_answers import NOT_FOUND, ApiRefused
from .nats_transport import NatsTransport
from .transport import BusAway, BusError, Misconfigured

log = logging.getLogger("llmgw.bus")

SECOND = 10**9
"""JetStream's durations are nanoseconds."""
MIB = 1024 * 1024


@dataclass(frozen=True)
class Stream:
    """One stream, as it should be."""

    name: str
    config: dict[str, Any] = field(hash=False)

    @property
    def sized(self) -> bool:
        """How much it holds is for whoever runs the cluster to say."""
        return self.name == "USAGE"

    @property
    def volatile(self) -> bool:
        """In memory: a server that restarts forgets that there ever was such a stream."""
        return bool(self.config["storage"] == "memory")


@dataclass(frozen=True)
class Consumer:
    """One durable consumer, as it should be."""

    durable: str
    stream: str
    subjects: tuple[str, ...]
    ack_wait_s: float = 30.0
    max_ack_pending: int = 1000

    @property
    def config(self) -> dict[str, Any]:
        """As JetStream's API takes it."""
        return {
            "durable_name": self.durable,
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "replay_policy": "instant",
            "ack_wait": int(self.ack_wait_s * SECOND),
            "max_deliver": -1,  # the worker parks what fails too often, with the reason
            "max_ack_pending": self.max_ack_pending,
            "filter_subjects": list(self.subjects),
        }


def _stream(name: str, subjects: list[str], **options: Any) -> Stream:
    config: dict[str, Any] = {
        "name": name,
        "subjects": subjects,
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "max_age": 0,
        "max_bytes": -1,
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "duplicate_window": 120 * SECOND,
        "allow_direct": True,
    }
    config |= options
    if config["max_age"]:
        config["duplicate_window"] = min(config["duplicate_window"], config["max_age"])
    return Stream(name, config)


def _bucket(name: str, **options: Any) -> Stream:
    return _stream(
        f"KV_{name}",
        [f"$KV.{name}.>"],
        max_msgs_per_subject=1,
        allow_rollup_hdrs=True,
        deny_delete=True,
        discard="new",
        **options,
    )


USAGE_BYTES = 4096 * MIB
"""What USAGE holds unless it is told otherwise, where the disk has that much: a day at 100 requests a second."""
LEAST_USAGE_BYTES = 64 * MIB
RECORD_BYTES = 430
"""One request in USAGE: 405 bytes in batches of 50, and something for long names."""

STREAMS: tuple[Stream, ...] = (
    # What changes state. No age limit: state is rebuilt from its beginning. Nobody may delete from it.
    _stream("EVENTS", ["llmgw.evt.>"], deny_delete=True, deny_purge=True),
    # Many facts; PostgreSQL keeps them for good. What it has not taken in is never dropped, however old: at its bound
    # the stream takes nothing more, and gateways' spools hold it. Accounting removes what the ledger has (room.py).
    _stream("USAGE", ["llmgw.use.>"], discard="new", max_bytes=USAGE_BYTES),
    # A command nobody took for an hour is no longer what its sender wants. At the bound a sender is told so.
    _stream(
        "COMMANDS",
        ["llmgw.cmd.>"],
        retention="workqueue",
        discard="new",
        max_age=3600 * SECOND,
        max_bytes=64 * MIB,
    ),
    # Prompts: in memory only, and gone after a minute whatever happens. At the bound the oldest go first: whoever asked
    # for a verdict on them has stopped waiting.
    _stream(
        "CHECKS",
        ["llmgw.chk.>"],
        retention="workqueue",
        storage="memory",
        max_age=60 * SECOND,
        max_bytes=256 * MIB,
    ),
    _stream(
        "TELEMETRY",
        ["llmgw.tel.>"],
        storage="memory",
        max_age=900 * SECOND,
        max_msgs_per_subject=5,
        max_bytes=256 * MIB,
    ),
    # Copies of what could not be handled, for a person to look at. The oldest go at the bound: that one more cannot be
    # kept must not hold up the rest. `llmgw status` says when it is half full.
    _stream("PARKED", ["llmgw.dlq.>"], max_bytes=64 * MIB),
    _bucket("routes"),
    _bucket("desired"),
    _bucket("nodes"),
    _bucket("models"),
    _bucket("keys"),
    _bucket("spend"),
    _bucket("prices"),
    _bucket("policies"),
    _bucket("library"),
    # An entry that is not renewed disappears: that is the lease.
    _bucket("leases", max_age=int(TTL_S * SECOND)),
)

CONSUMERS: dict[str, Consumer] = {
    consumer.durable: consumer
    for consumer in (
        # One command at a time: a decision is folded before the next is made. What a dead or frozen leader held comes
        # to the one that took over well before the sender stops waiting.
        Consumer("cmd-scheduler", "COMMANDS", ("llmgw.cmd.scheduler.>",), ack_wait_s=5.0, max_ack_pending=64),
        Consumer("cmd-accounting", "COMMANDS", ("llmgw.cmd.accounting.>",), ack_wait_s=5.0, max_ack_pending=64),
        Consumer("cmd-guard", "COMMANDS", ("llmgw.cmd.guard.>",), ack_wait_s=5.0, max_ack_pending=64),
        Consumer("cmd-mirror", "COMMANDS", ("llmgw.cmd.mirror.>",), ack_wait_s=5.0, max_ack_pending=64),
        # As many in flight as the ledger takes in one transaction. What a dead leader held comes again when its wait is
        # over, and newer ones enter before: until then nothing that was spent is published.
        Consumer("accounting-ledger", "USAGE", ("llmgw.use.>",), ack_wait_s=10.0, max_ack_pending=256),
        # A dead guard's work goes to another one within a second.
        Consumer("guard-checks", "CHECKS", ("llmgw.chk.>",), ack_wait_s=1.0, max_ack_pending=4096),
    )
}


def differences(wanted: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """What the server did not take as asked."""
    wrong = []
    for option, value in wanted.items():
        default: Any = [] if isinstance(value, list) else type(value)()
        got = present.get(option, default)
        if isinstance(value, list):
            single = present.get("filter_subject")
            got = got or ([single] if single and option == "filter_subjects" else [])
            value, got = sorted(value), sorted(got)
        if got != value:
            wrong.append(f"{option} is {got!r} instead of {value!r}")
    return wrong


TAKEN_S = 10.0
NO_ROOM = ("(10047)", "(10023)", "(10028)")
"""JetStream's codes for a bound it has no disk or memory for: the bounds of all streams are set aside together."""


class NoRoom(BusError):
    """What streams set aside is more than the server may use."""


SEEN_BY_NODES = ("KV_desired",)
"""What a node's agent needs to be there. It is created after EVENTS and TELEMETRY, which a node only writes to."""
KEEPERS: dict[str, str] = {"guard": "CHECKS", "scheduler": "TELEMETRY"}
"""Service to the volatile stream it makes again after a restart of the server: the one that reads it."""


@dataclass(frozen=True)
class Topology:
    """All that must be there."""

    streams: tuple[Stream, ...] = STREAMS
    consumers: tuple[Consumer, ...] = tuple(CONSUMERS.values())


NOW = Topology()


async def ensure(
    transport: NatsTransport,
    replicas: int | None = None,
    usage_bytes: int | None = None,
    most_usage_bytes: int = USAGE_BYTES,
    topology: Topology = NOW,
) -> list[str]:
    """Create or update everything; returns what was done.

    ``replicas``: servers that keep every stream. Without it as many as keep the log; one where there is no log yet.
    ``usage_bytes`` is what USAGE shall hold. Without it the stream keeps what it was told before; one made anew holds
    ``most_usage_bytes``, or less where the server has no room for that. Raises Misconfigured when the server did
    not take something, NoRoom when it has no room for it.
    """
    done: list[str] = []
    if replicas is None:
        log = await _info(transport, "STREAM.INFO.EVENTS") or {}
        replicas = int(log.get("num_replicas", 1))
    # The one that may be smaller takes what the others leave.
    for stream in sorted(topology.streams, key=lambda one: one.sized):
        config = stream.config | {"num_replicas": replicas}
        found = await _info(transport, f"STREAM.INFO.{stream.name}")
        if stream.sized:
            kept = most_usage_bytes if found is None else int(found["max_bytes"])
            config["max_bytes"] = usage_bytes or kept
        if found is not None and not differences(config, found):
            continue
        if stream.sized and found is None and usage_bytes is None:
            done.append(await _as_large_as_fits(transport, stream, config))
        else:
            done.append(await _set_stream(transport, stream, config, "CREATE" if found is None else "UPDATE"))
    for consumer in topology.consumers:
        found = await _info(transport, f"CONSUMER.INFO.{consumer.stream}.{consumer.durable}")
        if found is None or differences(consumer.config, found):
            done.append(await _set_consumer(transport, consumer))
    return done


async def _as_large_as_fits(transport: NatsTransport, stream: Stream, config: dict[str, Any]) -> str:
    while True:
        try:
            done = await _set_stream(transport, stream, config, "CREATE")
            return f"{done}, which holds {config['max_bytes'] // MIB} MiB"
        except NoRoom:
            if config["max_bytes"] <= LEAST_USAGE_BYTES:
                raise
            config["max_bytes"] = max(config["max_bytes"] // 2, LEAST_USAGE_BYTES)


async def restore(transport: NatsTransport, name: str) -> list[str]:
    """Create a volatile stream and its consumers where they are gone; what is there is left alone.

    Raises BusAway, Misconfigured and NoRoom as ``ensure`` does.
    """
    done: list[str] = []
    stream = next(stream for stream in STREAMS if stream.name == name)
    if await _info(transport, f"STREAM.INFO.{name}") is None:
        log = await _info(transport, "STREAM.INFO.EVENTS") or {}
        config = stream.config | {"num_replicas": log.get("num_replicas", 1)}
        done.append(await _set_stream(transport, stream, config, "CREATE"))
    for consumer in CONSUMERS.values():
        if consumer.stream == name and await _info(transport, f"CONSUMER.INFO.{name}.{consumer.durable}") is None:
            done.append(await _set_consumer(transport, consumer))
    return done


async def _info(transport: NatsTransport, call: str) -> dict[str, Any] | None:
    """The configuration of a stream or consumer; None when there is none."""
    try:
        found: dict[str, Any] = (await transport.api(call))["config"]
    except ApiRefused as error:
        if error.code not in NOT_FOUND:
            raise
        return None
    return found


async def _set_stream(transport: NatsTransport, stream: Stream, config: dict[str, Any], verb: str) -> str:
    try:
        await transport.api(f"STREAM.{verb}.{stream.name}", config)
    except BusAway as why:
        if any(sign in str(why) for sign in NO_ROOM):
            bound = config["max_bytes"] // MIB
            raise NoRoom(f"the bus has no room for the stream {stream.name} of {bound} MiB: {why}") from None
        raise
    await _taken(transport, f"stream {stream.name}", config, f"STREAM.INFO.{stream.name}")
    return f"{verb.lower()}d stream {stream.name}"


async def _set_consumer(transport: NatsTransport, consumer: Consumer) -> str:
    request = {"stream_name": consumer.stream, "config": consumer.config}
    await transport.api(f"CONSUMER.DURABLE.CREATE.{consumer.stream}.{consumer.durable}", request)
    info = f"CONSUMER.INFO.{consumer.stream}.{consumer.durable}"
    await _taken(transport, f"consumer {consumer.durable}", consumer.config, info)
    return f"set consumer {consumer.durable}"


async def _taken(transport: NatsTransport, what: str, wanted: dict[str, Any], info: str) -> None:
    """See that it is as it was asked for. Raises Misconfigured.

    The reply to a change holds what was before it, and three servers need a moment to agree.
    """
    deadline = time.monotonic() + TAKEN_S
    while True:
        wrong = differences(wanted, await _info(transport, info) or {})
        if not wrong:
            return
        if time.monotonic() > deadline:
            raise Misconfigured(f"{what}: the server did not take it as asked: {'; '.join(wrong)}")
        await asyncio.sleep(0.05)


async def missing(transport: NatsTransport, only: Collection[str] | None = None) -> list[str]:
    """What is not there or not as it should be, of all streams or of those named; empty: all is well.

    Volatile streams are their keepers' matter.
    """
    wrong: list[str] = []
    for stream in (stream for stream in STREAMS if not stream.volatile and (only is None or stream.name in only)):
        try:
            found = await transport.api(f"STREAM.INFO.{stream.name}")
        except ApiRefused:
            wrong.append(f"stream {stream.name} is missing")
            continue
        wanted = {option: value for option, value in stream.config.items() if option != "max_bytes" or not stream.sized}
        wrong += [f"stream {stream.name}: {text}" for text in differences(wanted, found["config"])]
    return wrong


async def verify(
    transport: NatsTransport, only: Collection[str] | None = None, waiting: Callable[[str], None] = lambda why: None
) -> None:
    """Wait until all streams, or those named, are there and as they should be; ``waiting`` is told for what."""
    told = ""
    while True:
        try:
            wrong = await missing(transport, only)
        except BusAway as error:
            wrong = [f"JetStream does not answer: {error}"]
        if not wrong:
            return
        if wrong[0] != told:
            told = wrong[0]
            more = f" and {len(wrong) - 1} more" if wrong[1:] else ""
            log.warning("waiting for `llmgw bus init`: %s%s", wrong[0], more)
            waiting(f"`llmgw bus init`: {wrong[0]}{more}")
        await asyncio.sleep(0.5)
