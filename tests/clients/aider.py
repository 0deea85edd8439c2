"""aider, which edits files by what a model writes, without tools: over OpenAI's Chat and over Anthropic's Messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import BASE_URL, KEY, ROOT_URL, SIM, check

SAID = "sea.txt\n```\nseven seas\n```\n"
"""A whole file, as aider's simplest format of edits has it."""
WAYS = {
    "openai": {"OPENAI_API_BASE": BASE_URL, "OPENAI_API_KEY": KEY},
    "anthropic": {"ANTHROPIC_API_BASE": ROOT_URL, "ANTHROPIC_API_KEY": KEY},
}


def aider(way: str, model: str, prompt: str, work: Path) -> str:
    done = subprocess.run(
        [
            *(str(Path(sys.executable).parent / "aider"), "--model", f"{way}/{model}", "--message", prompt),
            *("--edit-format", "whole", "--yes-always", "--no-git", "--no-show-model-warnings", "--no-check-update"),
            *("--analytics-disable", "--no-pretty", "--no-detect-urls", "sea.txt"),
        ],
        cwd=work,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=200,
        env={"PATH": os.environ["PATH"], "HOME": str(work), "LITELLM_LOCAL_MODEL_COST_MAP": "True", **WAYS[way]},
        check=False,
    )
    return done.stdout + done.stderr


for way in WAYS:

    @check(f"{way}: a file changed as the model wrote it", SIM)
    def edits(model: str, way: str = way) -> None:
        with tempfile.TemporaryDirectory() as directory:
            work = Path(directory)
            (work / "sea.txt").write_text("one sea\n")
            shown = aider(way, model, f"Change it. [[say {json.dumps({'text': SAID})}]]", work)
            assert (work / "sea.txt").read_text() == "seven seas\n", shown[-400:]
            assert "Tokens:" in shown

    @check(f"{way}: errors are told", SIM)
    def errors(model: str, way: str = way) -> None:
        with tempfile.TemporaryDirectory() as directory:
            assert "gpt-9" in aider(way, "gpt-9", "Hi", Path(directory))
