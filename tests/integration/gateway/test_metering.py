"""What stands in the ledger is what the engine did: every route, streamed and not, to the end, left, or broken off."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from libs.bus import Bus
from libs.events.usage import RequestRecord
from libs.testing import eventually
from libs.testing.engine import SimEngine

from .conftest import Client, Response, World
from .test_protocols import GENERATING, READING, asked

OWN = ("/v1/chat/completions", "/v1/completions")
"""Routes whose clients say themselves whether they want usage."""
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"stream_options": {"include_usage": False}},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
)
LIMIT = {"/v1/responses": "max_output_tokens"}
SIGNS = {
    "/v1/chat/completions": b'"content":"tok',
    "/v1/completions": b'"text":"tok',
    "/v1/messages": b'"text_delta"',
    "/v1/responses": b"event: response.output_text.delta",
}
"""What is in every event with a token, once."""
PROMPT_TOKENS = 3


@dataclasses.dataclass(frozen=True)
class Case:
    path: str
    stream: bool
    options: dict[str, Any]

    def body(self, tokens: int, sim: dict[str, Any]) -> dict[str, Any]:
        """A request for so many tokens of an engine that does as ``sim`` says."""
        streamed = {"stream": True} if self.stream else {}
        return asked(self.path, **streamed, **self.options, **{LIMIT.get(self.path, "max_tokens"): tokens}, sim=sim)

    @property
    def prompt_is_told(self) -> bool:
        """Whether the engine says with every event what it used."""
        return "continuous_usage_stats" in self.options.get("stream_options", ())


STREAMS = [Case(path, True, options) for path in GENERATING for options in (OPTIONS if path in OWN else ({},))]
WHOLE = [Case(path, False, {}) for path in GENERATING]


@pytest.fixture
async def gateway(world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]) -> Client:
    await world.route(sim_engine, capabilities=())
    return await world.gateway(await connect_as("gateway"))


def delivered(case: Case, response: Response) -> int:
    """Tokens in the events that arrived."""
    return response.body.count(SIGNS[case.path])


async def test_to_the_end(gateway: Client, world: World, sim_engine: SimEngine) -> None:
    """With cached and reasoning tokens apart; thinking is generated on chat only."""
    for sim in ({}, {"cached_tokens": 2, "reasoning_tokens": 3}):

        async def one(case: Case, tokens: int, sim: dict[str, int] = sim) -> None:
            response = await gateway.send("POST", case.path, case.body(tokens, sim))
            assert response.status == 200, (case, response.body)
            record = await world.record(response.request_id)
            done = sim_engine.requests()[response.request_id]
            assert (record.status, record.stream, record.tokens_estimated) == ("ok", case.stream, False)
            assert (record.prompt_tokens, record.completion_tokens) == (done["prompt_tokens"], done["generated"]), case
            assert (record.prompt_tokens, record.completion_tokens) == (PROMPT_TOKENS, tokens)
            parts = (record.cached_tokens, record.reasoning_tokens)
            assert parts == (sim.get("cached_tokens", 0), sim.get("reasoning_tokens", 0)), case
            if case.stream:
                assert delivered(case, response) == tokens

        await asyncio.gather(*(one(case, 4 + n % 5) for n, case in enumerate([*WHOLE, *STREAMS])))


async def test_left_after_so_many_tokens(gateway: Client, world: World, sim_engine: SimEngine) -> None:
    """Billed is what was on its way to the client; the engine, of 25 tokens a second, is stopped within one."""

    async def left(case: Case, after: int) -> tuple[Case, str, int]:
        asking = gateway.send(
            "POST",
            case.path,
            case.body(500, {"tok_s": 25, "ttft_ms": 0 if after else 400}),
            until=lambda response: 0 < after <= delivered(case, response),
        )
        if not after:
            return case, await _left_at_once(asking, sim_engine), 0
        response = await asking
        return case, response.request_id, delivered(case, response)

    answers = await asyncio.gather(*(left(case, after) for case in STREAMS for after in (1, 2, 7)))
    answers += [await left(case, 0) for case in [*WHOLE, *STREAMS]]
    for case, request_id, got in answers:
        record = await world.record(request_id)
        done = await eventually(lambda request_id=request_id: _ended(sim_engine, request_id))
        assert (record.status, done["state"]) == ("cancelled", "aborted"), case
        assert got <= record.completion_tokens <= done.get("generated", 0) <= got + 25, case
        _check_prompt(case, record, done)


def _check_prompt(case: Case, record: RequestRecord, done: dict[str, Any]) -> None:
    """Of an answer that has no end: the engine's count, told or asked for, and nothing for nothing."""
    assert record.tokens_estimated == (not case.prompt_is_told or not record.completion_tokens), case
    if not record.completion_tokens:
        assert record.prompt_tokens == 0
    else:
        assert record.prompt_tokens == done["prompt_tokens"], case


async def _left_at_once(asking: Awaitable[Response], engine: SimEngine) -> str:
    """Leave once the engine works on it; the request's id."""
    before = set(engine.requests())
    task = asyncio.ensure_future(asking)
    request_id = await eventually(lambda: next(iter(set(engine.requests()) - before), None))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return request_id


def _ended(engine: SimEngine, request_id: str) -> dict[str, Any] | None:
    done = engine.requests()[request_id]
    return done if done["state"] not in ("waiting", "running") else None


@pytest.mark.parametrize("fault", ["cut_after", "error_after"])
async def test_broken_off_after_so_many_tokens(
    gateway: Client, world: World, sim_engine: SimEngine, fault: str
) -> None:
    answers = []
    # One after the other, with two that end well in between: what a breaker makes of it is not looked at here.
    for case in [*WHOLE, *STREAMS]:
        for after in (1, 4):
            answers.append((case, after, await gateway.send("POST", case.path, case.body(20, {fault: after}))))
            for _ in range(2):
                assert (await gateway.send("POST", case.path, case.body(1, {"tok_s": 0}))).status == 200
    for case, after, response in answers:
        kept = after if case.stream else 0
        assert response.status == (200 if kept else 502), (case, response.body)
        record = await world.record(response.request_id)
        done = sim_engine.requests()[response.request_id]
        assert (record.status, record.completion_tokens) == ("upstream_error", kept), case
        assert done["generated"] == after
        _check_prompt(case, record, done)


async def test_an_engine_that_dies_after_so_many_tokens(
    world: World, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    cases = [case for case in STREAMS if not case.options]
    names = [f"m{n}" for n in range(len(cases))]
    engines = await asyncio.gather(*(asyncio.to_thread(world.engine, name, model=name) for name in names))
    for name, engine in zip(names, engines, strict=True):
        await world.route(engine, model=name, capabilities=())
    gateway = await world.gateway(await connect_as("gateway"))
    await eventually(lambda: _models(gateway, len(cases)))
    for n, (case, engine) in enumerate(zip(cases, engines, strict=True)):
        after = n + 2
        sim = {"die_after": after, "tok_s": 100}
        response = await gateway.send("POST", case.path, case.body(20, sim) | {"model": names[n]})
        record = await world.record(response.request_id)
        assert await asyncio.to_thread(engine.ended) == 70
        assert (record.status, record.http_status) == ("upstream_error", 200)
        assert record.completion_tokens == delivered(case, response) == after


def _models(gateway: Client, count: int) -> bool:
    assert gateway.service is not None
    return len(gateway.service._routes.targets) == count


async def test_what_is_read_and_not_answered(gateway: Client, world: World, sim_engine: SimEngine) -> None:
    answers = []
    for path in READING:
        for more in ({}, {"encoding_format": "base64"} if path == "/v1/embeddings" else {"return_documents": False}):
            answers.append(await gateway.send("POST", path, asked(path, **more)))
        await asyncio.to_thread(sim_engine.behave, fail_status=500, times=1)
        answers.append(await gateway.send("POST", path, asked(path)))
    assert [response.status for response in answers] == [200, 200, 502] * 2
    for response in answers:
        record = await world.record(response.request_id)
        used = (record.prompt_tokens, record.cached_tokens, record.completion_tokens, record.reasoning_tokens)
        if response.status == 200:
            done = sim_engine.requests()[response.request_id]
            assert used == (done["prompt_tokens"], 0, 0, 0) == (PROMPT_TOKENS, 0, 0, 0)
            assert response.json["usage"]["total_tokens"] == PROMPT_TOKENS
            assert (record.status, record.tokens_estimated) == ("ok", False)
        else:
            assert (record.status, *used) == ("upstream_error", 0, 0, 0, 0)
