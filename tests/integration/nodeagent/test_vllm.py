"""The real vLLM, on the CPU: started, asked, measured and stopped by the agent."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.events.library import WeightFile
from libs.events.machine import MachineRegistered, ShardSample
from libs.events.shard import ShardReady, ShardStopped
from libs.events.views import LoraWanted, WeightsWanted
from libs.runtime.secrets import seal
from libs.testing.files import serving
from libs.testing.waiting import eventually
from tests.unit.nodeagent.wanted import shard

from .box import Box
from .vllm_environment import VERSION, engines_folder, make_lora, make_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

ARGS = ("--enforce-eager", "--block-size", "32")
KEY = "ek-of-this-replica"


def ask(url: str, path: str, body: dict[str, Any], key: str | None = KEY) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{url}/v1/{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    if key is not None:
        request.add_header("authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=120) as answer:
        said: dict[str, Any] = json.load(answer)
        return said


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return engines_folder(tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="module")
def model(engines: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "tiny"
    make_model(engines, folder)
    return folder


async def test_vllm_answers_chat_and_leaves_nothing(box: Box, engines: Path, model: Path, tmp_path: Path) -> None:
    make_lora(engines, tmp_path / "lora")
    box.settings = msgspec.structs.replace(
        box.settings, engines=("vllm",), engines_dir=engines, stop_grace_s=20.0, sample_every_s=0.5
    )
    with serving() as mirror:
        files: list[WeightFile] = [
            mirror.add(path.read_bytes(), path.name) for path in sorted(model.iterdir()) if path.is_file()
        ]
        weights = WeightsWanted(name="tiny", version="v1", files=tuple(files), mirrors=(mirror.url,))
        tuned = tuple(mirror.add(path.read_bytes(), path.name) for path in sorted((tmp_path / "lora").iterdir()))
        lora = LoraWanted(
            name="tuned", weights=WeightsWanted(name="lora", version="v1", files=tuned, mirrors=(mirror.url,))
        )
        box.start_agent()
        machine = await box.next(MachineRegistered, deadline_s=200)
        (found,) = machine.engines
        assert (found.engine, found.version) == ("vllm", f"{VERSION}+cpu")
        common: dict[str, Any] = {
            "engine": "vllm", "weights": weights, "context_length": 512, "parallel": 4, "cores": 2,
            "memory_mb": 4000, "served_name": "tiny", "sealed_key": seal(machine.sealing_key, KEY.encode()),
            "loras": (lora,),
        }  # fmt: skip
        await box.want(shard(args=ARGS, env={"VLLM_CPU_KVCACHE_SPACE": "1"}, **common))
        ready = await box.next(ShardReady, deadline_s=240)
        assert ready.engine_version == f"{VERSION}+cpu"

    with pytest.raises(urllib.error.HTTPError):
        ask(ready.url, "chat/completions", {"model": "tiny", "messages": []}, key=None)
    said = ask(ready.url, "chat/completions", {
        "model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 20, "ignore_eos": True,
    })  # fmt: skip
    assert said["usage"]["completion_tokens"] == 20

    def sure(name: str) -> list[float]:
        asked = {"model": name, "prompt": "a small model", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        choice = ask(ready.url, "completions", asked | {"logprobs": 1})["choices"][0]
        found: list[float] = choice["logprobs"]["token_logprobs"]
        return found

    own, tuned_one = sure("tiny"), sure("tuned")
    assert len(own) == len(tuned_one) == 12
    assert max(abs(a - b) for a, b in zip(own, tuned_one, strict=True)) > 0.01, "the adapter changes what is answered"

    def measured() -> ShardSample | None:
        shards = [one for sample in box.samples[-2:] for one in sample.shards]
        return next((one for one in shards if (one.tokens_total or 0) >= 21 and one.kv_used is not None), None)

    sample = await eventually(measured, 20)
    assert sample is not None
    assert (sample.running, sample.waiting) == (0, 0)
    assert (sample.rss_mb or 0) > 300
    pids = box.engine_pids()["r-1-0"]
    assert len(pids) >= 2, "a server and its engine core at least"
    await box.want()
    await box.next(ShardStopped, deadline_s=60)
    assert box.engine_pids() == {}


async def test_vllm_embeds_with_a_pooling_runner(box: Box, engines: Path, model: Path) -> None:
    box.settings = msgspec.structs.replace(box.settings, engines=("vllm",), engines_dir=engines, stop_grace_s=20.0)
    with serving() as mirror:
        files = tuple(mirror.add(path.read_bytes(), path.name) for path in sorted(model.iterdir()) if path.is_file())
        weights = WeightsWanted(name="tiny", version="v1", files=files, mirrors=(mirror.url,))
        box.start_agent()
        await box.next(MachineRegistered, deadline_s=200)
        await box.want(
            shard(
                engine="vllm", weights=weights, context_length=512, served_name="tiny", cores=2, memory_mb=4000,
                args=(*ARGS, "--runner", "pooling", "--convert", "embed"), env={"VLLM_CPU_KVCACHE_SPACE": "1"},
            )
        )  # fmt: skip
        ready = await box.next(ShardReady, deadline_s=240)
    said = ask(ready.url, "embeddings", {"model": "tiny", "input": ["hello", "there"]}, key=None)
    assert [len(one["embedding"]) for one in said["data"]] == [256, 256]
