"""What would become of a command, without its being sent: now, or after other commands."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from libs.events import BadPayload, Command, Event, UnknownTag, decode, tag_of
from libs.events.commands import Problem
from libs.events.questions import Examine, Examined
from libs.events.refusal import Refused

S = TypeVar("S")


class Examiner(Generic[S]):
    """Asks a service's own ``decide`` and ``evolve``, on its state or on a copy of it."""

    def __init__(
        self, evolve: Callable[[S, Event, int], S], decide: Callable[[S, Any, str, datetime], Event | None]
    ) -> None:
        self._evolve = evolve
        self._decide = decide
        self._supposed: tuple[tuple[str, ...], S] | None = None
        """Commands somebody examined others after, and the state after them; until the log goes on."""

    def forget(self) -> None:
        """The log went on: what was supposed of the state before no longer holds."""
        self._supposed = None

    def examine(self, question: Examine, state: S, position: int) -> Examined:
        """``position``: sequence of the last event in ``state``, which is not changed."""
        now = datetime.now(UTC)
        if question.after:
            state = self._after(question.after, state, position, now)
        try:
            message = decode(question.command.encode())
            if not isinstance(message, Command):
                return Examined(problems=(Problem(path="type", message=f"{tag_of(message)} is not a command"),))
            event = self._decide(state, message, "examined", now)
        except Refused as refused:
            return Examined(problems=refused.problems)
        except (UnknownTag, BadPayload) as error:
            return Examined(problems=(Problem(path="", message=str(error)),))
        return Examined(unchanged=event is None)

    def _after(self, commands: tuple[str, ...], present: S, position: int, now: datetime) -> S:
        """The state there would be after these commands. Not to be changed: it may be asked for again.

        Whoever examines many commands asks about each after all before it: then only the last is new.
        """
        known, state = self._supposed if self._supposed is not None else ((), None)
        if state is None or commands[: len(known)] != known:
            known, state = (), copy.deepcopy(present)
        self._supposed = None
        for number, command in enumerate(commands[len(known) :], len(known)):
            with suppress(Refused, UnknownTag, BadPayload):
                event = self._decide(state, decode(command.encode()), f"examined-{number}", now)
                if event is not None:
                    state = self._evolve(state, event, position + 1 + number)
        self._supposed = commands, state
        return state
