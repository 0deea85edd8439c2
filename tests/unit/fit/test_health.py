"""What is done about a card for what is said of it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from libs.events.machine import Gpu, GpuWear, PcieLink
from libs.fit.health import in_words, must_leave, slow, usable, verdict, worst
from services.nodeagent.core.machine.cards import MIG_EMPTY, SERIOUS_XIDS, wear_problems
from services.nodeagent.core.machine.pcie import shortfall

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def gpu(*problems: str) -> Gpu:
    return Gpu(index=3, uuid="GPU-3", name="H100", gpu_class="h100-80g", memory_total_mb=81559, problems=problems)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("XID 79: the card has fallen off the bus; restart the machine", "out"),
        ("it reported XID 48 (an error in its memory that could not be corrected) at 2026-11-29T12:00:00Z", "suspect"),
        ("XID 13: a program computed an invalid address", "note"),
        ("XID 999: something new", "suspect"),
        ("its power limit is 300 of 700 W", "slow"),
        ("linked at x4 of its x16 lanes: 7.9 GB/s where it could have 31.5", "slow"),
        ("its clocks are throttled: it is too hot", "slow"),
        ("it does not answer the driver: reboot the machine", "out"),
        (MIG_EMPTY, "out"),
        ("something nobody foresaw", "out"),
    ],
)
def test_a_verdict_on_each_sentence(said: str, expected: str) -> None:
    assert verdict(said) == expected


def test_every_error_an_agent_speaks_of_keeps_new_work_away() -> None:
    for number in SERIOUS_XIDS:
        [said] = wear_problems(GpuWear(last_xid=number, last_xid_at=NOW), NOW)
        assert verdict(said) in ("out", "suspect"), said


def test_what_only_a_reset_mends_is_moved_away_from() -> None:
    for wear in (GpuWear(remap_failed=True), GpuWear(remap_pending=True), GpuWear(retirement_pending=True)):
        [said] = wear_problems(wear, NOW)
        assert must_leave(gpu(said)) == said


def test_a_narrow_link_in_an_agents_words_is_slow() -> None:
    said = shortfall(PcieLink(generation=4, card_generation=4, lanes=4, card_lanes=16))
    assert said is not None
    assert verdict(said) == "slow"


def test_the_gravest_counts() -> None:
    ill = gpu("linked at x4 of its x16 lanes", "XID 74: an NVLink error", "XID 13: a program's")
    assert worst(ill.problems) == ("suspect", "XID 74: an NVLink error")
    assert (usable(ill), slow(ill), must_leave(ill)) == (False, False, None)
    assert in_words(ill) == "GPU 3 is suspect: XID 74: an NVLink error"
    assert in_words(gpu("XID 79: gone")) == "GPU 3 is out of use: XID 79: gone"
    assert (usable(gpu()), slow(gpu()), worst(())) == (True, False, None)
    assert usable(gpu("XID 13: a program's"))
    assert slow(gpu("its power limit is 300 of 700 W"))


@pytest.mark.parametrize(("limit", "usual", "expected"), [(300, 700, True), (650, 700, False), (None, 700, False)])
def test_a_power_limit_makes_a_card_slow(limit: int | None, usual: int, expected: bool) -> None:
    limited = msgspec.structs.replace(gpu(), power_limit_watts=limit, power_default_watts=usual)
    assert slow(limited) == expected
    assert usable(limited)
