from __future__ import annotations

import asyncio
import logging
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from libs.bus import BusAway, TooLarge
from libs.bus.memory import MemoryCluster
from libs.events import Event
from libs.events.questions import AskLogs
from libs.events.refusal import Refused
from libs.events.shard import ShardStarting
from libs.testing.waiting import eventually
from services.nodeagent.adapters.disk.lock import DataFolder, FolderInUse
from services.nodeagent.adapters.disk.outbox import Outbox
from services.nodeagent.adapters.disk.shard_files import ShardFiles
from services.nodeagent.adapters.engine import output
from services.nodeagent.core.shard.record import EngineProcess, ShardRecord
from services.nodeagent.questions import AgentLines, Logs

from .wanted import shard


def fact(n: int) -> Event:
    return ShardStarting(
        at=datetime.now(UTC),
        machine_id="box",
        shard_id=f"r-{n}-0",
        replica_id=f"r-{n}",
        model="demo",
        generation=n,
        engine="sim",
    )


async def test_facts_wait_on_disk_while_the_bus_is_away_and_go_out_in_order(
    tmp_path: Path, memory_cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = memory_cluster.bus("node-box")
    append, away = bus.append, True

    async def sometimes(message: Event, *, cause: str) -> int:
        if away:
            raise BusAway("away")
        return await append(message, cause=cause)

    monkeypatch.setattr(bus, "append", sometimes)
    monkeypatch.setattr("services.nodeagent.adapters.disk.outbox._RETRY_S", 0.01)
    first = Outbox(tmp_path)
    first.start(bus)
    for n in (1, 2):
        first.put(fact(n), f"cause-{n}")
    await first.stop(0.05)
    assert len(first.waiting()) == 2

    # The next agent sends what the first one left, then its own.
    away = False
    second = Outbox(tmp_path)
    second.put(fact(3), "cause-3")
    second.start(bus)
    await eventually(lambda: not second.waiting())
    await second.stop(1)
    seen: list[tuple[str, str | None]] = []

    async def note(delivery: object) -> None:
        seen.append((delivery.message.shard_id, delivery.cause.split("@")[0]))  # type: ignore[attr-defined]

    follower = await memory_cluster.bus("operator").follow("EVENTS", ["llmgw.evt.>"], note)
    await asyncio.wait_for(follower.caught_up.wait(), 5)
    await follower.stop()
    assert seen == [("r-1-0", "cause-1"), ("r-2-0", "cause-2"), ("r-3-0", "cause-3")]


async def test_a_damaged_fact_is_set_aside_and_the_others_go(tmp_path: Path, memory_cluster: MemoryCluster) -> None:
    box = Outbox(tmp_path)
    (tmp_path / "000000000000.json").write_bytes(b"{")
    box.put(fact(1), "cause-1")
    box.start(memory_cluster.bus("node-box"))
    await eventually(lambda: not box.waiting())
    await box.stop(1)
    assert (tmp_path / "000000000000.unreadable").exists()


async def test_a_fact_the_bus_will_never_take_keeps_no_other_waiting(
    tmp_path: Path, memory_cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, taken = memory_cluster.bus("node-box"), []

    async def append(message: Event, *, cause: str) -> int:
        if cause.startswith("cause-1@"):
            raise TooLarge("the message has 9001052 bytes, 8372224 at most")
        taken.append(cause.split("@")[0])
        return 1

    monkeypatch.setattr(bus, "append", append)
    box = Outbox(tmp_path)
    for n in (1, 2):
        box.put(fact(n), f"cause-{n}")
    box.start(bus)
    await eventually(lambda: taken == ["cause-2"] and not box.waiting())
    await box.stop(1)
    assert (tmp_path / "000000000001.too-large").exists()


def test_one_agent_for_one_folder(tmp_path: Path) -> None:
    with DataFolder(tmp_path) as folder:
        assert folder.next_run() == 1
        with pytest.raises(FolderInUse, match="in use by process"):
            DataFolder(tmp_path).acquire()
    with DataFolder(tmp_path) as folder:
        assert folder.next_run() == 2


def test_records_survive_and_damaged_ones_are_left_alone(tmp_path: Path) -> None:
    files = ShardFiles(tmp_path)
    record = ShardRecord(wanted=shard("r.1-0"), generation=3, phase="ready")
    files.write(record)
    files.write(ShardRecord(wanted=shard("r-2-0"), generation=3))
    (files.folder("r-2-0") / "state.json").write_text("{")
    (files.folder("r-3-0")).mkdir()
    assert ShardFiles(tmp_path).read_all() == {"r.1-0": record}
    assert files.shards_with_output() == ["r-2-0", "r-3-0", "r.1-0"]


def test_a_record_in_a_copied_folder_names_no_process(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    engine = EngineProcess(pid=os.getpid(), started=1, boot="b", command=("engine",))
    record = ShardRecord(wanted=shard("r-1-0"), generation=3, phase="ready", process=engine)
    ShardFiles(original).write(record)
    shutil.copytree(original, copy)

    assert ShardFiles(original).read_all() == {"r-1-0": record}
    assert ShardFiles(copy).read_all() == {"r-1-0": msgspec.structs.replace(record, process=None)}


def test_the_output_of_forgotten_shards_stays_for_the_last_twenty(tmp_path: Path) -> None:
    files = ShardFiles(tmp_path)
    for n in range(25):
        files.write(ShardRecord(wanted=shard(f"r-{n}-0"), generation=1, phase="failed"))
        files.output(f"r-{n}-0").write_text(f"line of {n}\n")
        files.forget(f"r-{n}-0")
    assert files.read_all() == {}
    assert len(files.shards_with_output()) == 20
    assert output.last_lines(files.output("r-24-0"), 5) == ["line of 24"]


def test_following_output_gives_each_line_once(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    assert output.tail(path, 10, 0) == ([], 0)
    path.write_text("a\nb\nc\n")
    lines, cursor = output.tail(path, 2, 0)
    assert (lines, cursor) == (["b", "c"], 6)
    with path.open("a") as appended:
        appended.write("d\nhalf")
    lines, cursor = output.tail(path, 10, cursor)
    assert (lines, cursor) == (["d"], 8)
    with path.open("a") as appended:
        appended.write(" whole\n")
    assert output.tail(path, 10, cursor) == (["half whole"], 19)
    path.write_text("new\n")
    assert output.tail(path, 10, 19) == (["new"], 4)


def test_a_huge_output_is_cut_while_the_engine_goes_on_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_ROTATE_BYTES", 1000)
    monkeypatch.setattr(output, "_MAX_BYTES", 100)
    path = tmp_path / "output.log"
    with path.open("a") as engine:
        for n in range(300):
            engine.write(f"line {n}\n")
        engine.flush()
        output.trim(path)
        engine.write("after\n")
    assert path.read_text() == "after\n"
    assert (tmp_path / "output.1.log").read_text().endswith("line 299\n")


async def test_logs_of_the_agent_and_of_shards(tmp_path: Path) -> None:
    files, agent = ShardFiles(tmp_path), AgentLines()
    answers = Logs(files, agent)
    logger = logging.getLogger("test of agent lines")
    logger.setLevel("INFO")
    logger.addHandler(agent)
    for n in range(5):
        logger.info("said %d with sk-llmgw-abcdefghijklmnopqrstuvwxyz0123456789", n)
    answer = await answers.answer(AskLogs(machine_id="box", lines=2))
    assert [line.split(" said ")[1][:1] for line in answer.lines] == ["3", "4"]
    assert "uvwxyz" not in answer.lines[0]
    assert (await answers.answer(AskLogs(machine_id="box", after=answer.cursor))).lines == ()
    files.write(ShardRecord(wanted=shard(), generation=1))
    files.output("r-1-0").write_text("x\ny\n")
    answer = await answers.answer(AskLogs(machine_id="box", source="r-1-0", lines=1))
    assert answer.lines == ("y",)
    with pytest.raises(Refused) as refused:
        await answers.answer(AskLogs(machine_id="box", source="r-9-0"))
    assert "there is: agent, r-1-0" in str(refused.value.problems[0].message)


async def test_an_outbox_finds_that_the_log_has_forgotten_what_it_sent(
    tmp_path: Path, memory_cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.nodeagent.adapters.disk.outbox.LOOK_EVERY_S", 0.02)
    monkeypatch.setattr("libs.bus.remembered.LOOK_AGAIN_S", 0.01)
    told = asyncio.Event()
    box = Outbox(tmp_path, told.set)
    assert box.forgotten
    box.put(fact(1), "cause-1")
    box.start(memory_cluster.bus("node-box"))
    await eventually(lambda: not box.waiting())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(told.wait(), 0.3)
    assert not Outbox(tmp_path).forgotten
    memory_cluster.streams["EVENTS"].messages.clear()
    await asyncio.wait_for(told.wait(), 5)
    await box.stop(1)
    following = Outbox(tmp_path)
    assert following.forgotten
    following.put(fact(1), "cause-1")
    following.start(memory_cluster.bus("node-box"))
    await eventually(lambda: not following.waiting() and len(memory_cluster.streams["EVENTS"].messages) == 1)
    await following.stop(1)
