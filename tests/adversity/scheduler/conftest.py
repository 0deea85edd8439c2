"""A small cluster of real agents to do harm to: see tests/integration/scheduler/cluster.py."""

from __future__ import annotations

from tests.integration.scheduler.conftest import hastened, unled

__all__ = ["hastened", "unled"]
