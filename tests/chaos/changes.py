"""A person who changes things all the while. What the cluster said is done stays done; what failed may be either."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.cluster import Cluster

PROJECT = "acme/lab/web"
EVERY_S = (3.0, 9.0)
COMMAND_S = 60.0


@dataclass
class Changes:
    """Keys are made and revoked, and a model is scaled, by the command line."""

    cluster: Cluster
    seed: int
    made: dict[str, str] = field(default_factory=dict)
    """Id to key, of those the cluster said it had made."""
    revoked: set[str] = field(default_factory=set)
    tried: set[str] = field(default_factory=set)
    """Revoked without a word that it was done."""
    failed: list[str] = field(default_factory=list)
    """What commands that failed said."""

    async def drive(self) -> None:
        """Until cancelled."""
        chance = random.Random(f"{self.seed} changes")
        while True:
            await asyncio.sleep(chance.uniform(*EVERY_S))
            left = sorted(self.made.keys() - self.revoked - self.tried)
            match chance.choice(("make", "revoke", "scale")):
                case "make":
                    name = f"made-{chance.randrange(10**6)}"
                    if told := await self._do("key", "create", PROJECT, "--name", name, "--json"):
                        made = json.loads(told)
                        self.made[made["key_id"]] = made["key"]
                case "revoke" if left:
                    key_id = chance.choice(left)
                    self.tried.add(key_id)
                    if await self._do("key", "revoke", key_id, "--yes"):
                        self.tried.remove(key_id)
                        self.revoked.add(key_id)
                case "scale":
                    await self._do("model", "scale", "talk", str(chance.choice((2, 3))))

    async def _do(self, *arguments: str) -> str:
        """What a command printed; nothing when it failed."""
        try:
            done = await asyncio.to_thread(self.cluster.run, *arguments, timeout_s=COMMAND_S)
        except subprocess.TimeoutExpired:
            self.failed.append(f"llmgw {' '.join(arguments)}: no answer within {COMMAND_S:g} s")
            return ""
        if done.returncode != 0:
            self.failed.append(f"llmgw {' '.join(arguments)}: {done.stderr.strip()}")
            return ""
        return done.stdout

    def differences(self, keys: list[Mapping[str, Any]]) -> Iterator[str]:
        """Where the keys there are, are not what the cluster said they would be."""
        found = {key["key_id"]: key for key in keys}
        for key_id in self.made:
            if key_id not in found:
                yield f"key {key_id} was made, and is not there"
            elif key_id not in self.tried and found[key_id]["revoked"] != (key_id in self.revoked):
                yield f"key {key_id}: revoked is {found[key_id]['revoked']}, said was {key_id in self.revoked}"
        for told in self.failed:
            if "Traceback" in told or "should not have happened" in told:
                yield told
