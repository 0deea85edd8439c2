"""What every Python script here shares. A script runs in its client's own environment, where nothing of llmgw is."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any

ROOT_URL = os.environ["LLMGW_CHECK_URL"]
BASE_URL = ROOT_URL + "/v1"
KEY = os.environ["LLMGW_CHECK_KEY"]
SPENT_KEY = os.environ["LLMGW_CHECK_SPENT_KEY"]
"""Of a budget that has room for no request."""

REAL = "gemma3-270m"
REAL_EMBEDDINGS = "gemma3-270m-embeddings"
SIM = "sim"
THINKS = "sim-thinks"

HI: Any = [{"role": "user", "content": "Say hello."}]
CITIES = "What is the weather in 'Paris' and in 'Rome'?"
"""The simulated model asks a tool once for each thing that is quoted."""
CITY: Any = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def told(what: str, model: str, problem: str) -> None:
    """Print the outcome of a check, as a line of JSON; an empty problem: it passed."""
    sys.stdout.write(json.dumps({"check": what, "model": model, "problem": problem}) + "\n")
    sys.stdout.flush()


def check(what: str, *models: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run the function at once with each model, and print what came of it: whatever it raises is a problem."""

    def run(function: Callable[..., Any]) -> Callable[..., Any]:
        for model in models:
            problem = ""
            try:
                done = function(model)
                if inspect.iscoroutine(done):
                    asyncio.run(done)
            except Exception as error:
                place = error.__traceback__.tb_next if error.__traceback__ else None
                problem = f"{type(error).__name__}: {error} (line {place.tb_lineno if place else '?'})"
            told(what, model, problem)
        return function

    return run


def raises(kind: type[Exception], call: Callable[[], Any]) -> Any:
    """The error of this very kind that the call raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")
