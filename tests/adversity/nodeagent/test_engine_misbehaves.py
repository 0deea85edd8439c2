"""Engines that will not go, and weights that do not come."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.events.shard import ShardFailed, ShardLoading, ShardReady, ShardStopped
from libs.events.views import WeightsWanted
from libs.testing.engine import SimEngine
from libs.testing.files import FileServer, serving
from libs.testing.waiting import eventually
from services.nodeagent.adapters.engine.process import (
    Engines,
    alive,
    entry,
    mark_of,
    marked,
    members,
    same,
)
from tests.integration.nodeagent.box import Box
from tests.unit.nodeagent.wanted import shard

SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
DAEMON = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPER!r}], start_new_session=True)"
STUBBORN = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
# A worker in a session of its own, one whose parent ends at once, and one without the mark.
subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], start_new_session=True)
subprocess.Popen([sys.executable, "-c", {DAEMON!r}], start_new_session=True).wait()
subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], env={{}})
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def mirror() -> Iterator[FileServer]:
    with serving() as files:
        yield files


async def test_an_engine_that_ignores_term_and_scatters_workers_is_gone_to_the_last(tmp_path: Path) -> None:
    engines = Engines(tmp_path)
    output = tmp_path / "output.log"
    process = engines.start("r-1-0", [sys.executable, "-c", STUBBORN], {}, output)
    try:
        await eventually(lambda: output.exists() and "up" in output.read_text())
        assert same(process)
        everyone = members(process, mark_of(tmp_path, "r-1-0"))
        assert len(everyone) == 4
    finally:
        await engines.stop("r-1-0", process, 0.3)
    assert [one for one in everyone if entry(one.pid) == one] == []
    assert marked(tmp_path) == {}
    assert not alive(process)
    assert engines.exit_code(process) == -9


async def test_a_descendant_that_nothing_but_its_parent_ties_to_the_engine_goes_with_it(tmp_path: Path) -> None:
    engines = Engines(tmp_path)
    output = tmp_path / "output.log"
    # In a session of its own, without the mark: once its parent has ended on TERM, it is nobody's.
    stray = f"""
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], env={{}}, start_new_session=True).pid, flush=True)
time.sleep(600)
"""
    process = engines.start("r-1-0", [sys.executable, "-c", stray], {}, output)
    await eventually(lambda: output.exists() and "\n" in output.read_text())
    pid = int(output.read_text())
    # It must have come so far that it ignores TERM.
    await eventually(lambda: _ignores_term(pid))
    await engines.stop("r-1-0", process, 0.3)
    assert entry(pid) is None


def _ignores_term(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored.split()[1], 16) & 1 << (15 - 1))


async def test_an_engine_that_ends_by_itself_leaves_its_code(tmp_path: Path) -> None:
    engines = Engines(tmp_path)
    process = engines.start("r-1-0", [sys.executable, "-c", "import sys; sys.exit(3)"], {}, tmp_path / "o")
    await eventually(lambda: not engines.running(process))
    assert engines.exit_code(process) == 3


async def test_credentials_of_the_agent_do_not_reach_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_NODEAGENT_CREDENTIALS", "/secret")
    engines = Engines(tmp_path)
    output = tmp_path / "o"
    process = engines.start("r-1-0", [sys.executable, "-c", "import os; print(sorted(os.environ))"], {"A": "b"}, output)
    await eventually(lambda: not engines.running(process))
    assert "CREDENTIALS" not in output.read_text()
    assert "'A'" in output.read_text()


async def test_a_full_disk_keeps_no_engine_running(box: Box) -> None:
    box.start_agent("""
from services.nodeagent.adapters.disk import durable
write = durable.write
def full(path, content, mode=0o600):
    if b'"phase":"stopping"' in content:
        raise OSError(28, "No space left on device")
    write(path, content, mode)
durable.write = full
""")
    await box.want(shard())
    ready = await box.next(ShardReady)
    await box.want()
    await box.next(ShardStopped)
    assert entry(ready.pid) is None
    assert box.engine_pids() == {}


def weights(mirrors: tuple[str, ...], *files: object) -> WeightsWanted:
    return WeightsWanted(name="demo", version="v1", files=files, mirrors=mirrors)  # type: ignore[arg-type]


async def test_two_shards_of_a_model_cost_one_download(box: Box, mirror: FileServer) -> None:
    content = os.urandom(2_000_000)
    wanted = weights((mirror.url,), mirror.add(content))
    box.start_agent()
    await box.want(shard("r-1-0", weights=wanted), shard("r-2-0", weights=wanted))
    await box.next(ShardReady, 2)
    assert mirror.sent_bytes == len(content)
    assert sorted(loading.fetched_bytes for loading in box.of(ShardLoading)) == [0, len(content)]


async def test_a_download_survives_the_agent_and_the_mirror(box: Box, mirror: FileServer) -> None:
    half = 2 * 2**20
    content = os.urandom(2 * half)
    mirror.hold = threading.Event()
    file = mirror.add(content)
    box.start_agent()
    with serving() as second:
        second.add(content)
        await box.want(shard(weights=weights((mirror.url, second.url), file)))
        at_half = f"{half}/{2 * half} bytes"
        await eventually(lambda: any(sample.fetching.get("demo@v1") == at_half for sample in box.samples))
        box.kill_agent()
        mirror.hold.set()
        mirror.contents.clear()
        box.start_agent()
        loading = await box.next(ShardLoading)
        await box.next(ShardReady)
        assert second.requests == [f"bytes={half}-"]
        assert loading.fetched_bytes == half


async def test_a_flipped_byte_fails_the_shard_with_both_sums(box: Box, mirror: FileServer) -> None:
    file = mirror.add(os.urandom(100_000))
    mirror.contents[file.sha256] = b"!" + mirror.contents[file.sha256][1:]
    box.start_agent()
    await box.want(shard(weights=weights((mirror.url,), file)))
    failed = await box.next(ShardFailed)
    assert failed.phase == "fetching"
    assert file.sha256 in failed.reason
    assert not box.of(ShardLoading)


async def test_a_shard_withdrawn_while_its_weights_come_is_stopped_at_once(box: Box, mirror: FileServer) -> None:
    mirror.hold = threading.Event()
    file = mirror.add(os.urandom(100_000))
    box.start_agent()
    await box.want(shard(weights=weights((mirror.url,), file)))
    await eventually(lambda: bool(mirror.requests))
    await box.want()
    await box.next(ShardStopped, deadline_s=8)
    assert not box.of(ShardFailed)


async def test_weights_that_do_not_come_fail_after_the_deadline(box: Box) -> None:
    with serving() as away:
        file = away.add(b"x" * 1000)
    box.start_agent()
    await box.want(shard(weights=weights((away.url,), file), startup_timeout_s=1))
    failed = await box.next(ShardFailed)
    assert failed.phase == "fetching"
    assert "did not come" in failed.reason


async def test_a_port_that_another_program_took_is_given_up_for_another(box: Box, sim_engine: SimEngine) -> None:
    # The other one answers like ours would: without a key, under the same name.
    taken = f"""
from services.nodeagent.shard import shard_runner
free, ports = shard_runner.free_port, [{sim_engine.port}]
shard_runner.free_port = lambda host: ports.pop() if ports else free(host)
"""
    box.start_agent(taken)
    await box.want(shard(served_name="sim"))
    ready = await box.next(ShardReady)
    assert not ready.url.endswith(f":{sim_engine.port}")
    assert len(box.of(ShardLoading)) == 2
    assert not box.of(ShardFailed)


async def test_a_full_disk_hides_no_death(box: Box) -> None:
    full = """
from services.nodeagent.shard import shard_runner
from services.nodeagent.adapters.disk.shard_files import ShardFiles
shard_runner._RETRY_S = 0.05
write, refusals = ShardFiles.write, []
def sometimes(self, record):
    if record.phase == "failed" and len(refusals) < 3:
        refusals.append(1)
        raise OSError(28, "No space left on device")
    write(self, record)
ShardFiles.write = sometimes
"""
    box.start_agent(full)
    await box.want(shard(args=("--die-after", "0")))
    await box.next(ShardFailed)
    await eventually(lambda: box.records()["r-1-0"].phase == "failed")
    assert len(box.of(ShardFailed)) == 1, "the log knows it by its cause"
