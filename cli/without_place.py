"""What is said after a command that wants replicas which fit nowhere now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from cli.cluster import Cluster
from cli.failure import Failed
from libs.events.questions import ExplainModel, ModelExplained

DECIDED_S = 1.0
"""The scheduler decides within some hundredths of a second; nobody waits longer for what is only a hint."""
LOOK_S = 0.05
GOING = ("draining", "stopping", "stopped", "failed")


async def without_place(cluster: Cluster, models: Iterable[str]) -> Sequence[str]:
    """A line for each of these models of which a replica fits nowhere, as far as that is known at once."""
    end = time.monotonic() + DECIDED_S
    waiting, lines = list(models), []
    while waiting:
        for name in tuple(waiting):
            with suppress(Failed):
                answer = await cluster.ask(ExplainModel(model=name), ModelExplained, timeout_s=DECIDED_S)
                if answer.unplaced is not None:
                    lines.append(f"{_what(answer)} nowhere yet: `llmgw explain {name}` says why")
                elif _there(answer) < answer.model.wanted:
                    continue
                waiting.remove(name)
        if time.monotonic() > end:
            break
        if waiting:
            await asyncio.sleep(LOOK_S)
    return lines


def _there(answer: ModelExplained) -> int:
    return sum(replica.state not in GOING for replica in answer.model.replicas)


def _what(answer: ModelExplained) -> str:
    name, there = answer.model.model, _there(answer)
    if not there:
        return f"{name} fits"
    short = answer.model.wanted - there
    if short <= 0:
        return f"what is to take over for {name} fits"
    return f"{short} of {answer.model.wanted} replicas of {name} {'fits' if short == 1 else 'fit'}"
