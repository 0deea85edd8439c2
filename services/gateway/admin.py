"""The admin API: commands and questions for people and programs that are not on the bus."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from libs.bus import AskFailed, Bus, BusAway, Unanswered
from libs.events import BadPayload, Command, Question, UnknownTag, contracts, decode, decode_as, encode, tag_of
from libs.events.commands import Outcome

from .core.errors import Fault, bad_body
from .http.exchange import Call
from .http.router import Door

MAX_BODY_BYTES = 1024 * 1024
STATUS = {"done": 200, "unchanged": 200, "refused": 422, "failed": 502}

K = TypeVar("K", Command, Question)


class Admin:
    """``POST /api/v1/commands`` and ``POST /api/v1/questions``: a tagged JSON in, the outcome or the answer out.

    Needs a key with the role ``admin``. The key is named as the actor of a command.
    """

    def __init__(self, door: Door, bus: Bus) -> None:
        self._door = door
        self._bus = bus
        door.add("POST", "/api/v1/commands", self.command)
        door.add("POST", "/api/v1/questions", self.question)

    async def command(self, call: Call) -> None:
        key = self._door.authenticate(call, "admin")
        command = _read(await call.body(MAX_BODY_BYTES), Command)
        try:
            outcome = await self._bus.command(command, actor=f"key:{key.key_id}")
        except Unanswered as error:
            # Logged, so it will be carried out: not a failure, and not to be sent again.
            await call.answer(202, msgspec.json.encode({"status": "logged", "message": str(error)}))
            return
        except BusAway as error:
            raise _away(str(error)) from None
        await call.answer(STATUS[outcome.status], _outcome(outcome))

    async def question(self, call: Call) -> None:
        self._door.authenticate(call, "admin")
        question = _read(await call.body(MAX_BODY_BYTES), Question)
        try:
            answer = await self._bus.ask(question, msgspec.Raw)
        except AskFailed as error:
            raise Fault(502, "not_answered", str(error), kind="server_error") from None
        except BusAway as error:
            raise _away(str(error)) from None
        await call.answer(200, bytes(answer))


def _outcome(outcome: Outcome) -> bytes:
    return encode(outcome)


def _away(why: str) -> Fault:
    return Fault(503, "bus_unavailable", f"The cluster's bus is away: {why}.", kind="server_error", retry_after_s=5)


def _read(body: bytes, kind: type[K]) -> K:
    """A command or a question, strictly: what it does not know is an error here, unlike on the bus."""
    what = kind.__name__.lower()
    known = ", ".join(tag_of(contract) for contract in contracts() if issubclass(contract, kind))
    try:
        message = decode(body)
    except UnknownTag as error:
        raise bad_body(f"'{error.tag}' is no {what}; known are: {known}.", param="type") from None
    except BadPayload as error:
        raise bad_body(f"The body is not a {what}: {error}.") from None
    if not isinstance(message, kind):
        raise bad_body(f"'{tag_of(message)}' is no {what}; known are: {known}.", param="type")
    for name in decode_as(dict, body):
        if name != "type" and name not in message.__struct_fields__:
            fields = ", ".join(message.__struct_fields__)
            raise bad_body(f"'{tag_of(message)}' has no field '{name}'; it has: {fields}.", param=name)
    return message
