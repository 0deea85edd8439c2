"""What a worker needs of memory where there are very many keys, and very many gateways that speak of them."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from libs.bus import Bus
from libs.events import encode
from libs.events.budget import LevelBudget
from libs.events.views import KeyView, Spend
from libs.testing.nats import NatsServer

from .memory import GATEWAYS

KEYS = 100_000
USED = 5_000
AT_ONCE = 500
MAX_MIB = 150


@pytest.mark.slow
async def test_a_hundred_thousand_keys_and_two_hundred_gateways(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Every key has a limit, an entry of what it spent and a project with a budget; each gateway speaks of some."""
    keys, spend = bus.view("keys", KeyView), bus.view("spend", Spend)

    async def put(number: int) -> None:
        key_id, project = f"k-{number:010}", f"acme/lab/p{number % 300}"
        budget = LevelBudget(account=project, amount_micros=10**9, period="month")
        view = KeyView(key_id=key_id, project=project, rpm=60, position=1, budgets=(budget,))
        sums = {"2026-11-29": 5, "2026-W48": 7, "2026-11": 9_000, "total": 90_000}
        said = Spend(
            key_id=key_id,
            period="2026-11",
            requests=9,
            prompt_tokens=90,
            completion_tokens=90,
            cost_micros=9_000,
            spent_micros=sums,
            counted=90,
            ledger=7,
            epoch="2026-11-01",
        )
        await bus.transport.publish(keys.subject_of(hashlib.sha256(key_id.encode()).hexdigest()), encode(view))
        await bus.transport.publish(spend.subject_of(key_id), encode(said))

    for start in range(0, KEYS, AT_ONCE):
        for number in range(start, start + AT_ONCE):
            await put(number)
        await keys.put("0" * 64, KeyView(key_id="k-waits", project="acme/lab/p0"))  # until the server is that far
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.adversity.gateway.memory", nats_server.url, str(tmp_path), str(KEYS), str(USED)),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 240)
    used_mib = float(out.decode().splitlines()[-1])
    record_property(f"a worker that knows {KEYS:,} keys and hears {GATEWAYS} gateways, MiB", round(used_mib))
    assert used_mib < MAX_MIB, used_mib
