"""What asking an engine costs with the gateway's own HTTP client and with a general one, and what a disk sync costs.

``python -m bench.engine_client``: CPU time of this process for one request to a simulated engine, and the time to
write a record of usage with and without a sync. The figures are in ``docs/decisions.md``.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import uvloop

from libs.testing.engine import SimEngine
from services.gateway.adapters.upstream import Pool

PATH = "/v1/chat/completions"
LOADS = {
    "not streamed": (b'{"model":"sim","messages":[{"role":"user","content":"hello"}],"max_tokens":1}', 2000),
    "a stream of 64 tokens": (
        b'{"model":"sim","stream":true,"messages":[{"role":"user","content":"hello"}],"max_tokens":64}',
        200,
    ),
}
ROUNDS = 5
RECORD = b"x" * 430
CONNECT_TIMEOUT_S = 2.0

Client = Callable[[str, bytes, int], Awaitable[None]]


async def ours(url: str, body: bytes, requests: int) -> None:
    """Requests with the gateway's client, one after the other."""
    pool = Pool(url, CONNECT_TIMEOUT_S)
    head = f"POST {PATH} HTTP/1.1\r\nhost: {url.removeprefix('http://')}\r\ncontent-type: application/json\r\n"
    encoded = f"{head}content-length: {len(body)}\r\n\r\n".encode()
    try:
        for _ in range(requests):
            connection = pool.idle() or await pool.connect()
            connection.send(encoded, body)
            assert await connection.head() == 200
            while await connection.read():
                pass
            connection.release()
    finally:
        pool.close()


async def general(url: str, body: bytes, requests: int) -> None:
    """The same requests with httpx2."""
    async with httpx2.AsyncClient() as client:
        for _ in range(requests):
            headers = {"content-type": "application/json"}
            async with client.stream("POST", f"{url}{PATH}", content=body, headers=headers) as answer:
                assert answer.status_code == 200
                async for _ in answer.aiter_raw():
                    pass


async def cpu_us(client: Client, url: str, body: bytes, requests: int) -> float:
    """CPU microseconds of this process a request."""
    before = time.process_time()
    await client(url, body, requests)
    return (time.process_time() - before) / requests * 1e6


async def compare(url: str) -> None:
    """Both clients in turn, with each load; medians."""
    for name, (body, requests) in LOADS.items():
        found: dict[str, list[float]] = {"ours": [], "httpx2": []}
        for _ in range(ROUNDS):
            found["ours"].append(await cpu_us(ours, url, body, requests))
            found["httpx2"].append(await cpu_us(general, url, body, requests))
        print(name, *(f"{client}: {statistics.median(each):,.0f} µs" for client, each in found.items()), sep="; ")


def writes(directory: Path) -> None:
    """How long a record takes to write, median and the 99th of a hundred, without and with a sync."""
    file = os.open(directory / "spool", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for name, sync in (("write", lambda _: None), ("write and fdatasync", os.fdatasync)):
        took = []
        for _ in range(1000):
            before = time.perf_counter()
            os.write(file, RECORD)
            sync(file)
            took.append((time.perf_counter() - before) * 1e6)
        took.sort()
        print(f"{name}: {took[500]:,.0f} µs, p99 {took[990]:,.0f} µs")
    os.close(file)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=".") as folder:
        engine = SimEngine(Path(folder) / "engine")
        engine.start()
        try:
            uvloop.run(compare(engine.url))
        finally:
            engine.stop()
        writes(Path(folder))
