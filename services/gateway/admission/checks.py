"""Asking the guard: text out, verdict back. Waited for only where a policy enforces."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque

import msgspec

from libs.bus import Bus
from libs.events import BadPayload, decode_as
from libs.events.policy import Check, Segment, Verdict
from libs.tasks import end
from services.gateway import metrics
from services.gateway.core.request.policy_text import MAX_SEGMENTS

MAX_WAITING = 1000
"""Observed checks that wait to be sent; more are dropped and counted: observing never costs a client anything."""
TOGETHER_S = 0.02
"""Observed checks of so long go out in one write. One by one they would be the dearest part of a request, and made just
while its engine is to be asked."""

MAX_CHARACTERS = 2_000_000
"""The guard looks at no more."""
MAX_BYTES = 8 * 1024 * 1024 - 64 * 1024
"""A check is one message on the bus, whose limit is 8 MiB."""
MAX_BYTES_OF_A_CHARACTER = 6
"""Bytes JSON makes of one: ``\\u001f``."""
AROUND_BYTES = 32
"""What stands around a segment's path and text."""


def fits(segments: tuple[Segment, ...]) -> bool:
    """Whether the guard can be asked about so much."""
    if len(segments) > MAX_SEGMENTS:
        return False
    characters = sum(len(segment.text) for segment in segments)
    paths = sum(len(segment.path) for segment in segments)
    most = (characters + paths) * MAX_BYTES_OF_A_CHARACTER + len(segments) * AROUND_BYTES
    if characters > MAX_CHARACTERS:
        return False
    return most <= MAX_BYTES or len(msgspec.json.encode(segments)) <= MAX_BYTES


class Checks:
    """One gateway's conversation with the guards."""

    def __init__(self, bus: Bus, gateway_id: str, timeout_s: float) -> None:
        self._bus = bus
        self._gateway_id = gateway_id
        self._timeout_s = timeout_s
        self._inbox = ""
        self._waiting: dict[str, asyncio.Future[Verdict]] = {}
        self._observed: deque[Check] = deque()
        self._to_send = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen for verdicts, and begin to send what is observed."""
        self._inbox = await self._bus.inbox(self._on_verdict)
        self._task = self._bus.background("checks that are not waited for", self._send_observed)

    async def stop(self) -> None:
        """Send what still waits, and end."""
        if self._task is not None:
            await end(self._task)
            await self._send_waiting()

    def observe(self, request_id: str, project: str, policies: tuple[str, ...], segments: tuple[Segment, ...]) -> None:
        """Have a request looked at; nothing waits. What is too long for a check is not looked at, and counted."""
        if not fits(segments):
            metrics.CHECKS.labels("too long").inc()
            return
        if len(self._observed) >= MAX_WAITING:
            metrics.CHECKS.labels("dropped").inc()
            return
        self._observed.append(self._check(request_id, project, policies, segments, None))
        self._to_send.set()

    async def judge(
        self, request_id: str, project: str, policies: tuple[str, ...], segments: tuple[Segment, ...]
    ) -> Verdict | None:
        """The guard's verdict; None when none came in time or it could not judge."""
        if not self._bus.connected:
            metrics.CHECKS.labels("bus away").inc()
            return None
        check = self._check(request_id, project, policies, segments, self._inbox)
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting[check.check_id] = future
        started = time.perf_counter()
        try:
            await self._bus.tell(check)
            async with asyncio.timeout(self._timeout_s):
                verdict = await future
        except TimeoutError:
            metrics.CHECKS.labels("no verdict").inc()
            return None
        finally:
            del self._waiting[check.check_id]
            metrics.VERDICT.observe(time.perf_counter() - started)
        if verdict.problem is not None:
            metrics.CHECKS.labels("not judged").inc()
            return None
        metrics.CHECKS.labels("allowed" if verdict.allow else "refused").inc()
        return verdict

    def _check(
        self,
        request_id: str,
        project: str,
        policies: tuple[str, ...],
        segments: tuple[Segment, ...],
        reply: str | None,
    ) -> Check:
        return Check(
            gateway_id=self._gateway_id,
            check_id=os.urandom(8).hex(),
            request_id=request_id,
            project=project,
            policies=policies,
            segments=segments,
            reply=reply,
        )

    async def _send_observed(self) -> None:
        while True:
            await self._to_send.wait()
            await asyncio.sleep(TOGETHER_S)
            self._to_send.clear()
            await self._send_waiting()

    async def _send_waiting(self) -> None:
        while self._observed:
            await self._bus.tell(self._observed.popleft())
            metrics.CHECKS.labels("observed").inc()

    async def _on_verdict(self, payload: bytes) -> None:
        try:
            verdict = decode_as(Verdict, payload)
        except BadPayload:
            metrics.CHECKS.labels("unreadable").inc()
            return
        future = self._waiting.get(verdict.check_id)
        if future is not None and not future.done():
            future.set_result(verdict)
