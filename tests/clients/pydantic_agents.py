"""pydantic-ai: agents over OpenAI's Chat and Responses, and over Anthropic's Messages."""

from __future__ import annotations

from typing import Any

from checks import BASE_URL, CITIES, KEY, ROOT_URL, SIM, THINKS, check, raises
from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


def openai() -> Any:
    return OpenAIProvider(base_url=BASE_URL, api_key=KEY)


def anthropic() -> Any:
    return AnthropicProvider(base_url=ROOT_URL, api_key=KEY)


WAYS: dict[str, Any] = {
    "chat": lambda model: OpenAIChatModel(model, provider=openai()),
    "responses": lambda model: OpenAIResponsesModel(model, provider=openai()),
    "messages": lambda model: AnthropicModel(model, provider=anthropic()),
}


class Place(BaseModel):
    city: str
    people: int


def agent_of(model: Any, asked: list[str]) -> Any:
    agent: Any = Agent(model, instructions="Use the tools.")

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather."""
        asked.append(city)
        return f"fine in {city}"

    return agent


for way, of in WAYS.items():

    @check(f"{way}: tools, parallel", SIM, THINKS)
    async def tools(model: str, of: Any = of) -> None:
        asked: list[str] = []
        done = await agent_of(of(model), asked).run(CITIES)
        assert sorted(asked) == ["Paris", "Rome"]
        assert done.output

    @check(f"{way}: tools, streamed", SIM)
    async def streamed(model: str, of: Any = of) -> None:
        asked: list[str] = []
        async with agent_of(of(model), asked).run_stream(CITIES) as running:
            texts = [text async for text in running.stream_text(delta=True)]
        assert sorted(asked) == ["Paris", "Rome"]
        assert "".join(texts)

    @check(f"{way}: output of a type", SIM)
    async def typed(model: str, of: Any = of) -> None:
        agent: Any = Agent(of(model), output_type=Place)
        done = await agent.run("Where do 7 people live? In 'Paris'.")
        assert done.output == Place(city="Paris", people=7)

    @check(f"{way}: errors", SIM)
    def errors(model: str, of: Any = of) -> None:
        unknown = raises(ModelHTTPError, lambda: Agent(of("gpt-9")).run_sync("Hi"))
        assert unknown.status_code == 404
