"""Questions and their answers: asked of any instance that listens, until one answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from libs.events import BadPayload, Question, decode_as, encode, subject_of, tag_of
from libs.events.refusal import Refused
from libs.tasks import end

from .transport import Answerer, AskFailed, BusAway, Headers, Reply, Transport

log = logging.getLogger("llmgw.bus")

T = TypeVar("T")
ASK_AGAIN_S = 0.1
ASK_ANOTHER_S = 0.5
"""A question not answered for so long is put again: questions change nothing, and instances share them out."""


class Elsewhere(Exception):
    """Raised by a handler of questions: this instance cannot answer, for the reason given, but another may."""


async def ask(transport: Transport, question: Question, headers: Headers, kind: type[T], timeout_s: float) -> T:
    """The first answer, as ``kind``. Raises AskFailed, also when nobody answers in time; BadPayload."""
    subject = subject_of(question)
    payload = encode(question)
    owner = ".".join(subject.split(".")[2:-1])
    why_none = f"no {owner} answered within {timeout_s:g} s: is it running?"
    deadline = time.monotonic() + timeout_s
    asked: set[asyncio.Task[Reply]] = set()
    try:
        while True:
            left_s = deadline - time.monotonic()
            if left_s > 0:
                asked.add(asyncio.ensure_future(transport.request(subject, payload, headers, left_s)))
            elif not asked:
                raise AskFailed(why_none)
            # The instance that got it may be frozen: then another is asked too, and the first answer is taken.
            done, asked = await asyncio.wait(
                asked, timeout=min(max(left_s, 0.05), ASK_ANOTHER_S), return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                error = task.exception()
                if error is None and not task.result().elsewhere:
                    return _answered(task.result(), kind)
                if error is None:
                    why_none = task.result().error or why_none
                elif not isinstance(error, BusAway):
                    raise error
            if done:  # that nobody can answer is known at once, but somebody may in a moment
                await asyncio.sleep(ASK_AGAIN_S)
    finally:
        await end(*asked)


def _answered(reply: Reply, kind: type[T]) -> T:
    if reply.error is not None:
        raise AskFailed(reply.error)
    return decode_as(kind, reply.payload)


def answerer(kind: type[Question], handler: Callable[[Any], Awaitable[Any]]) -> Answerer:
    """Answers with what ``handler`` returns; what it refuses is the error, any other failure is logged."""
    under_way: dict[bytes, asyncio.Task[Reply]] = {}

    async def work(payload: bytes) -> Reply:
        try:
            return Reply(encode(await handler(decode_as(kind, payload))))
        except (Refused, BadPayload) as error:
            return Reply(error=str(error))
        except Elsewhere as why:
            return Reply(error=str(why), elsewhere=True)
        except Exception:
            log.exception("a question (%s) could not be answered", tag_of(kind))
            return Reply(error="the service failed to answer; its log says why")

    async def answer(payload: bytes) -> Reply:
        # Worked on once for all who ask the same meanwhile: a question is put again and again until it is answered.
        task = under_way.get(payload)
        if task is None:
            task = under_way[payload] = asyncio.create_task(work(payload), name=f"answer to {tag_of(kind)}")
            task.add_done_callback(lambda _: under_way.pop(payload, None))
        return await asyncio.shield(task)

    return answer
