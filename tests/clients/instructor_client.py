"""instructor: objects of a type, by tools and by schema, over OpenAI's protocols and over Anthropic's."""

from __future__ import annotations

from typing import Any

import anthropic
import instructor
import openai
from checks import BASE_URL, KEY, ROOT_URL, SIM, check
from pydantic import BaseModel

ASKS: Any = [{"role": "user", "content": "Where do 7 people live? In 'Paris'."}]
SDK = openai.OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)
CLAUDE = anthropic.Anthropic(base_url=ROOT_URL, api_key=KEY, max_retries=0)


class Place(BaseModel):
    city: str
    people: int


WAYS: dict[str, Any] = {
    "openai: tools": lambda: instructor.from_openai(SDK, mode=instructor.Mode.TOOLS),
    "openai: json_schema": lambda: instructor.from_openai(SDK, mode=instructor.Mode.JSON_SCHEMA),
    "openai: responses": lambda: instructor.from_openai(SDK, mode=instructor.Mode.RESPONSES_TOOLS),
    "anthropic: tools": lambda: instructor.from_anthropic(CLAUDE, mode=instructor.Mode.ANTHROPIC_TOOLS),
}

for way, made in WAYS.items():

    @check(way, SIM)
    def whole(model: str, way: str = way, made: Any = made) -> None:
        more: Any = {"max_tokens": 200} if "responses" not in way else {}
        place = made().create(model=model, messages=ASKS, response_model=Place, max_retries=0, **more)
        assert (place.city, place.people) == ("Paris", 7)

    if "responses" not in way:

        @check(f"{way}, in pieces", SIM)
        def partial(model: str, made: Any = made) -> None:
            pieces = list(made().create_partial(model=model, messages=ASKS, response_model=Place, max_tokens=200))
            assert (pieces[-1].city, pieces[-1].people) == ("Paris", 7)
