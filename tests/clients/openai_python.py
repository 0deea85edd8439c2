"""openai-python."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import openai
from checks import BASE_URL, CITIES, CITY, HI, KEY, REAL, REAL_EMBEDDINGS, SIM, SPENT_KEY, THINKS, check, raises
from pydantic import BaseModel

client = openai.OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0, timeout=60)

TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}]
FUNCTIONS: Any = [{"type": "function", "name": "weather", "parameters": CITY, "strict": True}]
ASKS: Any = [{"role": "user", "content": CITIES}]


class Place(BaseModel):
    city: str
    people: int


@check("models", REAL, SIM)
def models(model: str) -> None:
    assert {REAL, REAL_EMBEDDINGS, SIM, THINKS} <= {one.id for one in client.models.list()}
    assert client.models.retrieve(model).id == model


@check("chat", REAL, SIM)
def chat(model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=HI, max_tokens=8, temperature=0)
    assert answer.choices[0].message.content
    assert answer.model == model
    assert answer.usage
    assert 0 < answer.usage.completion_tokens <= 8
    assert answer._request_id


@check("chat streamed", REAL, SIM)
def chat_streamed(model: str) -> None:
    asked: Any = {"model": model, "messages": HI, "max_tokens": 8, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens  # type: ignore[union-attr]
    assert all(chunk.usage is None for chunk in client.chat.completions.create(**asked, stream=True))


@check("chat streamed, async", REAL, SIM)
async def chat_async(model: str) -> None:
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0) as sdk:
        stream = await sdk.chat.completions.create(model=model, messages=HI, max_tokens=8, stream=True)
        chunks = [chunk async for chunk in stream]
    assert any(chunk.choices[0].delta.content for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason


@check("completions", REAL, SIM)
def completions(model: str) -> None:
    asked: Any = {"model": model, "prompt": "The sea is", "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**asked).choices[0].text
    assert whole
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)) == whole


@check("tools", SIM)
def tools(model: str) -> None:
    asked: Any = {"model": model, "messages": [{"role": "user", "content": "Weather in 'Paris'?"}], "tools": TOOLS}
    message = client.chat.completions.create(**asked).choices[0].message
    assert message.tool_calls
    call: Any = message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}
    again = client.chat.completions.create(**{**asked, "messages": [*asked["messages"], message, result]})
    assert again.choices[0].finish_reason == "stop"
    assert again.choices[0].message.content
    forced: Any = {"type": "function", "function": {"name": "weather"}}
    called = client.chat.completions.create(model=model, messages=HI, tools=TOOLS, tool_choice=forced)
    assert called.choices[0].message.tool_calls


@check("parallel tools, streamed", SIM)
def parallel_tools(model: str) -> None:
    # The SDK reads the arguments of a strict tool at the next call's first piece: it cannot take them interleaved.
    loose = [{**tool, "function": {**tool["function"], "strict": False}} for tool in TOOLS]
    for offered, own in ((TOOLS, {}), (loose, {"interleaved": True})):
        asked: Any = {"model": model, "messages": ASKS, "tools": offered, "extra_body": {"sim": own}}
        with client.chat.completions.stream(**asked) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].finish_reason == "tool_calls"
        calls: Any = final.choices[0].message.tool_calls
        assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]
        assert len({call.id for call in calls}) == 2


@check("json_schema", REAL, SIM)
def json_schema(model: str) -> None:
    asked: Any = {"model": model, "messages": HI, "max_tokens": 200, "temperature": 0}
    parsed = client.chat.completions.parse(**asked, response_format=Place).choices[0].message.parsed
    assert isinstance(parsed, Place)


@check("refusal", SIM)
def refusal(model: str) -> None:
    asked: Any = {"model": model, "messages": HI, "extra_body": {"sim": {"refuse": True}}}
    assert client.chat.completions.create(**asked).choices[0].message.refusal
    with client.chat.completions.stream(**asked) as stream:
        assert stream.get_final_completion().choices[0].message.refusal


@check("embeddings: base64, float", REAL_EMBEDDINGS, SIM)
def embeddings(model: str) -> None:
    packed = client.embeddings.create(model=model, input=["one two", "three"])
    plain = client.embeddings.create(model=model, input=["one two", "three"], encoding_format="float")
    assert [one.index for one in packed.data] == [0, 1]
    for one, other in zip(packed.data, plain.data, strict=True):
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 1e-6
    assert packed.usage.prompt_tokens > 0
    raw: Any = client.embeddings.with_raw_response.create(model=model, input="one two", encoding_format="base64")
    text = json.loads(raw.text)["data"][0]["embedding"]
    assert len(struct.unpack(f"<{len(base64.b64decode(text)) // 4}f", base64.b64decode(text))) > 4


@check("embeddings: dimensions", REAL_EMBEDDINGS, SIM)
def dimensions(model: str) -> None:
    short = client.embeddings.create(model=model, input="one two", dimensions=8)
    assert len(short.data[0].embedding) == 8
    assert abs(sum(x * x for x in short.data[0].embedding) - 1) < 1e-3


@check("responses", REAL, SIM)
def responses(model: str) -> None:
    answer = client.responses.create(model=model, input="Say hello.", max_output_tokens=8, temperature=0)
    assert answer.output_text
    assert (answer.status, answer.incomplete_details and answer.incomplete_details.reason) in (
        *(("incomplete", "max_output_tokens"), ("completed", None)),
    )
    with client.responses.stream(model=model, input="Say hello.", max_output_tokens=8, temperature=0) as stream:
        events: list[Any] = list(stream)
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.output_text == answer.output_text
    assert events[-1].response.usage.output_tokens == answer.usage.output_tokens  # type: ignore[union-attr]


@check("responses: tools, thinking, streamed", THINKS)
def responses_tools(model: str) -> None:
    asked: Any = {"model": model, "tools": FUNCTIONS, "reasoning": {"summary": "auto"}}
    with client.responses.stream(**asked, input=CITIES) as stream:
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
    calls: Any = [item for item in final.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "18"} for call in calls]
    turns: Any = [*ASKS, *(item.to_dict() for item in final.output), *results]
    assert client.responses.create(**asked, input=turns).output_text


@check("responses: json_schema", REAL, SIM)
def responses_schema(model: str) -> None:
    asked: Any = {"model": model, "input": "Say hello.", "max_output_tokens": 200, "temperature": 0}
    assert isinstance(client.responses.parse(**asked, text_format=Place).output_parsed, Place)


@check("errors have their types", REAL, SIM)
def errors(model: str) -> None:
    create: Any = client.chat.completions.create
    wrong = client.with_options(api_key="sk-wrong")
    raises(openai.AuthenticationError, lambda: wrong.chat.completions.create(model=model, messages=HI))
    unknown = raises(openai.NotFoundError, lambda: create(model="gpt-9", messages=HI))
    assert unknown.code == "model_not_found"
    assert model in str(unknown)
    assert unknown.request_id
    assert raises(openai.BadRequestError, lambda: create(model=model, messages="no")).param == "messages"
    raises(openai.BadRequestError, lambda: create(model=model, messages=HI, max_tokens=10**9))
    raises(openai.BadRequestError, lambda: client.responses.create(model=model, input="x", previous_response_id="r"))
    raises(openai.NotFoundError, lambda: client.post("/nothing", cast_to=object))


@check("errors of an engine", SIM)
def engine_errors(model: str) -> None:
    asked: Any = {"model": model, "messages": HI}
    raises(
        openai.APIError,
        lambda: list(client.chat.completions.create(**asked, stream=True, extra_body={"sim": {"cut_after": 2}})),
    )
    raises(
        openai.InternalServerError,
        lambda: client.chat.completions.create(**asked, extra_body={"sim": {"fail_status": 500}}),
    )


@check("a spent budget is asked once", REAL)
def spent_budget(model: str) -> None:
    sent: list[Any] = []
    counted = openai.DefaultHttpxClient(event_hooks={"request": [sent.append]})
    spent = openai.OpenAI(base_url=BASE_URL, api_key=SPENT_KEY, max_retries=9, timeout=60, http_client=counted)
    asked: Any = {"model": model, "messages": HI}
    for stream in (False, True):
        refused = raises(openai.APIStatusError, lambda s=stream: spent.chat.completions.create(**asked, stream=s))
        assert (refused.status_code, refused.code) == (402, "budget_exceeded")
    raises(openai.APIStatusError, lambda: spent.responses.create(model=model, input="Hello."))
    assert len(sent) == 3
