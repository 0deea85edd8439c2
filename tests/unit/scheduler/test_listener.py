"""Heartbeats of machines: silence counts only while the leader would have heard."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from libs.bus import Bus
from libs.events.leadership import SchedulerPulse
from libs.events.machine import GpuSample, MachineSample, ShardSample
from libs.testing import eventually
from services.scheduler.adapters.listener import Listener

AT = datetime(2026, 11, 29, tzinfo=UTC)


class Ears:
    """A listener whose time is moved by hand; it hears itself once a second while it is not deaf."""

    def __init__(self, bus: Bus) -> None:
        self.now = 1000.0
        self.listener = Listener(bus, "s-1", lambda: self.now)
        self.deaf = False
        self.speaking: set[str] = set()

    async def wait(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1
            if not self.deaf:
                await self.listener.hear_own_pulse(SchedulerPulse(at=AT, instance="s-1"))
                for machine_id in sorted(self.speaking):
                    await self.record(machine_id)
            self.listener.heartbeats_to_decide_on(["a", "b"])

    async def record(self, machine_id: str, **fields: object) -> None:
        await self.listener.hear(MachineSample(at=AT, machine_id=machine_id, **fields))  # type: ignore[arg-type]

    def silent_ms(self, machine_id: str) -> int | None:
        heartbeats = self.listener.heartbeats(["a", "b"])
        return None if heartbeats is None else heartbeats[machine_id].silent_ms


@pytest.fixture
def ears(memory_bus: Bus) -> Ears:
    return Ears(memory_bus)


async def test_silence_is_counted_from_the_last_sample(ears: Ears) -> None:
    ears.speaking = {"a", "b"}
    await ears.wait(3)
    assert (ears.silent_ms("a"), ears.silent_ms("b")) == (0, 0)
    ears.speaking = {"b"}
    await ears.wait(9)
    assert (ears.silent_ms("a"), ears.silent_ms("b")) == (9000, 0)


async def test_nothing_is_heard_before_we_hear_ourselves(ears: Ears) -> None:
    assert ears.listener.heartbeats(["a"]) is None


async def test_a_deaf_time_counts_for_nobody(ears: Ears) -> None:
    ears.speaking = {"a", "b"}
    await ears.wait(3)
    ears.deaf = True
    await ears.wait(60)
    assert ears.silent_ms("a") is None
    ears.deaf = False
    ears.speaking = {"b"}
    await ears.wait(5)
    assert ears.silent_ms("a") == 4000
    heartbeats = ears.listener.heartbeats(["a", "b"])
    assert heartbeats is not None
    assert not heartbeats["a"].present
    assert heartbeats["b"].present


async def test_a_pause_of_the_process_counts_for_nobody(ears: Ears) -> None:
    ears.speaking = {"a"}
    await ears.wait(3)
    ears.now += 100
    assert ears.silent_ms("a") is None
    await ears.wait(1)
    assert ears.silent_ms("a") == 0


async def test_a_long_silence_is_remembered_and_one_of_our_own_is_none(ears: Ears) -> None:
    def gap_ms(machine_id: str) -> int | None:
        heartbeats = ears.listener.heartbeats([machine_id])
        assert heartbeats is not None
        return heartbeats[machine_id].gap_ms

    ears.speaking = {"a", "b"}
    await ears.wait(3)
    assert gap_ms("a") is None
    ears.speaking = {"b"}
    await ears.wait(6)
    ears.speaking = {"a", "b"}
    await ears.wait(10)
    assert gap_ms("a") == 9_000
    assert gap_ms("b") is None
    ears.now += 30  # this process stood still
    await ears.wait(10)
    assert gap_ms("b") is None


async def test_who_begins_to_decide_begins_to_listen(ears: Ears) -> None:
    ears.speaking = {"a"}
    await ears.wait(3)
    ears.speaking = set()
    for _ in range(20):  # a standby hears, and is not asked
        ears.now += 1
        await ears.listener.hear_own_pulse(SchedulerPulse(at=AT, instance="s-1"))
    assert ears.silent_ms("a") == 20_000
    heartbeats = ears.listener.heartbeats_to_decide_on(["a"])
    assert heartbeats is not None
    assert heartbeats["a"].silent_ms == 0
    assert not heartbeats["a"].sampled


async def test_a_machine_is_not_silent_for_longer_than_it_is_known(ears: Ears) -> None:
    await ears.wait(30)
    heartbeats = ears.listener.heartbeats(["new"])
    assert heartbeats is not None
    assert heartbeats["new"].silent_ms == 0
    assert not heartbeats["new"].present


async def test_what_a_sample_says_is_kept(ears: Ears) -> None:
    await ears.wait(1)
    fields = {
        "shards": (ShardSample(shard_id="r-1-0"),),
        "disk_free_mb": {"/": 10, "/data": 500, "/mnt/big": 90_000},
        "weights_free_mb": 500,
        "gpus": (GpuSample(uuid="u1", foreign_memory_mb=900), GpuSample(uuid="u2")),
        "fetching": {"w@v1": "5/10 bytes"},
    }
    await ears.record("a", **fields)
    await ears.wait(2)
    await ears.record("a", **fields)
    heartbeats = ears.listener.heartbeats(["a"])
    assert heartbeats is not None
    heard = heartbeats["a"]
    assert heard.shards == {"r-1-0"}
    assert heard.disk_free_mb == 500
    assert heard.foreign_mb == {"u1": 900}
    assert heard.fetching_ms == {"w@v1": 2000}
    await ears.record("a", **fields | {"fetching": {"w@v1": "6/10 bytes"}})
    heartbeats = ears.listener.heartbeats(["a"])
    assert heartbeats is not None
    assert heartbeats["a"].fetching_ms == {"w@v1": 0}


async def test_a_shard_that_starts_shows_progress_by_its_phase_its_bytes_and_its_memory(ears: Ears) -> None:
    def shown(**fields: object) -> dict[str, object]:
        return {"shards": (ShardSample(shard_id="r-1-0", **fields),)}  # type: ignore[arg-type]

    def moved_ms() -> int:
        heartbeats = ears.listener.heartbeats(["a"])
        assert heartbeats is not None
        return heartbeats["a"].moved_ms["r-1-0"]

    await ears.wait(1)
    seen = []
    fetched = [{"phase": "fetching", "done_bytes": count} for count in (1, 2)]
    loaded = [{"phase": "loading", "rss_mb": memory} for memory in (None, 160, 320)]
    for fields in (*fetched, *loaded):
        await ears.record("a", **shown(**fields))
        seen.append(moved_ms())
        await ears.wait(2)
        seen.append(moved_ms())
    assert seen == [0, 2000] * 5
    await ears.record("a", **shown(phase="loading", rss_mb=321))
    assert moved_ms() == 2000


async def test_it_hears_itself_over_the_bus(memory_bus: Bus) -> None:
    listener = Listener(memory_bus, "s-1")
    await listener.start()
    await eventually(lambda: listener.heartbeats([]) is not None)
    await memory_bus.tell(MachineSample(at=AT, machine_id="a"))
    await eventually(lambda: (listener.heartbeats(["a"]) or {})["a"].present)
    await listener.stop()
