"""openai-agents: its runner over Responses, which is what it uses by default, and over Chat."""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    AsyncOpenAI,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import BASE_URL, CITIES, KEY, SIM, THINKS, check
from pydantic import BaseModel

set_tracing_disabled(True)
KINDS: dict[str, Any] = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}


class Place(BaseModel):
    city: str
    people: int


asked: list[str] = []


@function_tool
def weather(city: str) -> str:
    """The weather.

    Args:
        city: Where.
    """
    asked.append(city)
    return f"fine in {city}"


def through(kind: Any, model: str) -> Any:
    return kind(model, AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0))


for way, kind in KINDS.items():

    @check(f"{way}: tools, parallel", SIM, THINKS)
    async def tools(model: str, kind: Any = kind) -> None:
        asked.clear()
        agent = Agent(name="a", instructions="Use the tools.", model=through(kind, model), tools=[weather])
        done = await Runner.run(agent, CITIES)
        assert sorted(asked) == ["Paris", "Rome"]
        assert done.final_output
        assert sum(one.usage.output_tokens for one in done.raw_responses) > 0

    @check(f"{way}: tools, streamed", SIM, THINKS)
    async def streamed(model: str, kind: Any = kind) -> None:
        asked.clear()
        agent = Agent(name="a", model=through(kind, model), tools=[weather])
        running = Runner.run_streamed(agent, CITIES)
        kinds = {event.type async for event in running.stream_events()}
        assert {"raw_response_event", "run_item_stream_event"} <= kinds
        assert sorted(asked) == ["Paris", "Rome"]
        assert running.final_output

    @check(f"{way}: output of a type", SIM)
    async def typed(model: str, kind: Any = kind) -> None:
        agent = Agent(name="a", model=through(kind, model), output_type=Place)
        done = await Runner.run(agent, "Where do 7 people live? In 'Paris'.")
        assert done.final_output == Place(city="Paris", people=7)

    @check(f"{way}: handoff", SIM)
    async def handoff(model: str, kind: Any = kind) -> None:
        expert = Agent(name="expert", model=through(kind, model))
        agent = Agent(name="first", model=through(kind, model), handoffs=[expert])
        done = await Runner.run(agent, "Do this. [[transfer_to_expert {}]]")
        assert done.last_agent.name == "expert"
        assert done.final_output
