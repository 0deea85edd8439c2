"""A message as a handler sees it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from libs.events import BadPayload, Command, Contract, decode, decode_token, encode_token, subject_of, tag_of

from .identities import NAME_OTHERS, OPERATOR
from .transport import Headers, RawMessage

TYPE = "Llmgw-Type"
ACTOR = "Llmgw-Actor"
CAUSE = "Llmgw-Cause"
REPLY = "Llmgw-Reply"
MESSAGE_ID = "Nats-Msg-Id"
NODE_FACTS = ("machine", "shard")
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def check_subject(message: Contract, subject: str) -> None:
    """Raises BadPayload for a message that stands on another subject than its own.

    The server lets every identity publish on its own subjects only. That is worth something because nothing is
    believed that belongs elsewhere: a node cannot say what only the scheduler says, nor speak for another node.
    """
    try:
        own = subject_of(message)
    except ValueError as error:
        raise BadPayload(f"{tag_of(message)}: {error}") from None
    publisher = subject.removeprefix(f"{own}.") if isinstance(message, Command) else subject
    if own != subject and (publisher == subject or "." in publisher):
        raise BadPayload(f"{tag_of(message)} stands on {subject} and not on {own}")


def command_subject(command: Command, publisher: str) -> str:
    """Where an identity publishes a command: the operator on its own subject, every other on one with its name."""
    own = subject_of(command)
    return own if publisher == OPERATOR else f"{own}.{encode_token(publisher)}"


def publisher_of(command: Command, subject: str) -> str:
    """The identity that published a command there."""
    named = subject.removeprefix(subject_of(command)).removeprefix(".")
    return decode_token(named) if named else OPERATOR


@dataclass(slots=True, frozen=True)
class Delivery:
    """A message, decoded, with what the bus says of it."""

    message: Contract
    raw: RawMessage

    @classmethod
    def of(cls, raw: RawMessage) -> Delivery:
        """Decode. Raises UnknownTag, BadPayload."""
        message = decode(raw.payload, raw.headers.get(TYPE))
        check_subject(message, raw.subject)
        return cls(message, raw)

    @property
    def tag(self) -> str:
        """Of the contract it was decoded as, which may be newer than the one that was sent."""
        tag = self.message.__struct_config__.tag
        return str(tag)

    @property
    def subject(self) -> str:
        """What it stands on."""
        return self.raw.subject

    @property
    def payload(self) -> bytes:
        """As it came."""
        return self.raw.payload

    @property
    def sequence(self) -> int:
        """In its stream; 0 when it came from none."""
        return self.raw.sequence

    @property
    def headers(self) -> Headers:
        """As they came; names as in this module."""
        return self.raw.headers

    @property
    def time(self) -> datetime:
        """When the server stored it."""
        return self.raw.time or LONG_AGO

    @property
    def cause(self) -> str:
        """Id of the command or message it followed from; empty where its sender gave none."""
        return self.raw.headers.get(CAUSE, "")

    @property
    def actor(self) -> str:
        """Who did it, or wants it, as far as the server vouches for that.

        It lets each identity publish on its own subjects only, and a header says what its writer likes. A node speaks
        for itself. Of a command the subject says who published it; who may name others checked them himself.
        """
        named = self.raw.headers.get(ACTOR, "")
        tokens = self.raw.subject.split(".")
        if isinstance(self.message, Command):
            publisher = publisher_of(self.message, self.raw.subject)
            return (named or publisher) if publisher in NAME_OTHERS else publisher
        if tokens[1] == "evt" and tokens[2] in NODE_FACTS:
            return f"node-{tokens[3]}"
        return named
