"""LiteLLM, as a client."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from checks import BASE_URL, CITIES, CITY, HI, KEY, REAL, REAL_EMBEDDINGS, ROOT_URL, SIM, THINKS, check, raises

TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
OPENAI: Any = {"api_base": BASE_URL, "api_key": KEY, "max_retries": 0}
WAYS: Any = {"openai": OPENAI, "anthropic": {"api_base": ROOT_URL, "api_key": KEY, "max_retries": 0}}

for way, to in WAYS.items():

    @check(f"{way}: chat, streamed and not", REAL, SIM)
    def chat(model: str, way: str = way, to: Any = to) -> None:
        asked: Any = {"model": f"{way}/{model}", "messages": HI, "max_tokens": 8, "temperature": 0, **to}
        whole = litellm.completion(**asked)
        assert whole.usage.completion_tokens > 0
        chunks = list(litellm.completion(**asked, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text.strip() == whole.choices[0].message.content.strip() != ""

    @check(f"{way}: parallel tools, streamed and not", SIM)
    def tools(model: str, way: str = way, to: Any = to) -> None:
        turns: Any = [{"role": "user", "content": CITIES}]
        asked: Any = {"model": f"{way}/{model}", "messages": turns, "tools": TOOLS, "max_tokens": 100, **to}
        whole = litellm.completion(**asked)
        streamed = litellm.stream_chunk_builder(list(litellm.completion(**asked, stream=True)))
        for one in (whole, streamed):
            calls = one.choices[0].message.tool_calls
            assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]
        results = [{"role": "tool", "tool_call_id": c.id, "content": "18"} for c in whole.choices[0].message.tool_calls]
        turns += [whole.choices[0].message, *results]
        assert litellm.completion(**asked).choices[0].message.content

    @check(f"{way}: errors", REAL)
    def errors(model: str, way: str = way, to: Any = to) -> None:
        asked: Any = {"messages": HI, "max_tokens": 8, **to}
        raises(litellm.NotFoundError, lambda: litellm.completion(model=f"{way}/gpt-9", **asked))
        asked |= {"api_key": "sk-wrong"}
        raises(litellm.AuthenticationError, lambda: litellm.completion(model=f"{way}/{model}", **asked))


@check("anthropic: thinking", THINKS)
def thinking(model: str) -> None:
    # It knows by name which of Anthropic's models think.
    budget: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "allowed_openai_params": ["thinking"]}
    asked: Any = {"model": f"anthropic/{model}", "messages": HI, "max_tokens": 2048, **WAYS["anthropic"]}
    assert litellm.completion(**asked, **budget).choices[0].message.reasoning_content


@check("json_schema", REAL, SIM)
def json_schema(model: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    asked: Any = {"model": f"openai/{model}", "messages": HI, "max_tokens": 200, "temperature": 0, **OPENAI}
    assert json.loads(litellm.completion(**asked, response_format=form).choices[0].message.content)["city"]


@check("completions", REAL, SIM)
def completions(model: str) -> None:
    asked: Any = {"model": f"text-completion-openai/{model}", "prompt": "The sea is", "max_tokens": 8, **OPENAI}
    assert litellm.text_completion(**asked).choices[0].text


@check("responses", REAL, SIM)
def responses(model: str) -> None:
    answer: Any = litellm.responses(model=f"openai/{model}", input="Say hello.", max_output_tokens=8, **OPENAI)
    assert answer.output


@check("embeddings", REAL_EMBEDDINGS, SIM)
def embeddings(model: str) -> None:
    answer = litellm.embedding(model=f"openai/{model}", input=["one two", "three"], **OPENAI)
    assert len(answer.data) == 2
    assert len(answer.data[0]["embedding"]) > 4


@check("rerank", SIM)
def rerank(model: str) -> None:
    asked: Any = {"query": "sea", "documents": ["land", "the sea"], "top_n": 1}
    answer = litellm.rerank(model=f"jina_ai/{model}", api_base=BASE_URL + "/rerank", api_key=KEY, **asked)
    assert answer.results
    assert len(answer.results) == 1
