"""What the bus needs from a message system. NATS JetStream provides it; so does a twin in memory.

Everything above this line (append, follow, work, views, leases, commands, questions) is written once, against
this interface, and passes the same contract tests over both.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

Headers = Mapping[str, str]

START_NEW = "new"
START_LAST = "last"
"""The last message of every subject, then what comes."""

Start = int | str
"""Where a reader starts: after this sequence (0: at the beginning), or one of the two words above."""


class BusError(Exception):
    """Something of the bus went wrong."""


class BusAway(BusError):
    """The bus cannot be reached, or cannot do its work now. May be tried again; what was tried may have been done."""


class Full(BusAway):
    """A stream is at its bound and takes nothing more, or the disk under it is full. It has room again later."""


class TooLarge(BusError):
    """A message is over what the bus takes: it can never be sent."""


class WrongSequence(BusError):
    """The expectation about the last sequence did not hold: somebody else was first."""


class ReaderLost(BusError):
    """A gap: what was being read must be opened again."""


class WentBack(BusError):
    """A stream is not the one that was read so far, but made anew or put back from a copy. What was read is void."""


class Misconfigured(BusError):
    """A stream, bucket or consumer is missing or is not what the topology says, or the server is too old."""


class AskFailed(BusError):
    """A question was not answered; the text says why and is safe to show."""


class NotLeader(BusError):
    """The fence held: somebody newer leads."""


class Unanswered(BusError):
    """A command is logged, but no outcome came in time. It is carried out when its owner is back."""


@dataclass(slots=True, frozen=True)
class RawMessage:
    """A message as it came."""

    subject: str
    payload: bytes
    headers: Headers
    sequence: int = 0
    """In its stream; 0 when it came from none."""
    time: datetime | None = None
    pending: int = 0
    """How many more wait behind it for this reader."""
    count: int = 0
    """The consumer's own count of what it delivered: rises by one, or there is a gap."""
    delivered: int = 1
    """How often it was delivered to this consumer, this time included."""
    reply: str = ""
    """Where an acknowledgement goes."""

    @property
    def mark(self) -> str:
        """What no other message has that ever stands at this place of the stream, should the stream go back: ids are
        made of causes, which may come about again, but not at the same microsecond."""
        return f"{self.headers.get('Nats-Msg-Id', self.subject)} {self.time.isoformat() if self.time else ''}"


@dataclass(slots=True)
class Expectation:
    """What must be the last sequence on a subject for a message to be stored."""

    sequence: int
    subject: str | None = None
    """None: the subject published to."""


class Extent(NamedTuple):
    """Which stream it is, and how far it goes."""

    epoch: str
    """When it was created: tells it from another of its name."""
    last: int
    """Its last sequence."""
    replicas: int = 1


class Progress(NamedTuple):
    """How far work through a durable consumer is, in sequences of its stream."""

    done: int
    """Every message up to here was acknowledged."""
    handed_out: int
    """No message beyond was handed out. What was and is not acknowledged comes again."""


class Room(NamedTuple):
    """What a stream holds, and may hold."""

    bytes: int
    bound: int
    """At most so many bytes; -1: as many as the disk takes."""
    first: int
    """Sequence of the oldest message; one more than the last where there is none."""
    last: int


class Reader(Protocol):
    """Messages of one consumer, one after another."""

    pending: int
    """How many messages waited when it was opened."""

    @property
    def lost(self) -> bool:
        """Whether it must be opened again, as after every reconnect."""
        ...

    async def next(self, timeout_s: float) -> RawMessage | None:
        """The next message, or None when none came in time. Raises ReaderLost at any gap."""
        ...

    def at_hand(self, most: int) -> list[RawMessage]:
        """What has already arrived, without waiting. Raises ReaderLost at a gap."""
        ...

    async def close(self) -> None:
        """Read no more. What a durable consumer handed out and nobody took goes to another at once."""
        ...


@dataclass(slots=True)
class Reply:
    """An answer to a question; ``error`` is safe to show."""

    payload: bytes = b""
    error: str | None = None
    elsewhere: bool = False
    """Another instance may be able to answer; ``error`` says why this one is not."""


Handler = Callable[[bytes], Awaitable[None]]
Answerer = Callable[[bytes], Awaitable[Reply]]


class Stop(Protocol):
    """Ends what was begun."""

    async def __call__(self) -> None: ...


class Transport(Protocol):
    """One connection to a message system, under an identity."""

    identity: str

    @property
    def connected(self) -> bool:
        """Whether messages can be sent now."""
        ...

    def message_id(self, name: str) -> str:
        """The id of a message called ``name``: the same for every instance of this identity, and foreseen by no other.

        The server drops a message whose id it knows, whoever used it and wherever. An id that others could foresee
        would let them have our message taken for a repetition of theirs.
        """
        ...

    async def publish(self, subject: str, payload: bytes, headers: Headers | None = None) -> None:
        """Send without waiting for anything. Raises BusAway when not connected, TooLarge."""
        ...

    async def store(
        self, subject: str, payload: bytes, headers: Headers, expect: Expectation | None = None, timeout_s: float = 2.0
    ) -> int:
        """Store in the stream that takes the subject; returns the sequence. Raises BusAway, TooLarge, WrongSequence."""
        ...

    async def last(self, stream: str, subject: str) -> RawMessage | None:
        """The last message of a subject, or of all that a pattern covers, read from the stream's leader; None where
        there is none. Raises BusAway."""
        ...

    async def message(self, stream: str, sequence: int) -> RawMessage | None:
        """What a stream has at a sequence; None where it has nothing there, or no more. Raises BusAway."""
        ...

    async def last_here(self, stream: str, subject: str) -> RawMessage | None:
        """The last message of a subject, from any replica, which may be behind the others. Who may read single subjects
        of a stream only can ask for no more. Raises BusAway."""
        ...

    async def extent(self, stream: str) -> Extent:
        """As its leader has it. Raises BusAway, also where that leader hears no majority of its replicas."""
        ...

    async def read(self, stream: str, subjects: Sequence[str], start: Start) -> Reader:
        """Read in order without acknowledging; no subjects: all of the stream. Raises BusAway."""
        ...

    async def pull(self, stream: str, durable: str, batch: int) -> Reader:
        """Read from a durable consumer, at most ``batch`` on their way; each must be acknowledged. Raises BusAway."""
        ...

    async def progress(self, stream: str, durable: str) -> Progress:
        """Raises BusAway."""
        ...

    async def room(self, stream: str) -> Room:
        """Raises BusAway."""
        ...

    async def drop(self, stream: str, before: int) -> None:
        """Remove every message with a lower sequence. Raises BusAway."""
        ...

    async def ack(self, message: RawMessage) -> None:
        """It was dealt with. Lost when not connected: then it comes again."""
        ...

    async def nak(self, message: RawMessage, delay_s: float) -> None:
        """It is to come again, after a delay."""
        ...

    async def term(self, message: RawMessage, reason: str) -> None:
        """It is to come no more; ``reason`` is for the server's advisories."""
        ...

    async def working(self, message: RawMessage) -> None:
        """It is being worked on: its time to be acknowledged begins anew."""
        ...

    def new_inbox(self) -> str:
        """A subject for answers that only this identity may listen to."""
        ...

    async def subscribe(self, subject: str, handler: Callable[[RawMessage], Awaitable[None]]) -> Stop:
        """Hear what is sent on a subject or pattern from now on. What ``handler`` raises is logged."""
        ...

    async def request(self, subject: str, payload: bytes, headers: Headers, timeout_s: float) -> Reply:
        """Raises BusAway when nobody answers."""
        ...

    async def serve(self, name: str, version: str, endpoints: Mapping[str, Answerer]) -> Stop:
        """Answer questions on the subjects of ``endpoints``, which instances of a ``name`` share among them."""
        ...

    async def close(self) -> None:
        """Give up what is being answered and read, send what is still to be sent, and leave."""
        ...


def keyed_id(key: bytes, name: str) -> str:
    """``message_id`` under a secret of the identity."""
    return hmac.new(key, name.encode(), hashlib.sha256).hexdigest()[:32]


@dataclass(slots=True)
class Link:
    """The state of the connection, as its callbacks saw it."""

    connected: bool = False
    epoch: int = 0
    """Rises with every reconnect."""
    connected_since: float = 0.0
    """Monotonic seconds."""
    problems: list[str] = field(default_factory=list)
