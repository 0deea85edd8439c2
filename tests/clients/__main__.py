"""``make clients``: a cluster, unchanged clients against it, and the table of docs/clients.md made of what came out.

``python -m tests.clients [NAME …]`` runs only those named and renews only their rows. Every client is installed by
its pinned version into an environment of its own under build/clients.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.e2e.cluster import Cluster

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "clients"
PAGE = ROOT / "docs" / "clients.md"
BEGIN, END = "<!-- clients: begin -->", "<!-- clients: end -->"
SCRIPT_S = 600
"""Agents are programs that are started again for every check, and start slowly."""
INSTALL_S = 600


class Client(NamedTuple):
    """A client, how it is installed, and the script that tries it: Python's if it ends in ``.py``, else Node's."""

    name: str
    script: str
    packages: tuple[str, ...]
    """As ``name==version`` or ``name@version``; the first is the one it is known by."""

    @property
    def is_python(self) -> bool:
        return self.script.endswith(".py")

    @property
    def versions(self) -> str:
        return ", ".join(
            package.replace("==", " ") if self.is_python else _spaced(package) for package in self.packages
        )


def _spaced(package: str) -> str:
    name, _, version = package.replace("==", "@").rpartition("@")
    return f"{name} {version}"


AI_SDK = ("ai@7.0.173", "@ai-sdk/openai@4.0.118", "@ai-sdk/openai-compatible@3.0.92", "@ai-sdk/anthropic@4.0.105")
LLAMA_INDEX = ("llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0")
CLIENTS = (
    Client("openai-python", "openai_python.py", ("openai==3.57.0",)),
    Client("openai-node", "openai_node.mjs", ("openai@7.59.0", "zod@4.6.7")),
    Client("anthropic-python", "anthropic_python.py", ("anthropic==2.14.0",)),
    # The last that speaks the version of the protocol before.
    Client("anthropic-python 1", "anthropic_python.py", ("anthropic==1.17.0",)),
    Client("anthropic-node", "anthropic_node.mjs", ("@anthropic-ai/sdk@1.14.0",)),
    Client("Vercel AI SDK", "ai_sdk.mjs", (*AI_SDK, "zod@4.6.7")),
    Client("LangChain", "langchain_standard.py", ("langchain-openai==1.7.4", "langchain-tests==1.1.9")),
    Client("LlamaIndex", "llama_index_client.py", LLAMA_INDEX),
    Client("LiteLLM", "litellm_client.py", ("litellm==1.110.2",)),
    Client("llm", "llm_tool.py", ("llm==0.36",)),
    Client("Claude Code", "claude_code.mjs", ("@anthropic-ai/claude-code@2.1.332",)),
    Client("Codex CLI", "codex_cli.mjs", ("@openai/codex@0.171.0",)),
    Client("Continue cn", "continue_cn.mjs", ("@continuedev/cli@1.5.47",)),
    Client("opencode", "opencode.mjs", ("opencode-ai@1.18.33",)),
    Client("aider", "aider.py", ("aider-chat==0.86.2",)),
    Client("openai-agents", "openai_agents.py", ("openai-agents==0.24.0",)),
    Client("pydantic-ai", "pydantic_agents.py", ("pydantic-ai-slim[openai,anthropic]==2.66.0",)),
    Client("instructor", "instructor_client.py", ("instructor[anthropic]==1.17.0",)),
)


class Check(NamedTuple):
    what: str
    model: str
    problem: str


def place_of(client: Client) -> Path:
    return BUILD / client.name.lower().replace(" ", "-")


def install(client: Client) -> None:
    """Make its environment, unless it is there with these versions. Raises CalledProcessError."""
    place = place_of(client)
    stamp = place / ".installed"
    wanted = "\n".join(client.packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"installing {client.versions} ...", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if client.is_python:
        commands = [
            [sys.executable, "-m", "venv", str(place)],
            [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-qq", "install"],
        ]
    else:
        (place / "package.json").write_text('{"private": true}')
        commands = [["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--save-exact"]]
    commands[-1] += client.packages
    for command in commands:
        subprocess.run(command, cwd=place, check=True, timeout=INSTALL_S)
    stamp.write_text(wanted)


def tried(client: Client, url: str, key: str, spent_key: str) -> list[Check]:
    """Run its script; what it printed, and as a problem how it ended if not well."""
    place = place_of(client)
    # Node looks for packages beside the script, and pytest for its settings above it.
    for file in (HERE / client.script, *HERE.glob("checks.*")):
        shutil.copy(file, place)
    program = str(place / "bin" / "python") if client.is_python else "node"
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        ended = "did not end in time"
        try:
            done = subprocess.run(
                [program, client.script],
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                timeout=SCRIPT_S,
                env={
                    **os.environ,
                    "LLMGW_CHECK_URL": url.removesuffix("/v1"),
                    "LLMGW_CHECK_KEY": key,
                    "LLMGW_CHECK_SPENT_KEY": spent_key,
                },
                check=False,
            )
            ended = f"ended with {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            pass
        out.seek(0)
        errors.seek(0)
        lines = [line for line in out.read().splitlines() if line.startswith('{"check"')]
        last = errors.read().strip()[-300:]
    found = [Check(line["check"], line["model"], line["problem"]) for line in map(json.loads, lines)]
    if ended or not found:
        found.append(Check("the script", "", f"{ended or 'tried nothing'}: {last}"))
    return found


def row(client: Client, checks: list[Check]) -> str:
    """Its line of the table."""
    if client.name == "LangChain":
        names = ["its standard tests of chat models (chat and Responses) and of embeddings"]
    else:
        names = list(dict.fromkeys(check.what for check in checks))
    bad = [check for check in checks if check.problem]
    result = f"{len(checks) - len(bad)} of {len(checks)} pass"
    if bad:
        result += "; not: " + ", ".join(f"{check.what} ({check.model})" for check in bad)
    cells = (client.name, client.versions, "; ".join(names), result)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def write(rows: dict[str, str]) -> None:
    """Put the rows, by client, into the table between the markers of the page; those of other clients stay."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    known = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ")} | rows
    listed = [known[client.name] for client in CLIENTS if client.name in known]
    table = "\n".join(("| Client | Version | What was tried | Result |", "|---|---|---|---|", *listed))
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def main(names: list[str]) -> int:
    chosen = [client for client in CLIENTS if not names or client.name in names]
    if missing := set(names) - {client.name for client in chosen}:
        print(f"there is no client {', '.join(sorted(missing))}; there are {', '.join(one.name for one in CLIENTS)}")
        return 2
    if any(not client.is_python for client in chosen) and not (shutil.which("node") and shutil.which("npm")):
        print("node and npm are needed for the clients in JavaScript: install Node 20 or newer")
        return 2
    for client in chosen:
        install(client)
    failed = 0
    rows: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="llmgw-clients-") as directory:
        cluster = Cluster(Path(directory) / "state")
        try:
            cluster.up("--port", "0", "--fleet", str(HERE / "fleet.yaml"))
            cluster.until_served(60)
            spent_key = cluster.json("key", "create", "demo/demo/demo", "--budget", "0.000001/total")["key"]
            for client in chosen:
                checks = tried(client, cluster.base_url, cluster.client_key, spent_key)
                bad = [check for check in checks if check.problem]
                failed += len(bad)
                print(f"{client.name}: {len(checks) - len(bad)} of {len(checks)}", flush=True)
                for check in bad:
                    print(f"  {check.what} ({check.model}): {check.problem}", flush=True)
                rows[client.name] = row(client, checks)
        finally:
            cluster.down()
    write(rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
