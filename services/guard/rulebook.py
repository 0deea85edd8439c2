"""The policies in force, compiled and ready to judge by."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from libs.events.policy import PolicySpec
from libs.events.refusal import Refused

from .core.policies import Policy, compile_policy

log = logging.getLogger("llmgw.guard")


class Rulebook:
    """Follows what the log says; a policy that did not change is not compiled again."""

    def __init__(self) -> None:
        self._policies: dict[str, Policy] = {}
        self._changed = asyncio.Event()

    def update(self, specs: Mapping[str, PolicySpec]) -> None:
        """Take the policies as they are now. One that cannot be compiled is left out, and logged."""
        policies: dict[str, Policy] = {}
        for name, spec in specs.items():
            known = self._policies.get(name)
            if known is not None and known.spec is spec:
                policies[name] = known
                continue
            try:
                policies[name] = compile_policy(spec)
            except Refused as why:
                # Taken by a version with other limits: requests it applies to fail closed, as with any unknown policy.
                log.error("policy %s cannot be applied: %s", name, why)
        self._policies = policies
        self._changed.set()
        self._changed = asyncio.Event()

    async def policies(self, names: Sequence[str], wait_s: float) -> Mapping[str, Policy]:
        """All policies, once every one of ``names`` is among them or ``wait_s`` is over.

        A gateway may hear of a new policy a moment before this guard does.
        """
        try:
            async with asyncio.timeout(wait_s):
                while any(name not in self._policies for name in names):
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._policies
