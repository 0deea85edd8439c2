"""The command line asks the log of a real bus what was, and what would be."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from libs.bus import Bus
from libs.events.commands import DefineModel, ScaleModel
from libs.events.model import Scaling
from libs.events.views import Route
from libs.testing import eventually
from libs.testing.nats import NatsServer
from tests.unit.scheduler.harness import cpu_profile, model_spec

from .agent import Agent, scheduler

SPEC = model_spec("m", 1, cpu_profile(memory_mb=100, cores=4))


async def llmgw(server: NatsServer, *arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.main", *arguments, "--nats", server.url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def value(server: NatsServer, *arguments: str) -> Any:
    code, out, err = await llmgw(server, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


async def endpoints(bus: Bus, model: str = "m") -> int:
    route = await bus.view("routes", Route).get(model)
    return len(route.endpoints) if route is not None else 0


async def test_what_was_and_what_would_be(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    async with scheduler(nats_server, tmp_path):
        agents = [await Agent(bus, name, tmp_path).start() for name in ("cpu-1", "cpu-2")]
        await bus.command(DefineModel(spec=SPEC))
        await eventually(lambda: _has(bus, 1))
        await asyncio.sleep(0.05)  # so that a time lies between
        then = datetime.now(UTC).isoformat()
        await asyncio.sleep(0.05)
        await bus.command(ScaleModel(model="m", scaling=Scaling(min=3)))
        await eventually(lambda: _has(bus, 3))

        now = await value(nats_server, "event", "replay")
        assert now["same"]
        past = await value(nats_server, "event", "replay", "--at", then)
        assert [(m["model"], m["wanted"], m["ready"]) for m in past["models"]] == [("m", 1, 1)]
        assert [n["state"] for n in past["nodes"]] == ["ready", "ready"]
        assert past["hash"] != now["hash"]

        explained = await value(nats_server, "explain", "m", "--at", then)
        assert len(explained["model"]["replicas"]) == 1
        assert len(explained["placements"]) == 1
        code, _, err = await llmgw(nats_server, "explain", "n", "--at", then)
        assert (code, "there is no model 'n'" in err) == (1, True)

        change = tmp_path / "change.yaml"
        change.write_text(
            "models:\n"
            "  - name: n\n"
            "    profiles: [{name: cpu, engine: sim, memory_mb: 100, cores: 4}]\n"
            "    scaling: {min: 2}\n"
        )
        code, out, err = await llmgw(nats_server, "plan", "-f", str(change))
        assert code == 0, err
        assert " of n placed on cpu-" in out
        assert "1 to start, 0 to stop" in out
        assert "model n: 0 -> 1 of 2 ready" in out
        assert await endpoints(bus, "n") == 0, "nothing was changed"
        lost = await value(nats_server, "plan", "--lose", "cpu-1")
        assert {move["what"] for move in lost["moves"]} >= {"stop"}

        change.write_text("models:\n  - name: n\n    profiles: [{name: cpu, engine: vllm}]\n")
        code, _, err = await llmgw(nats_server, "plan", "-f", str(change))
        assert code == 1
        assert "profiles[0].memory_mb" in err
        for agent in agents:
            await agent.stop()


async def _has(bus: Bus, count: int) -> bool:
    return await endpoints(bus) == count
