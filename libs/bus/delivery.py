"""A message as a handler sees it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from libs.events import BadPayload, Contract, decode, subject_of, tag_of

from .transport import Headers, RawMessage

TYPE = "Llmgw-Type"
ACTOR = "Llmgw-Actor"
CAUSE = "Llmgw-Cause"
REPLY = "Llmgw-Reply"
MESSAGE_ID = "Nats-Msg-Id"
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
    if own != subject:
        raise BadPayload(f"{tag_of(message)} stands on {subject} and not on {own}")


@dataclass(slots=True, frozen=True)
class Delivery:
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
        tag = self.message.__struct_config__.tag
        return str(tag)

    @property
    def subject(self) -> str:
        return self.raw.subject

    @property
    def payload(self) -> bytes:
        return self.raw.payload

    @property
    def sequence(self) -> int:
        return self.raw.sequence

    @property
    def headers(self) -> Headers:
        return self.raw.headers

    @property
    def time(self) -> datetime:
        """When the server stored it."""
        return self.raw.time or LONG_AGO

    @property
    def cause(self) -> str:
        return self.raw.headers.get(CAUSE, "")

    @property
    def actor(self) -> str:
        return self.raw.headers.get(ACTOR, "")
