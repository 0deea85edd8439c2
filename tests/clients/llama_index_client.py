"""LlamaIndex, through its integration of what is like OpenAI."""

from __future__ import annotations

from typing import Any

from checks import BASE_URL, CITIES, KEY, REAL, REAL_EMBEDDINGS, SIM, check
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

TURNS = [ChatMessage(role="user", content="Say hello.")]


class Place(BaseModel):
    """A place."""

    city: str


def served(model: str, **more: Any) -> OpenAILike:
    fixed: Any = {"api_base": BASE_URL, "api_key": KEY, "max_retries": 0, "is_chat_model": True, "max_tokens": 100}
    return OpenAILike(model=model, is_function_calling_model=True, temperature=0, **{**fixed, **more})


def weather(city: str) -> str:
    """The weather."""
    asked.append(city)
    return f"fine in {city}"


asked: list[str] = []
TOOL = FunctionTool.from_defaults(weather)


@check("chat, streamed and not", REAL, SIM)
def chat(model: str) -> None:
    llm = served(model, max_tokens=8)
    whole = llm.chat(TURNS).message.content
    assert whole
    assert list(llm.stream_chat(TURNS))[-1].message.content == whole


@check("chat, async", REAL, SIM)
async def later(model: str) -> None:
    llm = served(model, max_tokens=8)
    assert (await llm.achat(TURNS)).message.content
    assert [one async for one in await llm.astream_chat(TURNS)]


@check("completions, streamed and not", REAL, SIM)
def complete(model: str) -> None:
    llm = served(model, is_chat_model=False, max_tokens=8)
    whole = llm.complete("The sea is").text
    assert whole
    assert list(llm.stream_complete("The sea is"))[-1].text == whole


@check("parallel tools, streamed and not", SIM)
def tools(model: str) -> None:
    llm = served(model)
    given: Any = {"user_msg": CITIES, "allow_parallel_tool_calls": True}
    whole = llm.chat_with_tools([TOOL], **given)
    streamed = list(llm.stream_chat_with_tools([TOOL], **given))[-1]
    for answer in (whole, streamed):
        calls = llm.get_tool_calls_from_response(answer)
        assert [call.tool_kwargs for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]


@check("function agent", SIM)
async def agent(model: str) -> None:
    asked.clear()
    answer = await FunctionAgent(tools=[TOOL], llm=served(model)).run(user_msg=CITIES)
    assert str(answer)
    assert sorted(asked) == ["Paris", "Rome"]


@check("structured output", SIM)
def structured(model: str) -> None:
    answer: Any = served(model).as_structured_llm(Place).chat(TURNS)
    assert isinstance(answer.raw, Place)


@check("embeddings", REAL_EMBEDDINGS, SIM)
def embeddings(model: str) -> None:
    embed = OpenAILikeEmbedding(model_name=model, api_base=BASE_URL, api_key=KEY, max_retries=0)
    one, other = embed.get_text_embedding_batch(["one two", "three"])
    assert len(one) == len(other) > 4
