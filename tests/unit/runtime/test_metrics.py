from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from libs.runtime import metrics
from libs.testing import eventually

WORKER = """
import sys
from prometheus_client import Counter, Gauge
Counter("llmgw_test_loaves_total", "Loaves.", ["kind"]).labels("rye").inc(int(sys.argv[1]))
Gauge("llmgw_test_ovens", "Ovens.", multiprocess_mode="livesum").set(1)
"""


async def test_loop_lag_is_seen() -> None:
    def late() -> float:
        (family,) = metrics.LOOP_LAG.collect()
        return next(
            sample.value
            for sample in family.samples
            if sample.name.endswith("_bucket") and sample.labels["le"] == "+Inf"
        ) - next(sample.value for sample in family.samples if sample.labels.get("le") == "0.05")

    before = late()
    watching = asyncio.create_task(metrics.watch_loop_lag())
    await asyncio.sleep(0)
    time.sleep(metrics.LAG_EVERY_S + 0.1)  # noqa: ASYNC251  # what must never happen on a loop is what is measured
    await eventually(lambda: late() > before)
    watching.cancel()


def test_workers_are_answered_together_and_nothing_of_an_earlier_run(tmp_path: Path) -> None:
    environment = metrics.worker_environment(tmp_path)
    for loaves in ("2", "3"):
        subprocess.run([sys.executable, "-c", WORKER, loaves], env={**os.environ, **environment}, check=True)
    program = "import sys; from libs.runtime import metrics; sys.stdout.buffer.write(metrics.exposition())"
    run = [sys.executable, "-c", program]
    text = subprocess.run(run, env={**os.environ, **environment}, capture_output=True, text=True, check=True).stdout
    assert 'llmgw_test_loaves_total{kind="rye"} 5.0' in text
    assert "llmgw_test_ovens 2.0" in text
    metrics.worker_environment(tmp_path)
    assert not list(tmp_path.glob("*.db"))
