"""What the SDKs of OpenAI and Anthropic make of our answers: the same object whether it was streamed or not."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from services.gateway.core.faults import Fault, upstream_broken
from services.gateway.core.protocols.anthropic_messages.chat_to_message import MessageEvents, shape_of
from services.gateway.core.protocols.anthropic_messages.errors import TYPES, error_object

from . import engines
from .conversations import CHAT, HELLO, MESSAGES, RESPONSES, Json
from .record import TOKEN, path_of

SSE = {"content-type": "text/event-stream"}


def answering(golden: Json, prefix: str = "") -> httpx2.Client:
    """A server that has one answer, in one piece or streamed as it was asked for."""

    def handler(request: httpx2.Request) -> httpx2.Response:
        if json.loads(request.content).get("stream"):
            stream = "".join(f"{event}\n\n" for event in golden[f"stream{prefix}"])
            return httpx2.Response(200, headers=SSE, content=stream.encode())
        return httpx2.Response(200, json=golden[f"whole{prefix}"])

    return httpx2.Client(transport=httpx2.MockTransport(handler))


def golden(family: str, name: str) -> Json:
    stored: Json = json.loads(path_of(family, name).read_text(encoding="utf-8"))["golden"]
    return stored


def openai_client(client: httpx2.Client) -> openai.OpenAI:
    return openai.OpenAI(api_key="k", base_url="http://x/v1", http_client=client, max_retries=0)


def dumped(model: Any) -> Json:
    out: Json = model.to_dict(mode="json", exclude_unset=False)
    return json.loads(json.dumps(_without_nulls(out)))  # type: ignore[no-any-return]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(name: str) -> None:
    stored = golden("messages", name)
    sdk = anthropic.Anthropic(api_key="k", base_url="http://x", http_client=answering(stored), max_retries=0)
    asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "?"}]}
    whole = sdk.messages.create(**asked)
    with sdk.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    if name == "text-after-tools":
        # A whole chat completion does not say what came first.
        final.content.reverse()
    assert dumped(final) == dumped(whole)
    assert [json.loads(block.to_json()) for block in whole.content] == stored["whole"]["content"]


@pytest.mark.parametrize("name", RESPONSES)
def test_responses(name: str) -> None:
    stored = golden("responses", name)
    sdk = openai_client(answering(stored))
    whole = sdk.responses.create(model="m", input="?")
    with sdk.responses.stream(model="m", input="?") as stream:
        events = list(stream)
        last: Any = events[-1]
        if last.type == "response.completed":
            assert dumped(stream.get_final_response())["output"] == dumped(whole)["output"]
    assert dumped(last.response) == dumped(whole)
    shown = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert shown == whole.output_text


@pytest.mark.parametrize("backend", ["Message", "Response"])
@pytest.mark.parametrize("name", CHAT)
def test_chat(name: str, backend: str) -> None:
    sdk = openai_client(answering(golden("chat", name), f" of a {backend}"))
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
    whole = sdk.chat.completions.create(**asked)
    parsed: Json = {}
    with sdk.chat.completions.stream(**asked) as stream:
        try:
            final = stream.get_final_completion()
        except (openai.LengthFinishReasonError, openai.ContentFilterFinishReasonError):
            assert whole.choices[0].finish_reason in ("length", "content_filter")
            return
    for one, out in ((whole, {}), (final, parsed)):
        message = one.choices[0].message
        out |= {"content": message.content or "", "finish": one.choices[0].finish_reason, "usage": dumped(one.usage)}
        out["thoughts"] = getattr(message, "reasoning_content", None)
        out["calls"] = [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()]  # type: ignore[union-attr]
        blocks = getattr(message, "thinking_blocks", None) or []
        out["blocks"] = [{k: v for k, v in block.items() if k != "index"} for block in blocks]
        if one is whole:
            wanted = out
    assert parsed == wanted


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 429, 500, 503, 529])
def test_errors_of_messages_have_their_types(status: int) -> None:
    fault = Fault(status, "code", "Send something else.", param="messages.0")
    body = error_object(fault, "req-1")
    client = httpx2.Client(transport=httpx2.MockTransport(lambda request: httpx2.Response(status, json=body)))
    sdk = anthropic.Anthropic(api_key="k", base_url="http://x", http_client=client, max_retries=0)
    with pytest.raises(anthropic.APIStatusError) as raised:
        sdk.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "?"}])
    assert raised.value.status_code == status
    assert raised.value.body == body
    assert body["error"] == {"type": TYPES[status], "message": "messages.0: Send something else."}


def test_an_error_in_the_stream_of_a_message_is_an_exception() -> None:
    events = MessageEvents(shape_of({"model": "m"}, TOKEN))
    stream = engines.chat_stream(HELLO)
    cut = stream[: stream.index(b"! How")]
    content = events.feed(cut[: cut.rindex(b"data:")]) + events.fail(upstream_broken())
    client = httpx2.Client(
        transport=httpx2.MockTransport(lambda request: httpx2.Response(200, headers=SSE, content=content))
    )
    sdk = anthropic.Anthropic(api_key="k", base_url="http://x", http_client=client, max_retries=0)
    asked: Any = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "?"}]}
    with sdk.messages.stream(**asked) as opened, pytest.raises(anthropic.APIStatusError, match="stopped before"):
        opened.get_final_message()
