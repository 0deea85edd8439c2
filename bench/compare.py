"""Whether this tree costs more than another commit did: CPU of a request, in interleaved pairs.

    python -m bench.compare COMMIT              five pairs of every load of bench.overhead; about six minutes
    python -m bench.compare COMMIT --pairs 1 --phase c8

Checks COMMIT out into a temporary directory and runs a cluster of each tree at the same time, with the same Python, the
same libraries and this tree's load generator. Of every pair the one that is measured first alternates. What is compared
is CPU time, which other programs on the machine change less than latencies; those are not looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.overhead import FLEET, PHASES, Target, machine, measure

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ("gateway_cpu_s_per_1000", "rest_cpu_s_per_1000")
DESCRIBE = """
import json, sys
from pathlib import Path
from bench.overhead import gateway_of, processes_of
from cli.home import Home
home = Home(Path(sys.argv[1]))
target = gateway_of(home)
parts = {name: sorted(pids) for name, pids in processes_of(home).items()}
print(json.dumps({"url": target.url, "key": target.key, "parts": parts}))
"""
"""Said by the tree's own code: files of a cluster are its own matter."""


@dataclass(frozen=True)
class Cluster:
    """A running one, and what is asked of it."""

    target: Target
    parts: Mapping[str, frozenset[int]]


def checked_out(commit: str, directory: Path) -> Path:
    """A copy of this repository at ``commit``; nothing of it stays behind in the repository itself."""
    _run(ROOT, "git", "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(directory))
    _run(directory, "git", "checkout", "--quiet", commit)
    return directory


@contextmanager
def running(name: str, tree: Path, state: Path) -> Iterator[Cluster]:
    """A cluster of that tree's code, stopped at the end."""
    state.mkdir(parents=True)
    fleet = state / "fleet.yaml"
    fleet.write_text(FLEET)
    llmgw = (sys.executable, "-m", "cli.main")
    where = ("--state-dir", str(state))
    try:
        _run(tree, *llmgw, "up", "--detach", "--no-model", "--port", "0", "--fleet", str(fleet), *where)
        cluster = json.loads(_run(tree, sys.executable, "-c", DESCRIBE, str(state)).splitlines()[-1])
        parts = {part: frozenset(pids) for part, pids in cluster["parts"].items()}
        _check_code(parts["gateway"], tree)
        yield Cluster(Target(name, cluster["url"], cluster["key"]), parts)
    finally:
        _run(tree, *llmgw, "down", *where)


def _check_code(pids: frozenset[int], tree: Path) -> None:
    """That the processes run the tree's code: a comparison of a tree with itself would always be a good one."""
    for pid in pids:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if f"PYTHONPATH={tree}".encode() not in variables:
            raise SystemExit(f"bench: process {pid} was not started with the code in {tree}")


def _run(tree: Path, *command: str) -> str:
    """Run a command with a tree's code; its output. A failure ends the benchmark."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"bench: `{' '.join(command)}` in {tree} failed with exit status {done.returncode}")
    return done.stdout


def measured(chosen: argparse.Namespace, clusters: list[Cluster]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of measurements: this tree's, the other's."""
    phases = [phase for phase in PHASES if chosen.phase is None or phase.name in chosen.phase]
    for cluster in clusters:  # warm: connections, caches, code that is imported when it is first needed
        measure(cluster.target, PHASES[0], 0.3, cluster.parts)
    pairs = []
    for pair in range(chosen.pairs):
        for phase in phases:
            runs: dict[str, dict[str, Any]] = {}
            for cluster in clusters if pair % 2 == 0 else reversed(clusters):
                runs[cluster.target.name] = measure(cluster.target, phase, chosen.scale, cluster.parts)
            pairs.append((runs["this"], runs["other"]))
            ratios = {figure: round(_ratio(pairs[-1], figure), 3) for figure in FIGURES}
            print(f"{pair + 1}/{chosen.pairs} {phase.name}: {ratios}", file=sys.stderr)
    return pairs


def _ratio(pair: tuple[dict[str, Any], dict[str, Any]], figure: str) -> float:
    return float(pair[0][figure]) / max(float(pair[1][figure]), 1e-9)


def table(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """In Markdown: a row for every load."""
    lines = ["| Load | Gateway CPU s per 1,000, other → this | Ratio (range) | Rest of llmgw, ratio (range) |"]
    lines.append("|---|---|---|---|")
    for phase in PHASES:
        of_it = [pair for pair in pairs if pair[0]["phase"] == phase.name]
        if of_it:
            this, other = (statistics.median(pair[n]["gateway_cpu_s_per_1000"] for pair in of_it) for n in (0, 1))
            cells = [phase.what, f"{other:.3f} → {this:.3f}", *(_range(of_it, figure) for figure in FIGURES)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _range(pairs: list[tuple[dict[str, Any], dict[str, Any]]], figure: str) -> str:
    ratios = [_ratio(pair, figure) for pair in pairs]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    """Measure both in turns and print the ratio of each figure, pair by pair."""
    parser = argparse.ArgumentParser(prog="bench.compare", description="CPU of a request: this tree, another commit.")
    parser.add_argument("commit")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="times the usual duration of each load")
    parser.add_argument("--phase", action="append", choices=[phase.name for phase in PHASES], help="only this one")
    parser.add_argument("--out", type=Path, help="write every measurement here as JSON")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as temporary:
        at = Path(temporary)
        other = checked_out(chosen.commit, at / "tree")
        with running("this", ROOT, at / "this") as this, running("other", other, at / "other") as that:
            pairs = measured(chosen, [this, that])
    print(f"{chosen.pairs} pairs with {chosen.commit}, {machine()}")
    print(table(pairs))
    if chosen.out is not None:
        chosen.out.write_text(json.dumps({"machine": machine(), "pairs": pairs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
