"""The admin API: commands and questions for people and programs that are not on the bus."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from libs.bus import AskFailed, Bus, BusAway, Unanswered
from libs.events import BadPayload, Command, Question, UnknownTag, contracts, decode, encode, tag_of

from .core.faults import bad_body, bus_unavailable, not_answered
from .core.json.fields import decoded, misfit
from .http.exchange import Exchange
from .http.router import Router

MAX_BODY_BYTES = 1024 * 1024
STATUS = {"done": 200, "unchanged": 200, "refused": 422, "failed": 502}

K = TypeVar("K", Command, Question)


class Admin:
    """``POST /api/v1/commands`` and ``POST /api/v1/questions``: a tagged JSON in, the outcome or the answer out.

    Needs a key with the role ``admin``. The key is named as the actor of a command.
    """

    def __init__(self, router: Router, bus: Bus) -> None:
        self._router = router
        self._bus = bus
        router.add("POST", "/api/v1/commands", self.command)
        router.add("POST", "/api/v1/questions", self.question)

    async def command(self, exchange: Exchange) -> None:
        """Log the command in the body and answer with its outcome, or with 202 where none came in time. Raises Fault,
        Abandoned, BadPayload."""
        key = self._router.authenticate(exchange, "admin")
        command = _read(await exchange.body(MAX_BODY_BYTES), Command)
        try:
            outcome = await self._bus.command(command, actor=f"key:{key.key_id}")
        except Unanswered as error:
            # Logged, so it will be carried out: not a failure, and not to be sent again.
            await exchange.answer(202, msgspec.json.encode({"status": "logged", "message": str(error)}))
            return
        except BusAway as error:
            raise bus_unavailable(str(error)) from None
        await exchange.answer(STATUS[outcome.status], encode(outcome))

    async def question(self, exchange: Exchange) -> None:
        """Ask the question in the body and answer with its answer. Raises Fault, Abandoned, BadPayload."""
        self._router.authenticate(exchange, "admin")
        question = _read(await exchange.body(MAX_BODY_BYTES), Question)
        try:
            answer = await self._bus.ask(question, msgspec.Raw)
        except AskFailed as error:
            raise not_answered(str(error)) from None
        except BusAway as error:
            raise bus_unavailable(str(error)) from None
        await exchange.answer(200, bytes(answer))


def _read(body: bytes, kind: type[K]) -> K:
    """A command or a question, strictly: what it does not know is an error here, unlike on the bus."""
    what = kind.__name__.lower()
    known = ", ".join(tag_of(contract) for contract in contracts() if issubclass(contract, kind))
    fields = decoded(body)
    if "type" not in fields:
        raise bad_body(
            f"Missing required parameter: 'type' says which {what} it is; known are: {known}.",
            param="type",
            code="missing_required_parameter",
        )
    try:
        message = decode(body)
    except UnknownTag as error:
        raise bad_body(f"'{error.tag}' is not a {what}; known are: {known}.", param="type") from None
    except BadPayload as error:
        _, _, problem = str(error).partition(": ")  # after the name of our own type
        raise misfit(problem) from None
    if not isinstance(message, kind):
        raise bad_body(f"'{tag_of(message)}' is not a {what}; known are: {known}.", param="type")
    for name in fields:
        if name != "type" and name not in message.__struct_fields__:
            has = ", ".join(message.__struct_fields__)
            raise bad_body(f"'{tag_of(message)}' has no field '{name}'; it has: {has}.", param=name)
    return message
