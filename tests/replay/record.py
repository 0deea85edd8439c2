"""Writes the recorded histories of the scheduler: ``python -m tests.replay.record NAME``.

A history that is there is never written again: it stands for the logs that running clusters hold. A change of
what is decided makes a new history beside it; a change of what is folded from an old one is an incompatibility.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from libs.events import Event, decode, encode
from libs.events.commands import (
    CordonNode,
    DrainNode,
    RemoveModel,
    RestartModel,
    ScaleModel,
    StartSystem,
    StopModel,
    StopSystem,
    UncordonNode,
    WakeModel,
)
from libs.events.model import Canary, Scaling
from services.scheduler.replay import fold
from tests.simulate.story import Story
from tests.unit.scheduler.harness import World, cpu_profile, gpu_profile, model_spec

HISTORIES = Path(__file__).parent / "scheduler"


class Line(msgspec.Struct):
    sequence: int
    event: msgspec.Raw


class Expected(msgspec.Struct):
    """The last line of a history."""

    position: int
    hash: str


def read(path: Path) -> tuple[list[tuple[int, Event]], Expected]:
    lines = path.read_bytes().splitlines()
    events: list[tuple[int, Event]] = []
    for text in lines[:-1]:
        line = msgspec.json.decode(text, type=Line)
        event = decode(bytes(line.event))
        assert isinstance(event, Event)
        events.append((line.sequence, event))
    return events, msgspec.json.decode(lines[-1], type=Expected)


def write(path: Path, events: Iterable[tuple[int, Event]]) -> None:
    log = list(events)
    folded = fold(log)
    lines = [msgspec.json.encode(Line(sequence, msgspec.Raw(encode(event)))) for sequence, event in log]
    lines.append(msgspec.json.encode(Expected(folded.position, folded.hash)))
    path.write_bytes(b"\n".join(lines) + b"\n")


def life_of_a_model() -> World:
    world = World()
    world.machine("cpu-1")
    world.machine("cpu-2")
    world.mirror()
    world.weights("qwen", "v1", size_bytes=1_000_000)
    world.define(model_spec("qwen", 1, cpu_profile(), source="library:qwen", aliases=("default",)))
    world.settle()
    world.command(ScaleModel(model="qwen", scaling=Scaling(min=2)))
    world.settle()
    world.define(model_spec("qwen", 2, cpu_profile(), source="library:qwen", context_length=8192))
    world.settle(30)
    world.weights("qwen", "v2", size_bytes=2_000_000)
    world.settle(30)
    world.command(CordonNode(machine_id="cpu-1", reason="new fan"))
    world.command(DrainNode(machine_id="cpu-2", reason="disk"))
    world.settle()
    world.command(UncordonNode(machine_id="cpu-1"))
    world.settle(30)
    world.define(model_spec("other"))
    world.settle()
    world.command(RemoveModel(model="qwen"))
    return world.settle()


def machines_lost_and_back() -> World:
    world = World()
    for machine_id in ("gpu-1", "gpu-2"):
        world.machine(machine_id, gpus=4)
    world.define(model_spec("big", 3, gpu_profile(gpus=2)))
    world.define(model_spec("small", 2))
    world.settle()
    first, second = world.machines.values()
    first.connected = False
    world.wait(20)
    first.connected = True
    world.settle()
    second.up = False
    world.wait(20)
    second.wipe()
    world.wait(60)
    first.up = False
    world.wait(15)
    first.reboot()
    return world.wait(30)


def failures_until_parked() -> World:
    world = World()
    machine = world.machine("cpu-1")
    world.machine("cpu-2").fails["m"] = "bad memory"
    machine.fails["m"] = "out of memory"
    world.define(model_spec("m", 1))
    world.define(model_spec("n", 3))
    world.wait(400)
    machine.fails.clear()
    world.command(RestartModel(model="m"))
    world.settle()
    machine.crash(next(iter(machine.shards)))
    return world.settle()


def anything() -> World:
    story = Story(7)
    story.run()
    return story.world


def models_taking_turns() -> World:
    world = World()
    world.machine("g", gpus=1)
    for name in ("a", "b"):
        spec = model_spec(name, 0, gpu_profile())
        world.define(msgspec.structs.replace(spec, scaling=Scaling(min=0, on_demand=True, min_lifetime_s=60)))
    for _ in range(3):
        for name in ("a", "b"):
            for _ in range(6):
                world.command(WakeModel(model=name))
                world.wait(35, step=5)
    world.command(StopModel(model="a", reason="no more"))
    return world.wait(60)


def machines_together() -> World:
    world = World()
    for name in ("a", "b", "c"):
        world.machine(name, gpus=4, fabric="left")
    for name in ("y", "z"):
        world.machine(name, gpus=4, domain="rack-1/1")
    world.define(model_spec("small", 4, gpu_profile(gpus=2), priority_class="low"))
    world.settle()
    world.define(model_spec("big", 2, gpu_profile(gpus=4, nodes=2), priority_class="high"))
    world.settle(40)
    world.machines["z"].connected = False
    world.wait(60)
    world.machines["z"].connected = True
    return world.wait(60)


def a_definition_on_trial() -> World:
    world = World()
    world.machine()
    world.define(model_spec("m", 2, canary=Canary(min_requests=50)))
    world.settle()
    world.define(model_spec("m", 2, canary=Canary(min_requests=50), context_length=2048))
    world.settle()
    world.use("m", 1, requests=60, failed=1, first_tokens=60, first_tokens_ms=600.0)
    world.settle(40)
    world.command(RestartModel(model="m", in_place=True))
    world.settle(40)
    world.command(StopSystem(reason="night"))
    world.settle()
    world.command(StartSystem())
    return world.settle(20)


STORIES: dict[str, Callable[[], World]] = {
    "life_of_a_model": life_of_a_model,
    "machines_lost_and_back": machines_lost_and_back,
    "failures_until_parked": failures_until_parked,
    "anything": anything,
    "models_taking_turns": models_taking_turns,
    "machines_together": machines_together,
    "a_definition_on_trial": a_definition_on_trial,
}


def main(names: list[str]) -> Any:
    for name in names:
        path = HISTORIES / f"{name}.jsonl"
        if path.exists():
            return f"{path} is there already and stays as it is: give the new history another name"
        write(path, STORIES[name]().log)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
