"""ComfyUI: images, sound and meshes from workflows, in a Python environment of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from libs.events.machine import Gpu
from libs.events.views import ShardWanted
from services.nodeagent.core.engines.base import Place, unsuited
from services.nodeagent.core.engines.python_environment import isolated
from services.nodeagent.core.shard.engine_metrics import Readings
from services.nodeagent.core.shard.offload import Offload


class _Queue(msgspec.Struct):
    queue_remaining: int


class _Prompt(msgspec.Struct):
    exec_info: _Queue


class Comfyui(msgspec.Struct, frozen=True, kw_only=True):
    """``python``: the interpreter of its environment; ``main``: its ``main.py``; ``data_dir``: where it keeps files."""

    python: str
    main: str
    data_dir: str
    name: str = "comfyui"

    @property
    def health_path(self) -> str:
        return "/system_stats"

    @property
    def metrics_path(self) -> str | None:
        return "/prompt"

    @property
    def generates(self) -> bool:
        return False

    def readings(self, page: str) -> Readings:
        """It says how many workflows are in its queue, the one it works on counted in; not how far it is."""
        try:
            remaining = msgspec.json.decode(page, type=_Prompt).exec_info.queue_remaining
        except msgspec.DecodeError:
            return Readings()
        return Readings(running=min(1, remaining), waiting=max(0, remaining - 1))

    def cpu_is_progress(self, wanted: ShardWanted) -> bool:
        return False

    def refusal(self, wanted: ShardWanted, gpus: Mapping[str, Gpu]) -> str | None:
        if len(wanted.devices) > 1:
            return "ComfyUI runs on one card"
        return unsuited(wanted)

    def entry(self, paths: Sequence[str]) -> str | None:
        return ""

    def command(self, wanted: ShardWanted, place: Place) -> list[str]:
        home = f"{self.data_dir}/{wanted.shard_id}"
        command = [self.python, self.main, "--listen", place.host, "--port", str(place.port)]
        command += ["--base-directory", home, "--disable-auto-launch", "--disable-all-custom-nodes"]
        # What a workflow was made from would be in every file it makes, prompts included.
        command += ["--disable-metadata", "--offline"]
        if place.weights is not None:
            command += ["--models-directory", place.weights]
        if not wanted.devices:
            command.append("--cpu")
        return [*command, *(arg for arg in wanted.args if arg not in command)]

    def environment(self, wanted: ShardWanted, place: Place) -> dict[str, str]:
        return isolated(self.python)

    def offload(self, output: Sequence[str]) -> Offload:
        return Offload()
