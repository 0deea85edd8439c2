"""What the gateway adds: one simulated engine, asked directly and through llmgw.

    python -m bench.overhead                  the table; about three minutes
    python -m bench.overhead --repeats 1      a look
    python -m bench.overhead --out FILE       every single measurement as JSON too

Starts a whole cluster in a directory of its own (``llmgw up --no-model --fleet``), with everything on that is on in
use: the key is checked, requests a minute are counted, the demo's policy observes, usage is metered and billed.
Directly and through alternate in every repeat, with the order turned round each time; the table shows medians.
Generator, engine, gateway and everything else share this machine's cores. ``foreign_cores`` says how much of it other
programs took: over a fifth of a core, measure again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.processes import cpu_s, family, machine_cpu_s
from cli.home import Home
from libs.bus import BusSettings, connect
from libs.events.views import Route
from libs.runtime.secrets import decode_fleet_secret, engine_key

MODEL = "sim"
FLEET = f"""
machines:
  - id: bench
    cores: 8
    memory_mb: 16384
models:
  - name: {MODEL}
    profiles:
      - name: cpu
        engine: sim
        memory_mb: 1024
        cores: 1
        parallel: 256
prices:
  - model: {MODEL}
    prompt_micros: 1000
    completion_micros: 3000
"""
FOREIGN_CORES = 0.2
RPM = 100_000_000
"""High enough to refuse nothing: the count is kept all the same."""


@dataclass(frozen=True)
class Phase:
    """One kind of load: ``arguments`` are bench.load's."""

    name: str
    what: str
    arguments: tuple[str, ...]
    duration_s: float


def whole(concurrency: int, duration_s: float) -> Phase:
    """Answers that are not streamed and come as fast as they can, ``concurrency`` at once."""
    arguments = ("--concurrency", str(concurrency), "--tok-s", "0")
    return Phase(f"c{concurrency}", f"not streamed, {concurrency} at once", arguments, duration_s)


PHASES = (
    whole(1, 3.0),
    whole(8, 3.0),
    whole(32, 4.0),
    Phase(
        "s64",
        "streams of 64 tokens at 500 tokens/s, 64 at once",
        ("--stream", "--concurrency", "64", "--tok-s", "500"),
        5.0,
    ),
    Phase(
        "p50",
        "streams of 64 tokens at 100 tokens/s, about 50 at once, arriving at random",
        ("--stream", "--concurrency", "64", "--rate", "78", "--tok-s", "100", "--ramp", "1"),
        5.0,
    ),
    Phase(
        "b50",
        "streams of 64 tokens at 100 tokens/s, 50 that start in the same instant",
        ("--stream", "--concurrency", "50", "--together", "--tok-s", "100"),
        5.0,
    ),
)


@dataclass(frozen=True)
class Target:
    """What is asked."""

    name: str
    url: str
    key: str


class Used:
    """CPU seconds used so far: by each part of llmgw (agents with their engines), by this benchmark, by the machine."""

    def __init__(self, parts: Mapping[str, frozenset[int]]) -> None:
        self.parts = {part: cpu_s(pids) for part, pids in parts.items()}
        self.benchmark = cpu_s([os.getpid()])
        self.machine = machine_cpu_s()
        self.at = time.monotonic()


@contextmanager
def cluster(state: Path) -> Iterator[Home]:
    """A cluster that answers, stopped at the end."""
    fleet = state / "fleet.yaml"
    state.mkdir(parents=True, exist_ok=True)
    fleet.write_text(FLEET)
    try:
        llmgw("up", "--detach", "--no-model", "--port", "0", "--fleet", str(fleet), "--state-dir", str(state))
        yield Home(state)
    finally:
        llmgw("down", "--state-dir", str(state))


def llmgw(*arguments: str) -> str:
    """Run the command; its output. A failure ends the benchmark with what it said."""
    command = [sys.executable, "-m", "cli.main", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"bench: `llmgw {' '.join(arguments)}` failed with exit status {done.returncode}")
    return done.stdout


async def engine_of(home: Home) -> Target:
    """The engine itself, with the key that only its gateways and its agent know. Raises Misconfigured, BadSecret."""
    bus = await connect(BusSettings(url=home.endpoint().nats_url, credentials=home.identity("operator")))
    try:
        route = await bus.view("routes", Route).get(MODEL)
    finally:
        await bus.close()
    assert route is not None
    (endpoint,) = route.endpoints
    secret_file = home.secret("fleet.secret")
    secret = decode_fleet_secret(secret_file.read_text(), str(secret_file))
    return Target("direct", f"{endpoint.url}/v1", engine_key(secret, endpoint.replica_id, endpoint.generation))


def gateway_of(home: Home) -> Target:
    """The gateway, with a new key of the demo's project, whose requests are counted but never refused."""
    made = llmgw("key", "create", "demo/demo/demo", "--rpm", str(RPM), "--json", "--state-dir", str(home.root))
    return Target("llmgw", home.endpoint().base_url, json.loads(made)["key"])


def processes_of(home: Home) -> dict[str, frozenset[int]]:
    """Part of the cluster to its processes."""
    return {name: frozenset(family([part.process.pid])) for name, part in home.record().parts.items()}


def measure(target: Target, phase: Phase, scale: float, parts: Mapping[str, frozenset[int]]) -> dict[str, Any]:
    """One run of the load generator. A wrong answer ends the benchmark: its figures would mean nothing."""
    command = [sys.executable, "-m", "bench.load", target.url, "--model", MODEL, *phase.arguments]
    command += ["--duration", str(phase.duration_s * scale)]
    before = Used(parts)
    environment = {**os.environ, "BENCH_KEY": target.key}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, check=False)
    after = Used(parts)
    report: dict[str, Any] = json.loads(done.stdout or "{}")
    if done.returncode != 0:
        raise SystemExit(f"bench: {target.name}, {phase.what}: {report.get('errors')} {report.get('sample', '')}")
    used = {part: after.parts[part] - before.parts[part] for part in parts}
    foreign_s = after.machine - before.machine - sum(used.values()) - (after.benchmark - before.benchmark)
    per_1000 = {part: round(cpu / report["completed"] * 1000, 4) for part, cpu in used.items()}
    rest = sum(cpu for part, cpu in per_1000.items() if part != "gateway" and not part.startswith("nodeagent"))
    return report | {
        "phase": phase.name,
        "target": target.name,
        "cpu_s_per_1000": per_1000,
        "gateway_cpu_s_per_1000": per_1000["gateway"],
        "rest_cpu_s_per_1000": round(rest, 4),
        "foreign_cores": round(max(0.0, foreign_s / (after.at - before.at)), 2),
    }


def median(runs: list[dict[str, Any]], *path: str) -> float:
    """Of one figure over several runs; ``path`` leads to it through their reports."""
    values = []
    for run in runs:
        value: Any = run
        for name in path:
            value = value[name]
        values.append(float(value))
    return statistics.median(values)


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a phase: medians over the repeats; ``added`` is the difference of the medians."""
    rows = []
    measured_phases = {run["phase"] for run in runs}
    for phase in PHASES:
        if phase.name not in measured_phases:
            continue
        direct = [run for run in runs if (run["phase"], run["target"]) == (phase.name, "direct")]
        through = [run for run in runs if (run["phase"], run["target"]) == (phase.name, "llmgw")]
        row: dict[str, Any] = {"phase": phase.name, "what": phase.what}
        for measure_name in ("latency_ms", "first_ms"):
            if measure_name not in through[0]:
                continue
            for part in ("p50", "p99"):
                direct_ms, through_ms = median(direct, measure_name, part), median(through, measure_name, part)
                row[f"{measure_name}_{part}"] = {
                    "direct": direct_ms,
                    "llmgw": through_ms,
                    "added": round(through_ms - direct_ms, 3),
                }
        row["requests_s"] = {"direct": median(direct, "requests_s"), "llmgw": median(through, "requests_s")}
        row["gateway_cpu_s_per_1000"] = median(through, "gateway_cpu_s_per_1000")
        row["rest_cpu_s_per_1000"] = median(through, "rest_cpu_s_per_1000")
        row["foreign_cores"] = max(run["foreign_cores"] for run in direct + through)
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    head = (
        "| Load | Latency p50, direct → llmgw (added) ms | p99 ms | First token p50 ms | p99 ms "
        "| Requests/s, direct → llmgw | Gateway CPU s per 1,000 | Rest of llmgw CPU s per 1,000 |"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = [row["what"]]
        for name in ("latency_ms_p50", "latency_ms_p99", "first_ms_p50", "first_ms_p99"):
            cells.append(_change(row.get(name)))
        cells.append(f"{row['requests_s']['direct']:,.0f} → {row['requests_s']['llmgw']:,.0f}")
        cells += [f"{row['gateway_cpu_s_per_1000']:.3f}", f"{row['rest_cpu_s_per_1000']:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _change(value: Mapping[str, float] | None) -> str:
    if value is None:
        return "-"
    return f"{value['direct']:.2f} → {value['llmgw']:.2f} ({value['added']:+.2f})"


def machine() -> str:
    """What is measured on, in words: cores, CPU, system, Python."""
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown CPU")
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores of {model}, {system}"


def main() -> None:
    """Measure and print the table. Raises Misconfigured, BadSecret."""
    parser = argparse.ArgumentParser(prog="bench.overhead", description="What the gateway adds to an engine.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="times the usual duration of each phase")
    parser.add_argument("--phase", action="append", choices=[phase.name for phase in PHASES], help="only this one")
    parser.add_argument("--state-dir", type=Path, help="kept afterwards; a temporary one is removed")
    parser.add_argument("--out", type=Path, help="write every measurement here as JSON")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as temporary:
        runs = measured(chosen, chosen.state_dir or Path(temporary) / "state")
    rows = summary(runs)
    print(machine())
    print(table(rows))
    busy = max(row["foreign_cores"] for row in rows)
    if busy > FOREIGN_CORES:
        print(f"Distrust the latencies: other programs used up to {busy:.2f} cores meanwhile.")
    if chosen.out is not None:
        chosen.out.write_text(json.dumps({"machine": machine(), "rows": rows, "runs": runs}, indent=1) + "\n")


def measured(chosen: argparse.Namespace, state: Path) -> list[dict[str, Any]]:
    """Every measurement, in the order they were made. Raises Misconfigured, BadSecret."""
    runs: list[dict[str, Any]] = []
    phases = [phase for phase in PHASES if chosen.phase is None or phase.name in chosen.phase]
    with cluster(state) as home:
        targets = [asyncio.run(engine_of(home)), gateway_of(home)]
        parts = processes_of(home)
        for target in targets:  # warm: connections, caches, code that is imported when it is first needed
            measure(target, PHASES[0], 0.2, parts)
        for repeat in range(chosen.repeats):
            for phase in phases:
                for target in targets if repeat % 2 == 0 else reversed(targets):
                    runs.append(measure(target, phase, chosen.scale, parts))
                    shown = {
                        name: runs[-1].get(name)
                        for name in ("requests_s", "latency_ms", "cpu_s_per_1000", "foreign_cores")
                    }
                    print(f"{repeat + 1}/{chosen.repeats} {phase.name} {target.name}: {shown}", file=sys.stderr)
    return runs


if __name__ == "__main__":
    main()
