"""The load generator counts only answers that are right to the letter."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from bench.load import percentiles
from bench.processes import cpu_s, family, machine_cpu_s
from libs.testing.engine import SimEngine


def load(engine: SimEngine, *arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "bench.load", f"{engine.url}/v1", "--ramp", "0.05", "--duration", "0.25"]
    done = subprocess.run([*command, "--prompt-bytes", "100", *arguments], capture_output=True, text=True, timeout=30)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    "arguments", [("--concurrency", "4", "--tok-s", "0"), ("--stream", "--concurrency", "4"), ("--rate", "100")]
)
def test_right_answers_are_measured(sim_engine: SimEngine, arguments: tuple[str, ...]) -> None:
    status, report = load(sim_engine, "--max-tokens", "8", *arguments)
    assert (status, report["errors"]) == (0, {})
    assert report["completed"] > 5
    assert 0 < report["latency_ms"]["p50"] <= report["latency_ms"]["p99"]
    assert ("first_ms" in report, "late_ms" in report) == ("--stream" in arguments, "--rate" in arguments)


@pytest.mark.parametrize(
    ("behaviour", "stream", "told"),
    [
        ({"fail_status": 503}, False, "status 503"),
        ({"echo": True}, False, "content different"),
        ({"cut_after": 3}, True, "connection lost: closed"),
        ({"error_after": 3}, True, "usage missing or different"),
    ],
)
def test_wrong_answers_are_not(sim_engine: SimEngine, behaviour: dict[str, Any], stream: bool, told: str) -> None:
    sim_engine.behave(**behaviour)
    status, report = load(sim_engine, "--max-tokens", "8", *(["--stream"] if stream else []))
    assert status == 1
    assert report["completed"] == 0
    assert list(report["errors"]) == [told]


def test_percentiles() -> None:
    assert percentiles([0.001 * n for n in range(1, 101)]) == {"p50": 51.0, "p95": 96.0, "p99": 100.0, "mean": 50.5}
    assert percentiles([]) == {}


def test_cpu_time_of_a_family(sim_engine: SimEngine) -> None:
    assert sim_engine.process is not None
    assert family([sim_engine.process.pid]) == {sim_engine.process.pid}
    before = machine_cpu_s()
    load(sim_engine, "--concurrency", "8", "--tok-s", "0")
    assert cpu_s([sim_engine.process.pid]) > 0
    assert machine_cpu_s() > before
