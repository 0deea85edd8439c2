"""Room for an answer: what becomes of a request that asks for more tokens than there are.

Agents send a constant of their own, whatever the model. Where their protocol is Messages or Responses they get as long
an answer as there is room for, and a warning; otherwise they are told in the words that make them ask for less.
"""

from __future__ import annotations

import msgspec

from services.gateway.cluster.views import ServedModel
from services.gateway.core.context_window import ContextExceeded
from services.gateway.core.protocols.operations import MESSAGES, RESPONSES, Operation
from services.gateway.core.request import body as bodies
from services.gateway.core.request.body import ParsedRequest
from services.gateway.http.exchange import Exchange

from .metering import Question
from .prompt_count import PromptCount


class AnswerLength:
    """``shortens``: whether answers are made shorter at all."""

    def __init__(self, recount: PromptCount, shortens: bool) -> None:
        self._prompt_count = recount
        self._shortens = shortens

    def within(
        self, exchange: Exchange, kind: Operation, asked: ParsedRequest, served: ServedModel, body: bytes
    ) -> bytes:
        """The body, asking for no more than the model answers with where it may be changed; ``asked`` follows."""
        most = served.max_tokens
        if not self._may(kind) or asked.max_tokens is None or asked.max_tokens <= most:
            return body
        field = kind.limit or "max_tokens"
        model = served.route.model
        exchange.warn([f"{field} is {asked.max_tokens}, '{model}' answers with at most {most}; {most} were asked for"])
        return self._asking_for(most, asked, body)

    async def shortened(
        self, exchange: Exchange, kind: Operation, asked: ParsedRequest, question: Question, fault: ContextExceeded
    ) -> bytes:
        """The body, asking for as much as the prompt leaves room for. Raises ``fault``, with the figures it lacked,
        where that is nothing, or the body may not be changed."""
        limit = next((value for _, value in asked.limits()), None)
        if fault.prompt is None and limit is not None:
            fault.about(await self._prompt_count.counted(question), limit, fault.window)
        if fault.prompt is None or fault.window is None:
            raise fault
        room = fault.window - fault.prompt
        if not self._may(kind) or asked.max_tokens is None or not 0 < room < asked.max_tokens:
            raise fault
        field = kind.limit or "max_tokens"
        exchange.warn(
            [
                f"{field} is {asked.max_tokens} and a prompt of {fault.prompt} tokens leaves room for {room} of "
                f"{fault.window}; {room} were asked for"
            ]
        )
        return self._asking_for(room, asked, question.body)

    def _may(self, kind: Operation) -> bool:
        return self._shortens and kind in (MESSAGES, RESPONSES)

    def _asking_for(self, tokens: int, asked: ParsedRequest, body: bytes) -> bytes:
        asked.max_tokens = tokens
        return bodies.edited(body, {"max_tokens": msgspec.json.encode(tokens)})
