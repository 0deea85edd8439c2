"""The simulated engine, as a client and as a gateway meet it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from libs.testing import eventually
from libs.testing.engine import SimEngine

Starter = Callable[..., SimEngine]
HELLO = {"model": "sim", "messages": [{"role": "user", "content": "one two three"}]}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    engines: list[SimEngine] = []

    def begin(*options: str, key: str | None = None) -> SimEngine:
        engine = SimEngine(tmp_path / f"engine-{len(engines)}", key=key, options=options)
        engines.append(engine)
        engine.start()
        return engine

    yield begin
    for engine in engines:
        engine.stop()


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes, whole: bool) -> None:
        self.status, self.headers, self.body, self.whole = status, headers, body, whole

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        lines = [line[6:] for line in self.body.decode().split("\n\n") if line]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    @property
    def text(self) -> str:
        return "".join(
            event["choices"][0]["delta"].get("content", "")
            for event in self.events
            if event != "[DONE]" and event.get("choices")
        )


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    status = int(head[0].split()[1])
    if "content-length" in headers:
        return Answer(status, headers, await reader.readexactly(int(headers["content-length"])), True)
    body = b""
    while True:
        size = await reader.readline()
        if not size:
            return Answer(status, headers, body, False)
        data = await reader.readexactly(int(size, 16) + 2)
        if data == b"\r\n":
            return Answer(status, headers, body, True)
        body += data[:-2]


def message(path: str, body: Any = None, **headers: str) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "host: x", f"content-length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


@asynccontextmanager
async def connection(engine: SimEngine) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def call(engine: SimEngine, path: str, body: Any = None, **headers: str) -> Answer:
    async with connection(engine) as (reader, writer):
        writer.write(message(path, body, **headers))
        return await asyncio.wait_for(read_answer(reader), 10)


async def chat(engine: SimEngine, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    return await call(engine, "/v1/chat/completions", HELLO | fields, **(headers or {}))


async def metric(engine: SimEngine, name: str) -> float:
    text = (await call(engine, "/metrics")).body.decode()
    return float(next(line for line in text.splitlines() if line.startswith(f"vllm:{name}{{")).split()[-1])


async def test_whole_answer_counts_words(sim_engine: SimEngine) -> None:
    answer = await chat(sim_engine, {"x_request_id": "req-1"}, max_tokens=3, sim={"tok_s": 0})
    assert answer.headers["x-request-id"] == "req-1"
    assert answer.json["choices"][0]["message"] == {"role": "assistant", "content": "tok0 tok1 tok2 "}
    assert answer.json["choices"][0]["finish_reason"] == "length"
    assert answer.json["usage"] == {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3}
    assert sim_engine.requests()["req-1"] == {
        "id": "req-1",
        "prompt_tokens": 3,
        "prompt": "one two three",
        "generated": 3,
        "state": "done",
    }


async def test_stream_has_role_content_and_end(sim_engine: SimEngine) -> None:
    answer = await chat(sim_engine, stream=True, max_completion_tokens=2)
    role, first, last, done = answer.events
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["choices"][0] == {"index": 0, "delta": {"content": "tok0 "}, "logprobs": None, "finish_reason": None}
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["id"] == role["id"]
    assert "usage" not in last
    assert done == "[DONE]"
    assert answer.whole


async def test_usage_last_with_empty_choices_and_continuous_in_each(sim_engine: SimEngine) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = await chat(sim_engine, stream=True, max_tokens=2, stream_options=options, sim={"cached_tokens": 2})
    _, first, _, usage, _ = answer.events
    assert first["usage"]["completion_tokens"] == 1
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 5,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


async def test_without_a_maximum_it_stops_by_itself(sim_engine: SimEngine) -> None:
    answer = await chat(sim_engine, sim={"tok_s": 0})
    assert answer.json["usage"]["completion_tokens"] == 64
    assert answer.json["choices"][0]["finish_reason"] == "stop"


async def test_echo_repeats_the_last_message_in_any_script(sim_engine: SimEngine) -> None:
    content = [{"type": "text", "text": 'grüße "an" alle 日本 🦀'}]
    answer = await chat(sim_engine, messages=[{"role": "user", "content": content}], stream=True, sim={"echo": True})
    assert answer.text == 'grüße "an" alle 日本 🦀 '
    assert answer.events[-2]["choices"][0]["finish_reason"] == "stop"


async def test_text_completions(sim_engine: SimEngine) -> None:
    body = {"model": "sim", "prompt": "a b", "max_tokens": 2}
    whole = await call(sim_engine, "/v1/completions", body)
    assert whole.json["object"] == "text_completion"
    assert whole.json["choices"][0]["text"] == "tok0 tok1 "
    streamed = await call(sim_engine, "/v1/completions", body | {"stream": True})
    assert [event["choices"][0]["text"] for event in streamed.events[:-1]] == ["tok0 ", "tok1 "]


async def test_models_tokenize_version_and_unknown_paths(sim_engine: SimEngine) -> None:
    models = (await call(sim_engine, "/v1/models")).json
    assert models["data"][0]["id"] == "sim"
    assert models["data"][0]["max_model_len"] == 32768
    counted = (await call(sim_engine, "/tokenize", {"model": "sim", "prompt": "a b a"})).json
    assert counted["count"] == 3
    assert counted["tokens"][0] == counted["tokens"][2]
    assert (await call(sim_engine, "/version")).json == {"version": "sim-1"}
    assert (await call(sim_engine, "/nothing")).status == 404


@pytest.mark.parametrize(
    ("fields", "status", "part", "param"),
    [
        ({"model": "other"}, 404, "The model `other` does not exist.", "model"),
        ({"messages": []}, 400, "messages is required", "messages"),
        ({"messages": "hello"}, 400, "Expected `array | null`", None),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1", "max_tokens"),
        ({"max_tokens": 99999}, 400, "context length is only 32768 tokens", "input_tokens"),
        ({"n": 2}, 400, "n must be 1", "n"),
        ({"sim": {"tok_sec": 1}}, 400, "tok_sec", "sim"),
    ],
)
async def test_errors_have_openais_form(
    sim_engine: SimEngine, fields: dict[str, Any], status: int, part: str, param: str | None
) -> None:
    answer = await chat(sim_engine, **fields)
    assert answer.status == status
    assert part in answer.json["error"]["message"]
    assert answer.json["error"]["param"] == param
    assert answer.json["error"]["code"] == status


async def test_key_guards_v1_only(start: Starter) -> None:
    engine = start(key="ek-right")
    assert (await chat(engine)).status == 401
    assert (await chat(engine, {"authorization": "Bearer ek-wrong"})).status == 401
    assert (await chat(engine, {"authorization": "Bearer ek-right"}, max_tokens=1)).status == 200
    assert (await call(engine, "/health")).status == 200
    assert (await call(engine, "/metrics")).status == 200


async def test_pace_and_time_to_first_token(sim_engine: SimEngine) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    await chat(sim_engine, {"x_sim_tok_s": "100", "x_sim_ttft_ms": "50"}, stream=True, max_tokens=11)
    assert loop.time() - started >= 0.148


async def test_more_than_its_slots_wait_their_turn(start: Starter) -> None:
    engine = start("--parallel", "2", "--kv-tokens", "1000")
    slow = {"sim": {"hang_after": 1}, "stream": True}
    async with connection(engine) as (r1, w1), connection(engine) as (_, w2), connection(engine) as (r3, w3):
        for number, writer in enumerate((w1, w2)):
            writer.write(message("/v1/chat/completions", HELLO | slow, x_request_id=f"req-{number}"))
        await r1.readuntil(b"tok0")
        await eventually(lambda: engine.requests().get("req-1", {}).get("generated") == 1)
        w3.write(message("/v1/chat/completions", HELLO | {"max_tokens": 1}, x_request_id="req-2"))

        async def waiting() -> bool:
            return await metric(engine, "num_requests_waiting") == 1

        await eventually(waiting)
        assert await metric(engine, "num_requests_running") == 2
        assert await metric(engine, "kv_cache_usage_perc") == 0.008
        w1.close()
        assert (await asyncio.wait_for(read_answer(r3), 5)).status == 200
    await eventually(lambda: engine.requests()["req-1"]["state"] == "aborted")
    assert await metric(engine, "generation_tokens_total") == 3
    assert await metric(engine, "prompt_tokens_total") == 9


async def test_a_client_that_leaves_frees_its_slot_and_is_counted_no_further(sim_engine: SimEngine) -> None:
    async with connection(sim_engine) as (reader, writer):
        writer.write(
            message("/v1/chat/completions", HELLO | {"stream": True, "max_tokens": 5000}, x_request_id="req-1")
        )
        await reader.readuntil(b"tok3 ")
    await eventually(lambda: sim_engine.requests()["req-1"]["state"] == "aborted")
    counted = sim_engine.requests()["req-1"]["generated"]
    assert 4 <= counted < 5000
    assert await metric(sim_engine, "num_requests_running") == 0
    assert sim_engine.requests()["req-1"]["generated"] == counted


async def test_a_slow_reader_is_waited_for(sim_engine: SimEngine) -> None:
    words = " ".join(["x" * 500_000] * 40)
    body = HELLO | {"messages": [{"role": "user", "content": words}], "stream": True, "sim": {"echo": True}}
    async with connection(sim_engine) as (reader, writer):
        writer.write(message("/v1/chat/completions", body, x_request_id="req-1"))
        await reader.readuntil(b"\r\n\r\n")
        stalled = 0

        def stands() -> bool:
            nonlocal stalled
            before, stalled = stalled, sim_engine.requests()["req-1"]["generated"]
            return 0 < stalled == before < 40

        await eventually(stands, every_s=0.1)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tok_s", [0, 500])
async def test_fails_as_told(sim_engine: SimEngine, stream: bool, tok_s: float) -> None:
    async def failing(**sim: Any) -> Answer:
        return await chat(sim_engine, stream=stream, max_tokens=9, sim={"tok_s": tok_s} | sim)

    failed = await failing(fail_status=429, retry_after_s=7)
    assert failed.status == 429
    assert failed.headers["retry-after"] == "7"
    erring = await failing(error_after=2)
    if stream:
        assert erring.status == 200
        assert [("error" in event) for event in erring.events] == [False, False, False, True, False]
        cut = await failing(cut_after=3)
        assert not cut.whole
        assert cut.text == "tok0 tok1 tok2 "
    else:
        assert erring.status == 500
        with pytest.raises(asyncio.IncompleteReadError):
            await failing(cut_after=3)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(failing(hang_after=2), 0.1)


@pytest.mark.parametrize("tok_s", [0, 500])
async def test_dies_as_told(sim_engine: SimEngine, tok_s: float) -> None:
    answer = await chat(sim_engine, stream=True, sim={"die_after": 2, "tok_s": tok_s})
    assert not answer.whole
    assert answer.text == "tok0 tok1 "
    assert sim_engine.ended() == 70


async def test_behaviour_for_the_next_requests(sim_engine: SimEngine) -> None:
    sim_engine.behave(times=2, fail_status=503, tok_s=0)
    assert [(await chat(sim_engine, max_tokens=1)).status for _ in range(3)] == [503, 503, 200]
    sim_engine.behave(fail_status=500)
    assert [(await chat(sim_engine)).status for _ in range(3)] == [500, 500, 500]


async def test_loading_answers_503(tmp_path: Path) -> None:
    engine = SimEngine(tmp_path, options=("--load-s", "0.3"))
    engine.start()
    try:
        assert (await chat(engine, max_tokens=1)).status == 200
        assert "loading" not in engine.log_file.read_text()
    finally:
        engine.stop()


async def test_keep_alive_and_pipelined_requests_in_order(sim_engine: SimEngine) -> None:
    async with connection(sim_engine) as (reader, writer):
        for number in range(3):
            body = HELLO | {"max_tokens": 3 - number, "stream": number == 0}
            writer.write(message("/v1/chat/completions", body, x_request_id=f"req-{number}"))
        answers = [await asyncio.wait_for(read_answer(reader), 5) for _ in range(3)]
    assert [answer.headers["x-request-id"] for answer in answers] == ["req-0", "req-1", "req-2"]


async def test_freeze_and_thaw(sim_engine: SimEngine) -> None:
    sim_engine.freeze()
    asking = asyncio.create_task(chat(sim_engine, max_tokens=1))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asking), 0.1)
    sim_engine.thaw()
    assert (await asking).status == 200


WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


async def test_thinks_calls_tools_and_says_the_same_streamed_and_not(sim_engine: SimEngine) -> None:
    for interleaved in (False, True):
        sim_engine.behave(thinking=2, tools=2, interleaved=interleaved, tok_s=0)
        asked = {"tools": [{"type": "function", "function": WEATHER}]}
        message_ = (await chat(sim_engine, **asked)).json["choices"][0]
        assert message_["finish_reason"] == "tool_calls"
        assert message_["message"]["reasoning_content"] == "thought0 thought1 "
        calls = [call["function"] for call in message_["message"]["tool_calls"]]
        assert calls == [{"name": "weather", "arguments": f'{{"city":"text{n}"}}'} for n in range(2)]
        *chunks, _ = (await chat(sim_engine, stream=True, **asked)).events
        joined = {0: "", 1: ""}
        for chunk in chunks:
            for piece in chunk["choices"][0]["delta"].get("tool_calls", ()):
                joined[piece["index"]] += piece["function"]["arguments"]
        assert [*joined.values()] == [call["arguments"] for call in calls]
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    cut = (await chat(sim_engine, max_tokens=3, **asked)).json
    assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 3)
    assert cut["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2


async def test_refuses_obeys_schemas_and_calls_what_it_must(sim_engine: SimEngine) -> None:
    sim_engine.behave(refuse=True, times=1)
    refused = (await chat(sim_engine)).json["choices"][0]["message"]
    assert (refused["content"], refused["refusal"]) == (None, "I will not. ")
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": WEATHER["parameters"]}}
    assert (await chat(sim_engine, response_format=schema)).json["choices"][0]["message"][
        "content"
    ] == '{"city":"text"}'
    tools = [{"type": "function", "function": WEATHER}]
    called = (await chat(sim_engine, tools=tools, tool_choice="required")).json["choices"][0]["message"]
    assert len(called["tool_calls"]) == 1
    assert "tool_calls" not in (await chat(sim_engine, tools=tools)).json["choices"][0]["message"]


async def test_reads_texts(sim_engine: SimEngine) -> None:
    one = (await call(sim_engine, "/v1/embeddings", {"model": "sim", "input": ["a b", "a c"]})).json
    assert [len(each["embedding"]) for each in one["data"]] == [16, 16]
    assert one["usage"]["prompt_tokens"] == 4
    assert (await call(sim_engine, "/v1/embeddings", {"input": "a", "encoding_format": "base64"})).status == 400
    asked = {"model": "sim", "query": "a b", "documents": ["x", "a", "b a"], "top_n": 2}
    ranked = (await call(sim_engine, "/v1/rerank", asked)).json
    assert [(each["index"], each["relevance_score"]) for each in ranked["results"]] == [(2, 1.0), (1, 0.5)]
    tokens = (await call(sim_engine, "/tokenize", {"prompt": "say it again"})).json["tokens"]
    assert (await call(sim_engine, "/detokenize", {"tokens": tokens})).json == {"prompt": "say it again"}


async def test_agent_calls_what_the_prompt_names_and_answers_the_result(sim_engine: SimEngine) -> None:
    sim_engine.behave(agent=True, tok_s=0)
    add = {"name": "add", "parameters": {"properties": {"n": {"type": "integer"}}}}
    tools = [{"type": "function", "function": one} for one in (WEATHER, add)]

    async def calls(text: str, role: str = "user", **more: Any) -> list[tuple[str, Any]]:
        asked = {"messages": [{"role": role, "content": text}], "tools": tools, **more}
        found = (await chat(sim_engine, **asked)).json["choices"][0]["message"].get("tool_calls", [])
        return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found]

    assert await calls("It's 'Paris' and \"Rome\"") == [("weather", {"city": "Paris"}), ("weather", {"city": "Rome"})]
    assert await calls("add 3") == [("add", {"n": 3})]
    assert await calls("'Paris'", role="tool") == await calls("'Paris'", tool_choice="none") == []
    asked = {"messages": [{"role": "user", "content": "'a' and 'b'"}], "response_format": {"type": "json_object"}}
    told = (await chat(sim_engine, **asked)).json["choices"][0]["message"]["content"]
    assert json.loads(told) == {"a": "a", "b": "a"}


async def test_an_agent_does_what_it_is_told_word_for_word(sim_engine: SimEngine) -> None:
    sim_engine.behave(agent=True, tok_s=0)
    tools = [{"type": "function", "function": one} for one in (WEATHER, {"name": "read", "parameters": {}})]
    turns: list[dict[str, Any]] = [{"role": "user", "content": 'Do. [[read {"n": 1}]] [[read {"n": 2}]]'}]
    for n in (1, 2):
        message = (await chat(sim_engine, messages=turns, tools=tools)).json["choices"][0]["message"]
        (call,) = message["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("read", {"n": n})
        turns += [message, {"role": "tool", "content": f"result {n}"}, {"role": "user", "content": "go on"}]
    last = (await chat(sim_engine, messages=turns, tools=tools)).json["choices"][0]
    assert (last["message"]["content"], last["finish_reason"]) == ("result 2", "stop")
    said = [{"role": "user", "content": '[[say {"text": "as it is"}]]'}]
    assert (await chat(sim_engine, messages=said)).json["choices"][0]["message"]["content"] == "as it is"
    for odd in ('[[read {\\"n\\": 1}]]', "[[unknown {}]]", "[[read]]"):
        answer = (await chat(sim_engine, messages=[{"role": "user", "content": odd}])).json
        assert answer["choices"][0]["message"]["content"]
