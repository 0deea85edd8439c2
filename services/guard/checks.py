"""Judging checks as they come off the bus: verdict to the gateway first, fact to the log second."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
from prometheus_client import Counter, Histogram

from libs.bus import Bus, Delivery
from libs.events.policy import Check, Verdict, VerdictRecord

from .core.judge import judge
from .core.policies import Policy
from .rulebook import Rulebook
from .verdict_publisher import VerdictPublisher

log = logging.getLogger("llmgw.guard")

LIMIT_S = 0.8
"""Time from taking a check to its verdict."""
POLICY_WAIT_S = 0.3
"""How long a policy this guard has not heard of is waited for."""

CHECKS = Counter("llmgw_guard_checks_total", "Checks judged.", ["outcome"])
FINDINGS = Counter("llmgw_guard_findings_total", "What was found, by rule.", ["policy", "rule", "action"])
JUDGED = Histogram(
    "llmgw_guard_judge_seconds",
    "From taking a check to its verdict.",
    buckets=(0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
)


@dataclass(frozen=True, slots=True)
class _Judged:
    check: Check
    verdict: Verdict


class Checks:
    """Takes deliveries of checks. Texts are looked through in threads: RE2 lets the event loop run meanwhile."""

    def __init__(self, bus: Bus, rulebook: Rulebook, facts: VerdictPublisher, threads: int) -> None:
        self._bus = bus
        self._rulebook = rulebook
        self._publisher = facts
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="judge")

    async def handle(self, deliveries: list[Delivery]) -> None:
        """Judge a batch, those somebody waits for first. Never raises for what a check holds."""
        checks = [d.message for d in deliveries if isinstance(d.message, Check)]
        checks.sort(key=lambda check: check.reply is None)
        judged = await asyncio.gather(*(self._answer(check) for check in checks))
        await self._publisher.keep([_record(each) for each in judged])

    async def _answer(self, check: Check) -> _Judged:
        started = time.monotonic()
        verdict = await self._verdict(check, started + LIMIT_S)
        elapsed = time.monotonic() - started
        verdict = msgspec.structs.replace(verdict, elapsed_us=round(elapsed * 1e6))
        if check.reply is not None:
            await self._bus.reply(check.reply, verdict)
        JUDGED.observe(elapsed)
        CHECKS.labels("unjudged" if verdict.problem else "allowed" if verdict.allow else "blocked").inc()
        for finding in verdict.findings:
            FINDINGS.labels(finding.policy, finding.rule, finding.action).inc(finding.count)
        return _Judged(check, verdict)

    async def _verdict(self, check: Check, deadline: float) -> Verdict:
        policies = await self._rulebook.policies(check.policies, POLICY_WAIT_S)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, judge, check, policies, lambda: time.monotonic() < deadline)
        # One search cannot be stopped; on the longest text it may outlast the limit, and then nobody waits for it.
        done, _ = await asyncio.wait({work}, timeout=max(0.0, deadline - time.monotonic()) + 0.05)
        if not done:
            work.add_done_callback(_forget)
            return _unjudged(check, policies, "the time for judging ran out")
        try:
            return work.result()
        except Exception as error:
            # The text must not reach the log: the place in the code is enough to look for the fault.
            log.error("check %s could not be judged: %s", check.check_id, _place(error))
            return _unjudged(check, policies, "the guard failed; its log says where")

    async def stop(self) -> None:
        """Judge nothing more. A search that goes on in a thread is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _unjudged(check: Check, policies: Mapping[str, Policy], why: str) -> Verdict:
    concerned = [policies.get(name) for name in check.policies]
    opens = all(p is not None and (p.spec.mode == "observe" or p.spec.fail == "open") for p in concerned)
    return Verdict(check_id=check.check_id, allow=opens, problem=why)


def _forget(work: asyncio.Future[Verdict]) -> None:
    if not work.cancelled():
        work.exception()


def _place(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else "unknown place"
    return f"{type(error).__name__} at {where}"


def _record(judged: _Judged) -> VerdictRecord:
    verdict = judged.verdict
    return VerdictRecord(
        request_id=judged.check.request_id,
        project=judged.check.project,
        allow=verdict.allow,
        findings=verdict.findings,
        elapsed_us=verdict.elapsed_us,
        problem=verdict.problem,
    )
