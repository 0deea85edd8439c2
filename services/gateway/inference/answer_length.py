"""How long an answer may be: what becomes of a request that asks for more tokens than there is room for.

Agents send a constant of their own, whatever the model. Where their protocol is Messages or Responses they get as long
an answer as there is room for, and a warning; otherwise they are told in the words that make them ask for less.
"""

from __future__ import annotations

from services.gateway.admission.request import InferenceRequest
from services.gateway.core.context_window import ContextExceeded
from services.gateway.core.protocols.operations import MESSAGES, RESPONSES

from .metering import EngineRequest
from .prompt_count import PromptCount


class AnswerLength:
    """``shortens``: whether answers are made shorter at all."""

    def __init__(self, prompt_count: PromptCount, shortens: bool) -> None:
        self._prompt_count = prompt_count
        self._shortens = shortens

    def fit_model(self, request: InferenceRequest) -> None:
        """Have a request ask for no more than its model answers with, where it may be changed."""
        limit, asked = request.served.max_tokens, request.parsed.max_tokens
        if asked is None or asked <= limit or not self._may_shorten(request):
            return
        field, model = request.operation.limit_field or "max_tokens", request.served.route.model
        request.exchange.warn([f"{field} is {asked}, '{model}' answers with at most {limit}; {limit} were asked for"])
        request.shorten_answer(limit)

    async def fit_context(self, request: InferenceRequest, sent: EngineRequest, fault: ContextExceeded) -> bool:
        """Have a request ask for as much as its prompt leaves room for. False where that is nothing, or the request may
        not be changed; ``fault`` then has the figures it lacked, as far as they are known."""
        limit = next((tokens for _, tokens in request.parsed.limits()), None)
        if fault.prompt is None and limit is not None:
            fault.about(await self._prompt_count.counted(sent), limit, fault.window)
        if fault.prompt is None or fault.window is None:
            return False
        room, asked = fault.window - fault.prompt, request.parsed.max_tokens
        if asked is None or not 0 < room < asked or not self._may_shorten(request):
            return False
        field = request.operation.limit_field or "max_tokens"
        request.exchange.warn(
            [
                f"{field} is {asked} and a prompt of {fault.prompt} tokens leaves room for {room} of "
                f"{fault.window}; {room} were asked for"
            ]
        )
        request.shorten_answer(room)
        return True

    def _may_shorten(self, request: InferenceRequest) -> bool:
        return self._shortens and request.operation in (MESSAGES, RESPONSES)
