"""A gateway worker that knows very many keys and hears very many gateways: writes its resident memory in MiB.

python -m tests.adversity.gateway.memory NATS_URL DATA_DIR KEYS USED
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil

from libs.bus import BusSettings, connect
from libs.events.usage import GatewayHoldings, Holding
from libs.runtime.servers.ports import free_port
from services.gateway.app import build
from services.gateway.settings import GatewaySettings

GATEWAYS = 200


async def main(url: str, directory: str, keys: int, used: int) -> None:
    bus = await connect(BusSettings(url=url, identity="gateway"))
    gateway = build(GatewaySettings(data_dir=Path(directory), instance="gw", port=free_port()), bus)
    gc.set_threshold(20_000)
    await gateway.start()
    gossip, now = gateway._gossip, datetime.now(UTC)
    for number, view in enumerate(gateway._keys.views()):
        if number == used:
            break
        gossip.counts.add(view.key_id, time.monotonic(), requests=1)
        held = gossip.spending.reserve(view.budgets, 5_000, now)
        gossip.spending.settle(held, 1_000, number + 1, now)  # type: ignore[arg-type]
        gossip.counts.add(view.key_id, time.monotonic(), tokens=20)
    each = keys // GATEWAYS
    for number in range(GATEWAYS):
        names = [f"k-{number * each + place:010}" for place in range(each)]
        await gossip._on_holdings(
            GatewayHoldings(
                at=now,
                gateway_id=f"gw-{number}",
                host=f"host-{number}",
                life=1,
                number=0,
                requests=dict.fromkeys(names, 3),
                tokens=dict.fromkeys(names, 300),
                budgets={f"acme/lab/p{place} 2026-11": Holding(reserved=5_000, settled=900) for place in range(300)},
            )
        )
    gc.collect()
    sys.stdout.write(f"{psutil.Process().memory_info().rss / 2**20}\n")
    sys.stdout.flush()
    await gateway.stop()
    await bus.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
