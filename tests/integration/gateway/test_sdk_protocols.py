"""The anthropic SDK, and the openai SDK's Responses and embeddings, against the gateway and a simulated engine."""

from __future__ import annotations

import base64
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest

from libs.bus import Bus
from libs.testing.engine import SimEngine
from libs.testing.sim_engine.vectors import embedding

from .conftest import KEY, Client, World

HI: Any = [{"role": "user", "content": "say hello now"}]
CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [
    {"name": "weather", "description": "The weather.", "input_schema": CITY},
    {"name": "clock", "input_schema": {"type": "object", "properties": {}}},
]
FUNCTIONS: Any = [{"type": "function", "name": "weather", "parameters": CITY, "strict": False}]


@pytest.fixture
async def gateway(world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]) -> Client:
    await world.route(sim_engine, capabilities=())
    return await world.gateway(await connect_as("gateway"))


@pytest.fixture
async def claude(gateway: Client) -> AsyncIterator[anthropic.AsyncAnthropic]:
    url = f"http://127.0.0.1:{gateway.port}"
    async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
async def sdk(gateway: Client) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{gateway.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


async def test_anthropic_messages(claude: anthropic.AsyncAnthropic) -> None:
    whole = await claude.messages.create(model="sim", max_tokens=3, messages=HI, system="Be brief.")
    assert [block.type for block in whole.content] == ["text"]
    assert (whole.stop_reason, whole.usage.output_tokens, whole.usage.input_tokens) == ("max_tokens", 3, 5)
    assert whole.id.startswith("msg_")
    async with claude.messages.stream(model="sim", max_tokens=3, messages=HI, system="Be brief.") as stream:
        texts = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert texts == ["tok0 ", "tok1 ", "tok2 "]
    assert [block.text for block in final.content if block.type == "text"] == ["tok0 tok1 tok2 "]
    assert (final.stop_reason, final.usage.input_tokens) == (whole.stop_reason, 5)
    counted = await claude.messages.count_tokens(model="sim", messages=HI, system="Be brief.")
    assert counted.input_tokens == 5
    assert [model.id async for model in claude.models.list()] == ["sim"]


async def test_anthropic_tools_and_thinking(claude: anthropic.AsyncAnthropic, sim_engine: SimEngine) -> None:
    messages: list[Any] = [*HI]
    for turn in range(3):
        sim_engine.behave(tools=3, thinking=2, interleaved=turn == 1)
        asked: Any = {"model": "sim", "max_tokens": 100, "messages": messages, "tools": TOOLS}
        asked |= {"thinking": {"type": "enabled", "budget_tokens": 1024}}
        whole = await claude.messages.create(**asked)
        async with claude.messages.stream(**asked) as stream:
            final = await stream.get_final_message()
        kinds = [block.type for block in final.content]
        assert kinds == ["thinking", "text", "tool_use", "tool_use", "tool_use"]
        assert final.stop_reason == whole.stop_reason == "tool_use"
        calls = [block for block in final.content if block.type == "tool_use"]
        assert [(call.name, call.input) for call in calls] == [
            *(("weather", {"city": "text0"}), ("clock", {}), ("weather", {"city": "text2"})),
        ]
        assert len({call.id for call in calls}) == 3
        assert [block.to_dict() for block in whole.content if block.type != "tool_use"] == [
            block.to_dict() for block in final.content if block.type != "tool_use"
        ]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "fine"} for call in calls]
        messages += [{"role": "assistant", "content": final.content}, {"role": "user", "content": results}]
    sim_engine.behave(tools=0, thinking=0)
    forced: Any = {"type": "tool", "name": "clock"}
    called = await claude.messages.create(model="sim", max_tokens=50, messages=HI, tools=TOOLS, tool_choice=forced)
    assert [block.name for block in called.content if block.type == "tool_use"] == ["clock"]
    sim_engine.behave(refuse=True)
    refused = await claude.messages.create(model="sim", max_tokens=50, messages=HI)
    assert refused.stop_reason == "refusal"


async def test_anthropic_errors_have_their_types(claude: anthropic.AsyncAnthropic, sim_engine: SimEngine) -> None:
    with pytest.raises(anthropic.AuthenticationError):
        await claude.with_options(api_key="sk-wrong").messages.create(model="sim", max_tokens=1, messages=HI)
    with pytest.raises(anthropic.NotFoundError, match="sim"):
        await claude.messages.create(model="claude-9", max_tokens=1, messages=HI)
    tools: Any = [{"type": "web_search_20250305", "name": "web_search"}]
    with pytest.raises(anthropic.BadRequestError, match=r"tools\.0\.type") as bad:
        await claude.messages.create(model="sim", max_tokens=1, messages=HI, tools=tools)
    assert bad.value.request_id is not None
    sim_engine.behave(cut_after=2)
    async with claude.messages.stream(model="sim", max_tokens=9, messages=HI) as stream:
        with pytest.raises(anthropic.APIStatusError, match="stopped before"):
            await stream.get_final_message()


async def test_openai_responses(sdk: openai.AsyncOpenAI, sim_engine: SimEngine) -> None:
    whole = await sdk.responses.create(model="sim", input="say hello now", max_output_tokens=3)
    assert whole.output_text == "tok0 tok1 tok2 "
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")  # type: ignore[union-attr]
    sim_engine.behave(thinking=2, tools=2, interleaved=True)
    asked: Any = {"model": "sim", "input": "?", "tools": FUNCTIONS, "reasoning": {"effort": "low", "summary": "auto"}}
    async with sdk.responses.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert "response.reasoning_summary_text.delta" in kinds
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
    calls = [item for item in final.output if item.type == "function_call"]
    assert [(call.name, call.arguments) for call in calls] == [
        *(("weather", '{"city":"text0"}'), ("weather", '{"city":"text1"}')),
    ]
    sim_engine.behave(tools=0, thinking=0)
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "18"} for call in calls]
    items = [item.to_dict() for item in final.output]
    again = await sdk.responses.create(model="sim", input=[*HI, *items, *outputs], max_output_tokens=2)  # type: ignore[list-item]
    assert again.output_text == "tok0 tok1 "
    form: Any = {"format": {"type": "json_schema", "name": "city", "schema": CITY}}
    assert (await sdk.responses.create(model="sim", input="?", text=form)).output_text == '{"city":"text"}'
    with pytest.raises(openai.BadRequestError, match="not stored here"):
        await sdk.responses.create(model="sim", input="x", previous_response_id="resp_1")
    sim_engine.behave(error_after=2)
    stream = await sdk.responses.create(model="sim", input="x", stream=True)  # type: ignore[assignment]
    last = [event async for event in stream][-1]  # type: ignore[union-attr]
    assert last.type == "response.failed"


async def test_openai_embeddings(sdk: openai.AsyncOpenAI, gateway: Client, world: World) -> None:
    """What the SDK asks for by default is base64; the engine knows numbers only."""
    wanted = [embedding(text, None) for text in ("one two", "three")]
    answer = await sdk.embeddings.create(model="sim", input=["one two", "three"])
    assert [one.embedding for one in answer.data] == wanted
    assert answer.usage.prompt_tokens == 3
    floats = await sdk.embeddings.create(model="sim", input=["one two", "three"], encoding_format="float")
    assert [one.embedding for one in floats.data] == wanted
    short = await sdk.embeddings.create(model="sim", input="one two", dimensions=4)
    assert short.data[0].embedding == embedding("one two", 4)
    raw = await gateway.send(
        "POST", "/v1/embeddings", {"model": "sim", "input": "one two", "encoding_format": "base64"}
    )
    packed = base64.b64decode(raw.json["data"][0]["embedding"])
    assert packed == struct.pack("<16f", *wanted[0])
    record = await world.record(raw.request_id)
    assert (record.protocol, record.prompt_tokens, record.completion_tokens) == ("openai.embeddings", 2, 0)


async def test_chat_tools_of_the_simulated_engine(sdk: openai.AsyncOpenAI, sim_engine: SimEngine) -> None:
    sim_engine.behave(tools=2, interleaved=True)
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
    whole = await sdk.chat.completions.create(model="sim", messages=HI, tools=tools)
    async with sdk.chat.completions.stream(model="sim", messages=HI, tools=tools) as stream:
        final = await stream.get_final_completion()
    for one in (whole, final):
        calls = one.choices[0].message.tool_calls
        assert calls is not None
        assert [call.function.arguments for call in calls] == ['{"city":"text0"}', '{"city":"text1"}']  # type: ignore[union-attr]
        assert one.choices[0].finish_reason == "tool_calls"
