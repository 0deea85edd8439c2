"""A message as a handler sees it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from libs.events import Contract, decode

from .transport import Headers, RawMessage

TYPE = "Llmgw-Type"
ACTOR = "Llmgw-Actor"
CAUSE = "Llmgw-Cause"
REPLY = "Llmgw-Reply"
MESSAGE_ID = "Nats-Msg-Id"
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True, frozen=True)
class Delivery:
    message: Contract
    raw: RawMessage

    @classmethod
    def of(cls, raw: RawMessage) -> Delivery:
        """Decode. Raises UnknownTag, BadPayload."""
        return cls(decode(raw.payload, raw.headers.get(TYPE)), raw)

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
