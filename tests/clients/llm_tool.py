"""``llm``, the command line of Simon Willison, with the gateway's models in its own file of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from checks import BASE_URL, KEY, REAL, SIM, check

HOME = Path(__file__).parent / "home"
HOME.mkdir(exist_ok=True)
BASE = {"api_base": BASE_URL, "api_key_name": "llmgw"}
CHATS = [{"model_id": f"g-{model}", "model_name": model, **BASE} for model in (REAL, SIM)]
for one in CHATS:
    one |= {"supports_tools": True, "supports_schema": True}  # type: ignore[dict-item]
# JSON is YAML.
(HOME / "extra-openai-models.yaml").write_text(json.dumps(CHATS))
(HOME / "keys.json").write_text(json.dumps({"llmgw": KEY}))
WEATHER = 'def weather(city: str) -> str:\n    """The weather."""\n    return "fine in " + city\n'


def llm(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "llm", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        env={**os.environ, "LLM_USER_PATH": str(HOME)},
        check=False,
    )
    assert done.returncode == 0, done.stderr.strip()
    return done.stdout.strip() + done.stderr


@check("prompt, streamed and not", REAL, SIM)
def prompt(model: str) -> None:
    asked = ("-m", f"g-{model}", "Say hello.", "-o", "max_tokens", "8")
    assert llm(*asked)
    assert llm(*asked, "--no-stream")


@check("conversation", REAL, SIM)
def conversation(model: str) -> None:
    assert llm("-m", f"g-{model}", "Say hello.", "-o", "max_tokens", "8")
    assert llm("-c", "And again.", "-o", "max_tokens", "8")


@check("schema", REAL, SIM)
def schema(model: str) -> None:
    asked = ("-m", f"g-{model}", "Say hello.", "-o", "max_tokens", "200", "-o", "temperature", "0")
    assert "city" in json.loads(llm(*asked, "--schema", "city, people int"))


@check("tools", SIM)
def tools(model: str) -> None:
    shown = llm("-m", f"g-{model}", "--functions", WEATHER, "--td", "Weather in 'Paris' and in 'Rome'?")
    assert "fine in Paris" in shown
    assert "fine in Rome" in shown
