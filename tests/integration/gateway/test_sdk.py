"""The openai SDK cannot tell it from the real thing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from libs.testing import eventually

from .conftest import KEY, Client, World

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def sdk(gateway: Client) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key=KEY, max_retries=0) as client:
        yield client


async def test_models_chat_and_streams(sdk: openai.AsyncOpenAI) -> None:
    models = [model.id async for model in sdk.models.list()]
    assert models == ["sim"]
    assert (await sdk.models.retrieve("sim")).owned_by == "llmgw"
    whole = await sdk.chat.completions.create(model="sim", messages=HELLO, max_tokens=5)  # type: ignore[arg-type]
    assert whole.choices[0].message.content == "tok0 tok1 tok2 tok3 tok4 "
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 5
    for asks in (True, False):
        options = {"stream_options": {"include_usage": True}} if asks else {}
        stream = await sdk.chat.completions.create(  # type: ignore[call-overload]
            model="sim", messages=HELLO, max_tokens=5, stream=True, **options
        )
        chunks = [chunk async for chunk in stream]
        assert (
            "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
        )
        with_usage = [chunk.usage for chunk in chunks if chunk.usage]
        assert [usage.completion_tokens for usage in with_usage] == ([5] if asks else [])
    text = await sdk.completions.create(model="sim", prompt="once", max_tokens=2)
    assert text.choices[0].text == "tok0 tok1 "


async def test_errors_have_their_types(sdk: openai.AsyncOpenAI, gateway: Client, world: World) -> None:
    with pytest.raises(openai.AuthenticationError) as wrong:
        await sdk.with_options(api_key="sk-llmgw-wrong").models.list()
    assert wrong.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError, match="sim") as unknown:
        await sdk.chat.completions.create(model="gpt-9", messages=HELLO)  # type: ignore[arg-type]
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await sdk.chat.completions.create(model="sim", messages=HELLO, max_tokens=99999)  # type: ignore[arg-type]
    assert bad.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError) as field:
        await sdk.chat.completions.create(model="sim", messages="hello")  # type: ignore[arg-type]
    assert field.value.param == "messages"
    await world.key("sk-slow", key_id="k-slow", rpm=1)
    slow = sdk.with_options(api_key="sk-slow")
    await eventually(lambda: slow.chat.completions.create(model="sim", messages=HELLO, max_tokens=1))  # type: ignore[arg-type]
    with pytest.raises(openai.RateLimitError) as limited:
        await slow.chat.completions.create(model="sim", messages=HELLO, max_tokens=1)  # type: ignore[arg-type]
    assert int(limited.value.response.headers["retry-after"]) > 0


async def test_an_error_in_the_stream_is_an_exception(sdk: openai.AsyncOpenAI, gateway: Client, sim_engine) -> None:  # type: ignore[no-untyped-def]
    sim_engine.behave(cut_after=3)
    stream = await sdk.chat.completions.create(model="sim", messages=HELLO, max_tokens=9, stream=True)  # type: ignore[call-overload]
    with pytest.raises(openai.APIError, match="stopped before"):
        async for _ in stream:
            pass
