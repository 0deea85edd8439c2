"""Who asks: keys of two organisations, with and without budgets and limits, and clients of many manners."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from libs.testing.traffic import Answer, ask, ask_messages, ask_whole
from tests.e2e.cluster import Cluster

SECRET = "AKIAQZ7XW4KD2MNB5RTE"
"""What an enforcing policy must never let through."""
TIMEOUT_S = 45.0
"""Longer than anything is frozen."""

Manner = Literal["stream", "whole", "messages", "leaves", "long", "secret"]


@dataclass(frozen=True)
class Tenant:
    """A key, what it may do, and how it is used."""

    name: str
    project: str
    model: str
    rate: float
    """Requests a second."""
    manners: tuple[Manner, ...]
    rpm: int | None = None
    tpm: int | None = None
    budget_micros: int | None = None
    """In all."""


TENANTS = (
    Tenant("steady", "acme/lab/web", "talk", 5.0, ("stream", "whole", "messages", "leaves", "long")),
    Tenant("trial", "acme/lab/trial", "talk", 1.5, ("stream", "whole"), budget_micros=30_000),
    Tenant("bots", "beta/ops/bots", "talk", 2.0, ("whole", "messages"), rpm=60),
    Tenant("jobs", "beta/ops/jobs", "code", 1.0, ("stream", "leaves"), tpm=3_000),
    Tenant("desk", "beta/legal/desk", "code", 1.0, ("stream", "whole", "secret")),
)


@dataclass
class Asked:
    """One request of a client, and what it saw."""

    tenant: Tenant
    manner: Manner
    answer: Answer = field(default_factory=Answer)


@dataclass
class Load:
    """Every tenant asks at its rate, in open loop, until it is stopped. Everything seen is in ``asked``."""

    base_url: str
    keys: dict[str, str]
    """Tenant to key."""
    seed: int
    asked: list[Asked] = field(default_factory=list)
    began: float = 0.0
    """Monotonic seconds, as the answers' times."""
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _drivers: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, tenants: Sequence[Tenant] = TENANTS) -> None:
        self.began = time.monotonic()
        self._drivers = [asyncio.create_task(self._drive(tenant)) for tenant in tenants]

    async def stop(self) -> None:
        """Send no more, and wait for what is on its way."""
        for driver in self._drivers:
            driver.cancel()
        await asyncio.gather(*self._drivers, return_exceptions=True)
        await asyncio.gather(*self._running)

    async def _drive(self, tenant: Tenant) -> None:
        chance = random.Random(f"{self.seed} {tenant.name}")
        next_at = time.monotonic()
        while True:
            task = asyncio.create_task(self._one(tenant, chance.choice(tenant.manners), chance.randint(4, 40)))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            next_at += chance.expovariate(tenant.rate)
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))

    async def _one(self, tenant: Tenant, manner: Manner, tokens: int) -> None:
        about = self.base_url, self.keys[tenant.name], tenant.model
        text = "word " * tokens
        match manner:
            case "stream":
                answer = await ask(*about, text, tokens, TIMEOUT_S)
            case "long":
                answer = await ask(*about, text, 40 * tokens, TIMEOUT_S)
            case "leaves":
                answer = await ask(*about, text, 40 * tokens, TIMEOUT_S, leave_after=tokens)
            case "secret":
                answer = await ask(*about, f"my key is {SECRET}", tokens, TIMEOUT_S)
            case "whole":
                answer = await ask_whole(*about, text, tokens, TIMEOUT_S)
            case "messages":
                answer = await ask_messages(*about, text, tokens, TIMEOUT_S)
        self.asked.append(Asked(tenant, manner, answer))


def create_keys(cluster: Cluster, tenants: Sequence[Tenant] = TENANTS) -> tuple[dict[str, str], dict[str, str]]:
    """Tenant to key, and tenant to the key's id."""
    keys, ids = {}, {}
    for tenant in tenants:
        options: list[str] = ["--name", tenant.name]
        if tenant.rpm is not None:
            options += ["--rpm", str(tenant.rpm)]
        if tenant.tpm is not None:
            options += ["--tpm", str(tenant.tpm)]
        if tenant.budget_micros is not None:
            options += ["--budget", f"{tenant.budget_micros / 1_000_000:.6f}/total"]
        made = cluster.json("key", "create", tenant.project, *options)
        keys[tenant.name], ids[tenant.name] = made["key"], made["key_id"]
    return keys, ids
