"""The spool: nothing lost, nothing twice, whatever ends the process and wherever."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.bus import Bus
from libs.bus.memory import MemoryCluster
from libs.events.usage import RequestRecord, UsageBatch
from libs.testing import eventually
from services.gateway.usage.publisher import Publisher
from services.gateway.usage.spool import (
    SLOTS,
    Opened,
    Spool,
    SpoolBroken,
)

_pwrite = os.pwrite
AT = datetime(2026, 1, 1, tzinfo=UTC)
MIB = 1024 * 1024


def opened(name: str, body_bytes: int = 400) -> Opened:
    return Opened(
        request_id=name,
        opened_at=AT,
        key_id="k-1",
        project="o/t/p",
        model_asked="m",
        model="m",
        protocol="openai.chat",
        stream=True,
        slot=0,
        body_bytes=body_bytes,
    )


def closed(name: str, tokens: int = 5) -> RequestRecord:
    return RequestRecord(
        request_id=name,
        opened_at=AT,
        closed_at=AT,
        key_id="k-1",
        project="o/t/p",
        model_asked="m",
        model="m",
        protocol="openai.chat",
        status="ok",
        completion_tokens=tokens,
    )


def drain(spool: Spool) -> list[RequestRecord]:
    records: list[RequestRecord] = []
    while (batch := spool.batch()) is not None:
        records += batch.records
        spool.published(batch.end, batch.end)
    return records


def killed(spool: Spool) -> None:
    """What ``kill -9`` leaves: the files as they are, the locks and descriptors gone."""
    spool.close()


def test_closed_requests_are_published_in_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB)
    slots = {name: spool.opened(opened(name)) for name in ("a", "b", "c")}
    assert spool.in_flight == 3
    for name in ("b", "a"):
        spool.closed(slots[name], closed(name))
    assert [record.request_id for record in drain(spool)] == ["b", "a"]
    assert spool.batch() is None
    spool.closed(slots["c"], closed("c"))
    assert [record.request_id for record in drain(spool)] == ["c"]
    assert spool.backlog_bytes == 0
    spool.close()


def test_what_was_in_flight_is_cut_with_what_was_delivered(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB)
    some, none, done = (spool.opened(opened(name)) for name in ("some", "none", "done"))
    spool.delivered(some, 17)
    spool.delivered(done, 5)
    spool.closed(done, closed("done"))
    killed(spool)
    spool = Spool(tmp_path, MIB)
    assert spool.cut == 2
    records = {record.request_id: record for record in drain(spool)}
    assert records["done"].status == "ok"
    assert (records["some"].status, records["some"].completion_tokens, records["some"].prompt_tokens) == (
        "cut",
        17,
        100,
    )
    assert (records["none"].status, records["none"].completion_tokens, records["none"].prompt_tokens) == ("cut", 0, 0)
    killed(spool)
    spool = Spool(tmp_path, MIB)
    assert spool.cut == 0
    assert drain(spool) == []
    assert none != some
    spool.close()


def test_a_slot_used_again_does_not_count_for_the_one_before(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB)
    slot = spool.opened(opened("first"))
    spool.delivered(slot, 99)
    spool.closed(slot, closed("first"))
    assert spool.opened(opened("second")) == slot
    killed(spool)
    spool = Spool(tmp_path, MIB)
    assert {r.request_id: r.completion_tokens for r in drain(spool)} == {"first": 5, "second": 0}
    spool.close()


def test_a_promised_stretch_is_the_same_after_a_crash(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB)
    spool.closed(spool.opened(opened("a")), closed("a"))
    first = spool.batch()
    spool.closed(spool.opened(opened("b")), closed("b"))
    killed(spool)
    spool = Spool(tmp_path, MIB)
    again = spool.batch()
    assert first is not None
    assert again == first
    spool.published(again.end, again.end)
    assert [record.request_id for record in drain(spool)] == ["b"]
    spool.close()


def test_a_line_that_was_not_finished_is_cut_off(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB)
    spool.closed(spool.opened(opened("a")), closed("a"))
    killed(spool)
    segment = next(tmp_path.glob("*.log"))
    with segment.open("ab") as out:
        out.write(b'C{"request_id":"torn')
    spool = Spool(tmp_path, MIB)
    spool.closed(spool.opened(opened("b")), closed("b"))
    assert [record.request_id for record in drain(spool)] == ["a", "b"]
    spool.close()


def test_what_cannot_be_read_is_set_aside_and_counted_until_it_was_seen_to(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB)
    for name in ("a", "b", "c", "d"):
        spool.closed(spool.opened(opened(name)), closed(name))
    spool.opened(opened("e"))
    killed(spool)
    segment = next(tmp_path.glob("*.log"))
    damaged = [b'C{"request_id":"b', b'C{"request_id":"c', b'O{"request_id":"e']
    data = segment.read_bytes()
    for line, spoiled in zip(damaged, (b'C["request_id":"b', b'\r{"request_id":"c', b'O["request_id":"e'), strict=True):
        assert data.count(line) == 1
        data = data.replace(line, spoiled)
    segment.write_bytes(data)
    for _ in range(2):
        spool = Spool(tmp_path, MIB)
        read = {record.request_id for record in drain(spool) if record.status == "ok"}
        spool.batch()
        assert len(spool.unreadable) == 3
        killed(spool)
        if read:
            assert read == {"a", "d"}
    kept = tmp_path.joinpath("unreadable").read_bytes()
    assert all(kept.count(b'"request_id":"%s' % name) == 1 for name in (b"b", b"c", b"e"))
    (tmp_path / "unreadable").unlink()
    spool = Spool(tmp_path, MIB)
    assert (len(spool.unreadable), drain(spool)) == (0, [])
    spool.close()


def test_old_segments_go_when_nothing_in_them_is_needed(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB, segment_bytes=2000)
    long = spool.opened(opened("long"))
    for number in range(40):
        spool.closed(spool.opened(opened(f"r{number}")), closed(f"r{number}"))
    assert len(drain(spool)) == 40
    assert len(list(tmp_path.glob("*.log"))) > 3
    spool.closed(long, closed("long"))
    assert len(drain(spool)) == 1
    assert len(list(tmp_path.glob("*.log"))) == 1
    spool.close()


def test_what_the_ledger_does_not_have_is_there_after_a_kill(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB, segment_bytes=2000)
    spool.counted = 0
    ends = [spool.closed(spool.opened(opened(f"r{number}")), closed(f"r{number}")) for number in range(40)]
    assert len(drain(spool)) == 40
    killed(spool)
    spool = Spool(tmp_path, MIB, segment_bytes=2000)
    found = list(spool.closings(0))
    assert [record.request_id for _, record in found] == [f"r{number}" for number in range(40)]
    assert [end for end, _ in found] == ends
    assert [record.request_id for _, record in spool.closings(ends[36])] == ["r37", "r38", "r39"]
    spool.counted = ends[36]
    spool.closed(spool.opened(opened("last")), closed("last"))
    drain(spool)
    kept = [record.request_id for _, record in spool.closings(0)]
    assert kept[-4:] == ["r37", "r38", "r39", "last"]
    assert len(kept) < 15, "segments the ledger has are gone"
    spool.close()


def test_what_is_kept_for_the_ledger_is_bounded(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 10_000, segment_bytes=2000)
    spool.counted = 0
    for number in range(100):
        spool.closed(spool.opened(opened(f"r{number}")), closed(f"r{number}"))
        drain(spool)
    assert sum(file.stat().st_size for file in tmp_path.glob("*.log")) <= 10_000 + 2 * 2000
    spool.close()


def test_over_its_bound_nothing_is_opened_until_it_was_published(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 3000)
    while spool.backlog_bytes <= 3000:
        spool.closed(spool.opened(opened("a")), closed("a"))
    with pytest.raises(SpoolBroken):
        spool.opened(opened("b"))
    assert spool.problem is not None
    assert drain(spool)
    spool.probe()
    assert spool.problem is None
    spool.opened(opened("again"))
    spool.close()


def test_a_full_disk_is_a_reason_and_no_record_is_lost(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB)
    slot = spool.opened(opened("a"))
    real = spool._fd
    spool._fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(SpoolBroken):
        spool.opened(opened("b"))
    spool.closed(slot, closed("a"))
    spool.probe()
    assert spool.problem is not None
    assert "space" in spool.problem
    os.close(spool._fd)
    spool._fd = real
    spool.probe()
    assert spool.problem is None
    assert [record.request_id for record in drain(spool)] == ["a"]
    spool.close()


def test_what_could_not_be_written_before_a_kill_is_cut_with_what_was_delivered(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB)
    slot = spool.opened(opened("a"))
    spool.delivered(slot, 7)
    os.close(spool._fd)
    spool._fd = os.open("/dev/full", os.O_WRONLY)
    spool.closed(slot, closed("a"))
    assert spool.in_flight == 1
    killed(spool)
    # The disk is still full when it is started again; and it is killed again.
    file = next(tmp_path.glob("*.log"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spool, "_open_segment", lambda self, start: os.open("/dev/full", os.O_WRONLY))
        patch.setattr(os, "fstat", lambda fd: os.stat(file))
        spool = Spool(tmp_path, MIB)
    assert spool.cut == 1
    assert spool.batch() is None
    killed(spool)
    spool = Spool(tmp_path, MIB)
    assert [(record.status, record.completion_tokens) for record in drain(spool)] == [("cut", 7)]
    spool.close()


def test_room_for_what_is_in_flight_is_taken_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, at: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(SpoolBroken, match="No space left"):
            Spool(tmp_path, MIB)
    spool = Spool(tmp_path, MIB)
    for name in ("slots", "checkpoint"):
        assert (tmp_path / name).stat().st_blocks > 0
    spool.close()


def test_ends_of_segments_that_went_with_the_power_hold_nothing_up(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB, segment_bytes=1500)
    for number in range(20):
        spool.closed(spool.opened(opened(f"r{number}")), closed(f"r{number}"))
    killed(spool)
    first, *_, last = sorted(tmp_path.glob("*.log"))
    os.truncate(first, first.stat().st_size - 700)
    os.truncate(last, 0)
    spool = Spool(tmp_path, MIB, segment_bytes=1500)
    assert len(drain(spool)) >= 10
    published = spool._acked
    killed(spool)
    # What was published already is lost too.
    for file in tmp_path.glob("*.log"):
        os.truncate(file, 0)
    spool = Spool(tmp_path, MIB, segment_bytes=1500)
    spool.closed(spool.opened(opened("later")), closed("later"))
    batch = spool.batch()
    assert batch is not None
    assert [record.request_id for record in batch.records] == ["later"]
    assert batch.end > published
    spool.close()


def test_a_table_of_slots_nobody_could_have_written_is_survived(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB)
    spool.opened(opened("a"))
    killed(spool)
    file = next(tmp_path.glob("*.log"))
    file.write_bytes(file.read_bytes().replace(b'"slot":0', b'"slot":99999'))
    spool = Spool(tmp_path, MIB)
    assert [(record.status, record.completion_tokens) for record in drain(spool)] == [("cut", 0)]
    spool.close()


async def test_publishing_goes_on_when_the_disk_was_full_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = MemoryCluster().bus("gateway")
    spool = Spool(tmp_path, MIB)
    publisher = Publisher(bus, spool, "gw-1", lambda: None)
    failures = iter(range(3))

    def pwrite(fd: int, data: bytes, at: int) -> int:
        if next(failures, None) is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return _pwrite(fd, data, at)

    monkeypatch.setattr("services.gateway.usage.publisher.AGAIN_S", 0.01)
    monkeypatch.setattr(os, "pwrite", pwrite)
    spool.closed(spool.opened(opened("a")), closed("a"))
    publisher.start()
    await eventually(lambda: spool.backlog_bytes == 0)
    last = await bus.transport.last("USAGE", "llmgw.use.gateway.gw-1.batch")
    await publisher.stop()
    spool.close()
    await bus.close()
    assert last is not None


def test_two_gateways_cannot_share_one(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB)
    with pytest.raises(SpoolBroken, match="another gateway"):
        Spool(tmp_path, MIB)
    spool.close()


def test_slots_are_bounded(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 64 * MIB)
    for number in range(SLOTS):
        spool.opened(opened(f"r{number}"))
    assert spool.full
    spool.close()


def test_a_spool_made_anew_never_repeats_a_position(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a", MIB)
    spool.closed(spool.opened(opened("a")), closed("a"))
    batch = spool.batch()
    spool.close()
    other = Spool(tmp_path / "b", MIB)
    other.closed(other.opened(opened("a")), closed("a"))
    later = other.batch()
    assert batch is not None
    assert later is not None
    assert later.end > batch.end
    other.close()


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from("ocdpak"), st.integers(0, 5)), max_size=60))
def test_any_history_with_kills_gives_every_request_exactly_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    directory = tmp_path_factory.mktemp("spool")
    spool = Spool(directory, MIB, segment_bytes=1500)
    published: dict[int, tuple[RequestRecord, ...]] = {}
    in_flight: list[tuple[str, int, int]] = []
    expected: dict[str, tuple[str, int]] = {}
    made = 0

    def publish(acknowledge: bool) -> None:
        batch = spool.batch()
        if batch is not None:
            published[batch.end] = batch.records  # the same position again is the same message
            if acknowledge:
                spool.published(batch.end, batch.end)

    for step, number in steps:
        if step == "o":
            name = f"r{made}"
            made += 1
            in_flight.append((name, spool.opened(opened(name)), 0))
        elif step in "cd" and in_flight:
            name, slot, tokens = in_flight.pop(number % len(in_flight))
            if step == "c":
                spool.closed(slot, closed(name))
                expected[name] = ("ok", 5)
            else:
                spool.delivered(slot, tokens + number)
                in_flight.append((name, slot, tokens + number))
        elif step in "pa":
            publish(step == "a")
        elif step == "k":
            spool.close()
            spool = Spool(directory, MIB, segment_bytes=1500)
            expected |= {name: ("cut", tokens) for name, _, tokens in in_flight}
            in_flight.clear()
    spool.close()
    spool = Spool(directory, MIB, segment_bytes=1500)
    expected |= {name: ("cut", tokens) for name, _, tokens in in_flight}
    while spool.batch() is not None:
        publish(True)
    spool.close()
    records = [record for end in sorted(published) for record in published[end]]
    assert len(records) == len(expected)
    assert {r.request_id: (r.status, r.completion_tokens) for r in records} == expected


async def test_a_stream_that_becomes_another_while_a_stretch_is_on_its_way_gets_all_of_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB)
    spool.marks.epoch = "1"
    for name in ("r-0", "r-1"):
        spool.closed(spool.opened(opened(name)), closed(name))
        if name == "r-0":
            drain(spool)
    taken: list[str] = []

    class Renewed:
        """A bus on which the gateway hears of another stream before it hears that its message was taken."""

        async def append(self, message: UsageBatch, *, cause: str) -> int:
            if spool.marks.epoch == "1":
                spool.again("2")
            else:
                taken.extend(record.request_id for record in message.records)
            return 1

    publisher = Publisher(cast(Bus, Renewed()), spool, "gw-1", lambda: None)
    publisher._stopping.set()
    await publisher._run()
    assert taken == ["r-0", "r-1"]
    spool.close()
