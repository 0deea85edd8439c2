"""anthropic-python."""

from __future__ import annotations

from typing import Any

import anthropic
from checks import CITIES, CITY, HI, KEY, REAL, ROOT_URL, SIM, SPENT_KEY, THINKS, check, raises

client = anthropic.Anthropic(base_url=ROOT_URL, api_key=KEY, max_retries=0, timeout=60)

TOOLS: Any = [{"name": "weather", "description": "The weather.", "input_schema": CITY}]
ASKS: Any = [{"role": "user", "content": CITIES}]


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


@check("models", REAL, SIM)
def models(model: str) -> None:
    assert model in [one.id for one in client.models.list()]
    assert client.models.retrieve(model).id == model


@check("messages", REAL, SIM)
def messages(model: str) -> None:
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    answer = client.messages.create(model=model, max_tokens=8, messages=HI, system=system)
    assert answer.id.startswith("msg_")
    assert text_of(answer)
    assert answer.stop_reason in ("max_tokens", "end_turn")
    assert answer.usage.output_tokens > 0
    assert answer._request_id


@check("messages streamed, by helper and as events", REAL, SIM)
def streamed(model: str) -> None:
    asked: Any = {"model": model, "max_tokens": 8, "messages": HI, "extra_body": {"temperature": 0}}
    with client.messages.stream(**asked) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(texts) == text_of(final) != ""
    events = [event.type for event in client.messages.create(**asked, stream=True)]
    assert events[0] == "message_start"
    assert events[-2:] == ["message_delta", "message_stop"]
    assert text_of(client.messages.create(**asked)) == text_of(final)


@check("messages streamed, async", REAL, SIM)
async def later(model: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=ROOT_URL, api_key=KEY, max_retries=0) as sdk:
        async with sdk.messages.stream(model=model, max_tokens=8, messages=HI) as stream:
            texts = [text async for text in stream.text_stream]
        assert texts


@check("tools", SIM)
def tools(model: str) -> None:
    asked: Any = {"model": model, "max_tokens": 100, "tools": TOOLS}
    turns: Any = [{"role": "user", "content": "Weather in 'Paris'?"}]
    called = client.messages.create(**asked, messages=turns)
    assert called.stop_reason == "tool_use"
    call: Any = next(block for block in called.content if block.type == "tool_use")
    assert (call.name, call.input) == ("weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "18 degrees"}
    turns += [{"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    again = client.messages.create(**asked, messages=turns)
    assert again.stop_reason in ("end_turn", "max_tokens")
    assert text_of(again)
    choice: Any = {"type": "tool", "name": "weather"}
    assert client.messages.create(**asked, messages=HI, tool_choice=choice).stop_reason == "tool_use"


@check("parallel tools, streamed", SIM)
def parallel_tools(model: str) -> None:
    with client.messages.stream(model=model, max_tokens=100, messages=ASKS, tools=TOOLS) as stream:
        final = stream.get_final_message()
    calls: Any = [block for block in final.content if block.type == "tool_use"]
    assert [call.input for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]
    assert len({call.id for call in calls}) == 2


@check("tool runner", SIM)
def runner(model: str) -> None:
    @anthropic.beta_tool
    def weather(city: str) -> str:
        """The weather.

        Args:
            city: Where.
        """
        return f"fine in {city}"

    final = client.beta.messages.tool_runner(model=model, max_tokens=100, messages=ASKS, tools=[weather]).until_done()
    assert text_of(final)


@check("thinking", THINKS)
def thinking(model: str) -> None:
    budget: Any = {"type": "enabled", "budget_tokens": 1024}
    asked: Any = {"model": model, "max_tokens": 2048, "thinking": budget, "tools": TOOLS}
    whole = client.messages.create(**asked, messages=ASKS)
    with client.messages.stream(**asked, messages=ASKS) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert "thinking" in kinds
    for one in (whole, final):
        assert [block.type for block in one.content] == ["thinking", "text", "tool_use", "tool_use"]
        first: Any = one.content[0]
        assert first.thinking
        assert first.signature is not None
    calls = [block for block in final.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "18"} for call in calls]
    turns: Any = [*ASKS, {"role": "assistant", "content": final.content}, {"role": "user", "content": results}]
    assert text_of(client.messages.create(**asked, messages=turns))
    plain = client.messages.create(model=model, max_tokens=100, messages=HI)
    assert [block.type for block in plain.content] == ["text"]


@check("count_tokens", REAL, SIM)
def count_tokens(model: str) -> None:
    counted = client.messages.count_tokens(model=model, messages=HI, system="Be brief.")
    answer = client.messages.create(model=model, max_tokens=1, messages=HI, system="Be brief.")
    cached = answer.usage.cache_read_input_tokens or 0
    assert counted.input_tokens == answer.usage.input_tokens + cached


@check("structured output", REAL, SIM)
def structured(model: str) -> None:
    form: Any = {"format": {"type": "json_schema", "schema": CITY}}
    answer = client.messages.create(model=model, max_tokens=200, messages=HI, output_config=form)
    assert text_of(answer).lstrip().startswith("{")


@check("errors have their types", REAL, SIM)
def errors(model: str) -> None:
    create: Any = client.messages.create
    wrong = client.with_options(api_key="sk-wrong")
    raises(anthropic.AuthenticationError, lambda: wrong.messages.create(model=model, max_tokens=1, messages=HI))
    unknown = raises(anthropic.NotFoundError, lambda: create(model="claude-9", max_tokens=1, messages=HI))
    assert unknown.request_id
    assert unknown.body["error"]["type"] == "not_found_error"
    web = [{"type": "web_search_20250305", "name": "web_search"}]
    bad = raises(anthropic.BadRequestError, lambda: create(model=model, max_tokens=1, messages=HI, tools=web))
    assert "tools.0.type" in str(bad)


@check("errors of an engine", SIM)
def engine_errors(model: str) -> None:
    asked: Any = {"model": model, "max_tokens": 9, "messages": HI}
    with client.messages.stream(**asked, extra_body={"sim": {"cut_after": 2}}) as stream:
        raises(anthropic.APIStatusError, stream.get_final_message)
    refused = client.messages.create(**asked, extra_body={"sim": {"refuse": True}})
    assert refused.stop_reason == "refusal"


@check("a spent budget is asked once", REAL)
def spent_budget(model: str) -> None:
    sent: list[Any] = []
    counted = anthropic.DefaultHttpxClient(event_hooks={"request": [sent.append]})
    spent = anthropic.Anthropic(base_url=ROOT_URL, api_key=SPENT_KEY, max_retries=9, timeout=60, http_client=counted)
    for stream in (False, True):
        asked: Any = {"model": model, "max_tokens": 9, "messages": HI, "stream": stream}
        refused = raises(anthropic.APIStatusError, lambda asked=asked: spent.messages.create(**asked))
        assert refused.status_code == 402
        assert refused.body["error"]["type"] == "billing_error"
    assert len(sent) == 2
