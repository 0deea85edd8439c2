"""How long a prompt was whose answer has no end, and which of several texts is too long.

An engine says at the end of an answer what it used. Who leaves before the end, or loses the engine, has had the prompt
read all the same: an engine is asked to count it then, so that the ledger has its count and not a guess.
"""

from __future__ import annotations

import asyncio

from services.gateway.cluster.views import Target
from services.gateway.core.protocols import tokenize
from services.gateway.core.sse.events import BadStream

from .dispatch import Dispatcher
from .metering import EngineRequest, Meter

WITHIN_S = 1.0
"""For all of it; after that a guess has to do."""
MAX_AT_ONCE = 64
"""When very many leave together, engines have better things to do."""
MAX_SUSPECTS = 8


class PromptCount:
    """Has engines count the tokens of prompts, beside the requests that are answered."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._counting = 0

    async def prompt_of(self, meter: Meter) -> None:
        """Tell ``meter`` the length of its prompt, where it needs to know it and an engine can count it."""
        question = meter.unanswered
        if question is None or self._counting >= MAX_AT_ONCE:
            return
        self._counting += 1
        try:
            async with asyncio.timeout(WITHIN_S):
                meter.prompt_tokens = await self._by_anyone(question)
        except TimeoutError:
            pass
        finally:
            self._counting -= 1

    async def counted(self, question: EngineRequest) -> int | None:
        """Tokens of the prompt of a request that waits for it; None where no engine says it in time."""
        try:
            async with asyncio.timeout(WITHIN_S):
                return await self._by_anyone(question)
        except TimeoutError:
            return None

    async def _by_anyone(self, question: EngineRequest) -> int | None:
        for target in self._dispatcher.counters(question.target, question.model):
            if (tokens := await self._counted(target, question)) is not None:
                return tokens
        return None

    async def too_long(self, question: EngineRequest, context: int) -> tuple[int, int] | None:
        """Which input of a request for embeddings has more tokens than ``context``, and how many; None: not known.

        Engines say that one is too long, not which.
        """
        try:
            suspects = tokenize.suspects(question.body, context)[:MAX_SUSPECTS]
            async with asyncio.timeout(WITHIN_S):
                for index, suspect in suspects:
                    tokens: int | None = suspect if isinstance(suspect, int) else None
                    if isinstance(suspect, str):
                        payload = await self._dispatcher.ask(
                            question.target, *tokenize.of_text(question.model, suspect)
                        )
                        tokens = tokenize.count(payload) if payload is not None else None
                    if tokens is not None and tokens > context:
                        return index, tokens
        except (TimeoutError, BadStream):
            pass
        return None

    async def _counted(self, target: Target, question: EngineRequest) -> int | None:
        try:
            asked = tokenize.prompt(question.body)
            while asked is not None:
                payload = await self._dispatcher.ask(target, *asked)
                if payload is None:
                    return None
                further = tokenize.further(*asked, payload)
                if further is None:
                    return tokenize.count(payload)
                asked = further
        except BadStream:
            pass
        return None
