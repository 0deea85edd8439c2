"""``llmgw doctor`` on the machine below the tests."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import msgspec

from libs.bus import Bus
from libs.events.machine import MachineRegistered
from libs.events.questions import AskDoctor, DoctorAnswer
from libs.simulated_machines import SimulatedGpus, SimulatedMachine
from libs.testing.nats import NatsServer

from .box import Box


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli.main", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_it_judges_this_machine_without_a_bus(tmp_path: Path) -> None:
    ran = doctor("--json", "--state-dir", str(tmp_path))
    whole = json.loads(ran.stdout)
    broken = [one for one in whole["findings"] if one["severity"] == "broken"]
    assert ran.returncode == bool(broken)
    assert whole["facts"]["cpu_count"] >= 1
    assert {"machine", "engines"} <= {one["subject"] for one in whole["findings"]}


def test_settings_that_are_wrong_are_said_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "nodeagent.yaml"
    file.write_text("data_dri: /x\n")
    ran = doctor("--settings", str(file))
    assert ran.returncode == 1
    assert "data_dri" in ran.stderr
    assert "Traceback" not in ran.stderr


async def test_a_machine_is_examined_over_the_bus(box: Box, bus: Bus) -> None:
    box.start_agent()
    machine = await box.next(MachineRegistered)
    assert "ask.node.doctor.v1" in machine.features
    answer = await bus.ask(AskDoctor(machine_id="box"), DoctorAnswer, timeout_s=20)
    assert {"machine", "engines"} <= {one.subject for one in answer.findings}


async def test_a_machine_is_examined_from_the_command_line(box: Box, nats_server: NatsServer) -> None:
    box.start_agent()
    await box.next(MachineRegistered)

    async def llmgw(*arguments: str) -> tuple[int | None, str, str]:
        command = [sys.executable, "-m", "cli.main", *arguments, "--nats", nats_server.url]
        pipe = asyncio.subprocess.PIPE
        ran = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        out, complaint = await asyncio.wait_for(ran.communicate(), 60)
        return ran.returncode, out.decode(), complaint.decode()

    code, out, _ = await llmgw("node", "doctor", "box")
    assert code == 1, "it has no engine for real models"
    assert "there is no engine on this machine" in out
    assert "machine: " in out
    code, _, complaint = await llmgw("node", "fabric", "box", "mlx5_9")
    assert code == 1
    assert "is not an InfiniBand adapter of this machine" in complaint


async def test_a_simulated_machine_is_judged_with_what_its_agent_knows_of_its_cards(box: Box, bus: Bus) -> None:
    sick = ("it has fallen off the bus (XID 79): restart the machine",)
    cards = SimulatedGpus(gpu_class="h100-80g", memory_mb=81559, count=4)
    bad = SimulatedGpus(gpu_class="h100-80g", memory_mb=81559, count=2, problems=sick)
    box.settings = msgspec.structs.replace(
        box.settings, simulated=SimulatedMachine(cores=64, memory_mb=262144, gpus=(bad, cards))
    )
    box.start_agent()
    await box.next(MachineRegistered)

    answer = await bus.ask(AskDoctor(machine_id="box"), DoctorAnswer, timeout_s=20)

    broken = [(one.subject, one.found) for one in answer.findings if one.severity == "broken"]
    assert [found for _, found in broken] == [sick[0], sick[0]]
    assert any(one.found.startswith("4 of 6 can be used (h100-80g)") for one in answer.findings)
    assert any(one.found == "there are sim" for one in answer.findings)
    assert any(one.found.startswith("64 CPUs, 256 GB of memory") for one in answer.findings)
