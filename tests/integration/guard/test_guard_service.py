"""The guard on a real bus: policies by command, checks judged, facts on the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from libs.bus import Bus, BusSettings, connect
from libs.events import decode_as, encode
from libs.events.commands import DefinePolicy, RemovePolicy
from libs.events.policy import (
    Check,
    DenyRule,
    InputRules,
    PolicySpec,
    SecretsRule,
    Segment,
    Verdict,
    VerdictBatch,
    VerdictRecord,
)
from libs.events.questions import Examined, ExamineGuard, ListPolicies, PoliciesAnswer
from libs.testing import eventually
from libs.testing.nats import NatsServer
from services.guard.app import Guard, build
from services.guard.settings import GuardSettings

AWS_KEY = "AKIA" + "IOSFODNN7EXAMPLE"
STRICT = PolicySpec(
    name="strict", mode="enforce", input=InputRules(secrets=SecretsRule(), pii={"email": "redact", "card": "redact"})
)
WATCH = PolicySpec(name="watch", input=InputRules(secrets=SecretsRule()))


@asynccontextmanager
async def guard(server: NatsServer, directory: Path, instance: str = "g-1") -> AsyncIterator[Guard]:
    own = await connect(BusSettings(url=server.url, identity="guard"))
    service = build(GuardSettings(data_dir=directory, instance=instance), own)
    await service.start()
    try:
        await eventually(lambda: service.not_ready() == [])
        yield service
    finally:
        await service.stop()
        await own.close()


class Gateway:
    """Asks for verdicts as a gateway does."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._waiting: dict[str, asyncio.Future[Verdict]] = {}
        self._count = 0
        self._inbox = ""

    async def open(self) -> Gateway:
        self._inbox = await self._bus.inbox(self._hear)
        return self

    async def _hear(self, payload: bytes) -> None:
        verdict = decode_as(Verdict, payload)
        future = self._waiting.get(verdict.check_id)
        if future is not None and not future.done():
            future.set_result(verdict)

    def check(self, text: str, *policies: str, waits: bool = True) -> Check:
        self._count += 1
        return Check(
            gateway_id="gw-1",
            check_id=f"c{self._count}",
            request_id=f"req-{self._count}",
            project="a/b/c",
            policies=policies,
            segments=(Segment(path="/messages/0/content", text=text),),
            reply=self._inbox if waits else None,
        )

    async def judge(self, text: str, *policies: str) -> Verdict:
        check = self.check(text, *policies)
        future = self._waiting[check.check_id] = asyncio.get_running_loop().create_future()
        await self._bus.tell(check)
        return await asyncio.wait_for(future, 5)


@pytest.fixture
async def gateway(bus: Bus) -> Gateway:
    return await Gateway(bus).open()


async def records(bus: Bus) -> list[VerdictRecord]:
    found: list[VerdictRecord] = []

    async def keep(delivery: object) -> None:
        message = delivery.message  # type: ignore[attr-defined]
        assert isinstance(message, VerdictBatch)
        found.extend(message.records)

    follower = await bus.follow("USAGE", ["llmgw.use.guard.>"], keep)
    await asyncio.wait_for(follower.caught_up.wait(), 5)
    await follower.stop()
    return found


async def test_policies_are_defined_changed_and_removed_by_command(
    bus: Bus, nats_server: NatsServer, tmp_path: Path
) -> None:
    async with guard(nats_server, tmp_path):
        outcome = await bus.command(DefinePolicy(spec=STRICT))
        assert (outcome.status, outcome.event) == ("done", "policy.defined.v1")
        assert (await bus.command(DefinePolicy(spec=STRICT))).status == "unchanged"
        view = bus.view("policies", PolicySpec)
        assert await view.get("strict") == STRICT
        assert await bus.ask(ListPolicies(), PoliciesAnswer) == PoliciesAnswer(policies=(STRICT,))

        bad = PolicySpec(name="bad", input=InputRules(deny=(DenyRule(name="x", pattern="foo(bar"),)))
        outcome = await bus.command(DefinePolicy(spec=bad))
        assert outcome.status == "refused"
        assert outcome.problems[0].path == "input.deny[0].pattern"
        assert "at position 3" in outcome.problems[0].message

        question = ExamineGuard(command=encode(DefinePolicy(spec=bad)).decode())
        examined = await bus.ask(question, Examined)
        assert examined.problems[0].path == "input.deny[0].pattern"

        assert (await bus.command(RemovePolicy(policy="strict"))).status == "done"
        assert await view.get("strict") is None
        assert (await bus.command(RemovePolicy(policy="strict"))).status == "refused"


async def test_a_view_left_wrong_is_put_right_by_the_next_leader(
    bus: Bus, nats_server: NatsServer, tmp_path: Path
) -> None:
    """Given a view that lost a policy and holds one nobody defined, when a guard leads, then it is as the log says."""
    async with guard(nats_server, tmp_path):
        await bus.command(DefinePolicy(spec=STRICT))
    view = bus.view("policies", PolicySpec)
    await view.delete("strict")
    await view.put("ghost", WATCH)
    async with guard(nats_server, tmp_path):
        await eventually(lambda: _holds(view, {"strict": STRICT}))


async def _holds(view: object, wanted: dict[str, PolicySpec]) -> bool:
    return await view.all() == wanted  # type: ignore[attr-defined,no-any-return]


async def test_checks_are_judged_and_recorded_without_their_text(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, gateway: Gateway
) -> None:
    async with guard(nats_server, tmp_path):
        await bus.command(DefinePolicy(spec=STRICT))
        await bus.command(DefinePolicy(spec=WATCH))

        refused = await gateway.judge(f"use {AWS_KEY}", "watch", "strict")
        assert (refused.allow, refused.rule, refused.policy) == (False, "secrets.aws_access_key", "strict")

        redacted = await gateway.judge("é: bob@example.com", "strict")
        assert redacted.allow
        assert [(e.start, e.end, e.replacement) for e in redacted.edits] == [(3, 18, "[EMAIL_1]")]
        assert redacted.elapsed_us > 0

        await bus.tell(gateway.check(AWS_KEY, "watch", waits=False))
        facts = await eventually(lambda: _publisher(bus, 3))
        assert [(f.request_id, f.allow, f.findings[0].rule) for f in facts] == [
            ("req-1", False, "secrets.aws_access_key"),
            ("req-2", True, "pii.email"),
            ("req-3", True, "secrets.aws_access_key"),
        ]
        assert not facts[2].findings[0].enforced
        assert AWS_KEY not in repr(facts)
        assert "bob" not in repr(facts)


async def _publisher(bus: Bus, count: int) -> list[VerdictRecord]:
    found = await records(bus)
    return found if len(found) >= count else []


async def test_a_policy_is_waited_for_a_moment_and_then_fails_closed(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, gateway: Gateway
) -> None:
    async with guard(nats_server, tmp_path):
        asked = asyncio.create_task(gateway.judge("hello", "strict"))
        await bus.command(DefinePolicy(spec=STRICT))
        assert (await asked).allow
        verdict = await gateway.judge("hello", "nobody")
        assert not verdict.allow
        assert verdict.problem == "no policy is named nobody"


async def test_a_check_sent_while_no_guard_runs_is_judged_by_the_next(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, gateway: Gateway
) -> None:
    async with guard(nats_server, tmp_path):
        await bus.command(DefinePolicy(spec=STRICT))
    asked = asyncio.create_task(gateway.judge(AWS_KEY, "strict"))
    async with guard(nats_server, tmp_path, "g-2"):
        assert not (await asked).allow


async def test_two_guards_share_the_work_and_one_of_them_decides(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, gateway: Gateway
) -> None:
    async with guard(nats_server, tmp_path) as one, guard(nats_server, tmp_path, "g-2") as two:
        await bus.command(DefinePolicy(spec=STRICT))
        await eventually(lambda: all("strict" in service._authority.state.policies for service in (one, two)))
        verdicts = await asyncio.gather(*(gateway.judge(f"card 4111111111111111 {i}", "strict") for i in range(200)))
        assert {v.edits[0].replacement for v in verdicts} == {"[CARD_1]"}
        assert len(await eventually(lambda: _publisher(bus, 200))) == 200


async def test_a_verdict_takes_a_few_milliseconds_over_the_bus(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, gateway: Gateway, record_property: Callable[[str, object], None]
) -> None:
    prose = ("The quick brown fox jumps over the lazy dog at 10:30; see https://example.com/a?b=c. " * 30)[:2000]
    async with guard(nats_server, tmp_path):
        await bus.command(DefinePolicy(spec=STRICT))
        loop = asyncio.get_running_loop()
        took = []
        for _ in range(100):
            started = loop.time()
            await gateway.judge(prose, "strict")
            took.append(loop.time() - started)
        took.sort()
        record_property("verdict over the bus", f"p50 {took[50] * 1e3:.2f} ms, p99 {took[98] * 1e3:.2f} ms")
        assert took[50] < 0.1  # other tests run beside this one


async def test_a_guard_that_starts_again_judges_by_what_its_snapshot_holds(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guard(nats_server, tmp_path):
        await bus.command(DefinePolicy(spec=STRICT))
    folded: list[int] = []
    fold = Guard._fold

    def counted(self, state, event, position):  # type: ignore[no-untyped-def]
        folded.append(position)
        return fold(self, state, event, position)

    monkeypatch.setattr(Guard, "_fold", counted)
    async with guard(nats_server, tmp_path):
        verdict = await gateway.judge(f"use {AWS_KEY}", "strict")
        assert (verdict.allow, verdict.rule) == (False, "secrets.aws_access_key")
        assert min(folded, default=3) > 2, "the policy was read from the log again"
