"""Prometheus metrics of a process, or of several that share a port."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client import multiprocess as several

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

CONTENT_TYPE = CONTENT_TYPE_LATEST
LOOP_LAG = Histogram(
    "llmgw_loop_lag_seconds",
    "How late the event loop ran a timer: everything on the loop waited that long.",
    buckets=(0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
)
BUILD = Gauge(
    "llmgw_build_info", "1, with the service and its version.", ["service", "version"], multiprocess_mode="max"
)
LAG_EVERY_S = 0.5


def exposition() -> bytes:
    """Everything measured, in Prometheus' text format.

    With ``PROMETHEUS_MULTIPROC_DIR`` set it is the sum over all processes that were started with it.
    """
    if MULTIPROCESS_VARIABLE not in os.environ:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    several.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def worker_environment(directory: Path) -> dict[str, str]:
    """Environment for worker processes whose metrics are answered together.

    prometheus_client decides when it is imported, so this must be set before the worker starts. The directory is
    emptied: figures of an earlier run would be counted again.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for left_over in directory.glob("*.db"):
        left_over.unlink()
    return {MULTIPROCESS_VARIABLE: str(directory)}


def worker_ended(pid: int) -> None:
    """Drop the live gauges of a worker that is gone. Counters stay: they happened."""
    several.mark_process_dead(pid)  # type: ignore[no-untyped-call]


async def watch_loop_lag() -> None:
    """Observe how late this event loop is, for ever."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_EVERY_S
        await asyncio.sleep(LAG_EVERY_S)
        LOOP_LAG.observe(max(0.0, loop.time() - due))
