"""What the agent costs the machine it watches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from libs.events.machine import MachineRegistered
from libs.testing.waiting import eventually
from tests.unit.nodeagent.machines import FOLDER

from .box import Box

ON_EIGHT_CARDS = f"""
from services.nodeagent.machine import hardware
from services.nodeagent.simulation.host_access import Described, Description
described = msgspec.json.decode(Path({str(FOLDER / "h100-sxm-8.json")!r}).read_bytes(), type=Description)
described.nvml.latency_us = 100
hardware.ThisMachine = lambda: Described(described)
"""


@pytest.mark.slow
async def test_watching_eight_cards_and_adapters_costs_a_hundredth_of_a_core(
    box: Box, record_property: Callable[[str, object], None]
) -> None:
    box.settings = msgspec.structs.replace(box.settings, sample_every_s=2.0, measure_memory=False)
    agent = box.start_agent(ON_EIGHT_CARDS)
    machine = await box.next(MachineRegistered)
    assert len(machine.gpus) == len(machine.ports) == 8
    process = psutil.Process(agent.pid)
    await eventually(lambda: len(box.samples) >= 3)

    def used() -> float:
        times = process.cpu_times()
        return times.user + times.system

    before, samples = used(), len(box.samples)
    await eventually(lambda: len(box.samples) >= samples + 30, 90)
    share = (used() - before) / 60
    record_property("the agent with 8 cards", f"{100 * share:.2f} % of a core")
    record_property("a sample", f"{len(msgspec.json.encode(box.samples[-1]))} bytes")
    assert share <= 0.01
    assert Path(f"/proc/{agent.pid}").exists()
