"""A new engine takes a row and a folder: with these alone a definition is accepted, placed and served."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

from libs.engines import ENGINES

ROOT = Path(__file__).parents[3]
FOLDERS = ROOT / "services" / "nodeagent" / "engines"

ROW = """
    "toy": Traits(
        called="Toy",
        simulated=True,
        loras=True,
        key_variable="TOY_KEY",
        arguments=Arguments(refused={"--spy": "it listens in"}),
        variables=Variables(families=("TOY_",)),
    ),
}
"""

FOLDER = {
    "__init__.py": "",
    "engine.py": """
import msgspec

from services.nodeagent.core.engines.base import Prometheus, unsuited
from services.nodeagent.engines.vllm.engine import VLLM_METRICS


class Toy(msgspec.Struct, Prometheus, frozen=True, kw_only=True):
    python: str
    name: str = "toy"
    metrics = VLLM_METRICS

    def cpu_is_progress(self, wanted):
        return False

    def refusal(self, wanted, gpus):
        return unsuited(wanted)

    def entry(self, paths):
        return ""

    def command(self, wanted, place):
        server = [self.python, "-m", "libs.testing.sim_engine", "--host", place.host, "--port", str(place.port)]
        return [*server, "--model", wanted.served_name]
""",
    "discovery.py": """
import sys

from libs.events.machine import EngineFound
from services.nodeagent.engines.programs import Available

from .engine import Toy


async def find(settings):
    return Available(Toy(python=sys.executable), EngineFound(engine="toy", version="1", source="a folder"))
""",
}

STORY = """
from libs.events.commands import DefineModel
from libs.events.model import ModelSpec, Profile
from libs.events.shard import ShardReady
from services.nodeagent.agent import Shared
from services.nodeagent.machine.discovery import engines
from services.nodeagent.questions import AgentLines
from services.nodeagent.settings import NodeAgentSettings


def model(name, **fields):
    profile = Profile(name="cpu", engine="toy", memory_mb=100, **fields)
    return ModelSpec(name=name, context_length=4096, capabilities=("chat",), profiles=(profile,))


async def test_it_is_accepted_placed_and_started(cluster, tmp_path):
    cluster._shared = Shared(await engines(NodeAgentSettings(data_dir=tmp_path, engines=("toy",))), AgentLines())
    await cluster.machine("node-1")
    refused = await cluster.bus.command(DefineModel(spec=model("spied", args=("--spy",))))
    assert "it listens in" in refused.problems[0].message
    await cluster.define(model("m", env={"TOY_SPEED": "9"}))
    await cluster.serves("m", on={"node-1"})
    assert cluster.events(ShardReady)[0].engine == "toy"
"""


def test_a_row_and_a_folder_are_all_an_engine_takes(tmp_path: Path) -> None:
    for folder in ("libs", "services", "cli", "tests/integration/scheduler"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("tests/__init__.py", "tests/conftest.py", "tests/proof.py", "tests/integration/__init__.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    table = tmp_path / "libs" / "engines" / "table.py"
    rows, end, rest = table.read_text().partition("\n}\n")
    assert end
    table.write_text(rows + ROW + rest)
    table.write_text(table.read_text().replace("import Traits, Variables", "import Arguments, Traits, Variables"))
    (tmp_path / "services/nodeagent/engines/toy").mkdir()
    for name, text in FOLDER.items():
        (tmp_path / "services/nodeagent/engines/toy" / name).write_text(text)
    story = tmp_path / "tests/integration/scheduler/test_toy.py"
    story.write_text(STORY)
    options = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-o", "asyncio_mode=auto", "--rootdir", ".")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-c", os.devnull, str(story)],
        cwd=tmp_path,
        env=dict(os.environ) | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]


def test_every_row_has_a_folder_and_every_folder_a_row() -> None:
    folders = {path.parent.name for path in FOLDERS.glob("*/engine.py")}
    assert folders == ENGINES.keys()
    assert all((FOLDERS / name / "discovery.py").exists() for name in folders)


THEIRS = ("libs/engines", "services/nodeagent/engines", "libs/testing")
"""Rooms that may name an engine; of ``libs.testing`` a model is called as the simulated one."""


def test_nobody_else_asks_which_engine_it_is() -> None:
    """What differs from engine to engine is a trait in their table."""
    files = [path for room in ("libs", "services", "cli") for path in (ROOT / room).rglob("*.py")]
    others = [path for path in files if not any(path.is_relative_to(ROOT / room) for room in THEIRS)]
    asked = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in others
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in ENGINES
    ]
    assert others
    assert asked == []
