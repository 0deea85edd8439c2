"""The engines of a cluster, as their nodes keep them and as they tell about themselves."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from libs.runtime import secrets

from .cluster import Cluster


def shards(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Shard id to what its node keeps about it, of those that are ready."""
    found = {}
    for file in cluster.state_dir.glob("data/nodeagent*/shards/*/state.json"):
        record = json.loads(file.read_text())
        if record["phase"] == "ready":
            found[record["wanted"]["shard_id"]] = record | {"agent": file.parents[2].name}
    return found


async def fetch(port: int, path: str, headers: str = "") -> tuple[int, bytes]:
    """Status and body of a GET on this machine. Raises OSError."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}connection: close\r\n\r\n".encode())
        head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return int(head.split(b" ", 2)[1]), body


@dataclass(frozen=True)
class Generated:
    """One request, as a simulated engine saw it."""

    id: str
    prompt: str
    generated: int
    """Content tokens."""


async def generated(cluster: Cluster) -> list[Generated]:
    """Every request the engines that are ready remember."""
    fleet = secrets.fleet_secret(cluster.state_dir / "secrets" / "fleet.secret")
    found: list[Generated] = []
    for record in shards(cluster).values():
        wanted = record["wanted"]
        key = secrets.engine_key(fleet, wanted["replica_id"], wanted.get("generation", 1))
        port = int(record["url"].rsplit(":", 1)[1])
        _, body = await fetch(port, "/sim/requests", f"authorization: Bearer {key}\r\n")
        found += [
            Generated(told["id"], told["prompt"], told.get("generated", 0)) for told in json.loads(body)["requests"]
        ]
    return found
