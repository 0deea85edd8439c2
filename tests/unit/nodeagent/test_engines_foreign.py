"""Command lines and environments of the large engines, checked against the options each engine prints itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.engines import ENGINES
from libs.events.machine import FabricPort, Gpu, MigInstance
from libs.events.views import ShardWanted
from services.nodeagent.adapters.engine import installed
from services.nodeagent.adapters.gpu.nvml import Nvml
from services.nodeagent.core.engines import Place, environment
from services.nodeagent.engines.comfyui.engine import Comfyui
from services.nodeagent.engines.sglang.discovery import LAUNCHER
from services.nodeagent.engines.sglang.engine import Sglang
from services.nodeagent.engines.trtllm.engine import Trtllm
from services.nodeagent.engines.vllm.engine import Vllm

from .machines import described
from .wanted import gguf, shard, weights

ROCE = FabricPort(nic="mlx5_0", port=1, link_layer="Ethernet", state="active", gid_index=3)
PLACE = Place(host="10.0.0.7", port=4711, weights="/w/demo/v1", cpu_count=8, interface="eth9", ports=(ROCE,))
VLLM = Vllm(program="/opt/vllm/bin/vllm")
SGLANG = Sglang(python="/opt/sglang/bin/python", launcher="/x/launcher.py")
TRTLLM = Trtllm(program="/opt/trt/bin/trtllm-serve")
COMFY = Comfyui(python="/opt/c/venv/bin/python", main="/opt/c/main.py", data_dir="/d/comfyui")
FOLDER = weights(gguf(path="config.json"), gguf("b" * 64, path="model.safetensors"))
GPUS = {gpu.uuid: gpu for gpu in Nvml(described("h100-sxm-8"), None).look().gpus}
UUIDS = tuple(GPUS)


FOREIGN: tuple[Any, ...] = (VLLM, SGLANG, TRTLLM, COMFY)
WEIGHTS = {"safetensors": FOLDER, "gguf": weights(gguf())}


def wants(engine: str, **fields: Any) -> ShardWanted:
    """A shard on one card, of a format the engine reads; of none where it is not judged."""
    held = next((WEIGHTS[each] for each in ENGINES[engine].formats), None)
    return shard(engine=engine, **({"weights": held, "devices": UUIDS[:1]} | fields))


def test_every_engine_of_others_is_tested_here() -> None:
    others = {name for name, engine in ENGINES.items() if engine.arguments.recorded is not None}
    assert {engine.name for engine in FOREIGN} == others


def after(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


def recorded(engine: str) -> tuple[str, ...]:
    """Every option its own parser has."""
    options = ENGINES[engine].arguments.recorded
    assert options is not None
    return options


def options(command: list[str]) -> set[str]:
    return {part for part in command if part.startswith("--")}


GANG: dict[str, Any] = {
    "ranks": 2, "leader_address": "10.0.0.1", "leader_port": 29500, "devices": UUIDS, "nics": ("mlx5_0", "mlx5_1"),
}  # fmt: skip


def test_vllm_on_one_card_on_eight_and_on_two_machines() -> None:
    one = VLLM.command(wants("vllm", context_length=8192, parallel=64), PLACE)
    assert one[:4] == ["/opt/vllm/bin/vllm", "serve", "/w/demo/v1", "--served-model-name"]
    assert (after(one, "--max-model-len"), after(one, "--max-num-seqs")) == ("8192", "64")
    assert after(one, "--tensor-parallel-size") == after(one, "--pipeline-parallel-size") == "1"
    assert after(VLLM.command(wants("vllm", devices=UUIDS), PLACE), "--tensor-parallel-size") == "8"
    leader, worker = (VLLM.command(wants("vllm", rank=rank, **GANG), PLACE) for rank in (0, 1))
    for command, rank in ((leader, "0"), (worker, "1")):
        assert (after(command, "--nnodes"), after(command, "--node-rank")) == ("2", rank)
        assert (after(command, "--master-addr"), after(command, "--master-port")) == ("10.0.0.1", "29500")
        assert (after(command, "--tensor-parallel-size"), after(command, "--pipeline-parallel-size")) == ("8", "2")
    assert "--headless" in worker
    assert "--port" not in worker
    assert "--headless" not in leader
    wide = VLLM.command(wants("vllm", rank=0, tp=16, pp=1, **GANG), PLACE)
    assert after(wide, "--tensor-parallel-size") == "16"


def test_sglang_on_two_machines() -> None:
    command = SGLANG.command(wants("sglang", rank=1, **GANG), PLACE)
    assert command[:2] == ["/opt/sglang/bin/python", "/x/launcher.py"]
    assert after(command, "--dist-init-addr") == "10.0.0.1:29500"
    assert (after(command, "--nnodes"), after(command, "--node-rank")) == ("2", "1")
    assert (after(command, "--tp-size"), after(command, "--pp-size")) == ("8", "2")


def test_comfyui_keeps_its_files_to_itself() -> None:
    command = COMFY.command(shard(engine="comfyui", devices=UUIDS[:1]), PLACE)
    assert after(command, "--base-directory") == "/d/comfyui/r-1-0"
    assert after(command, "--listen") == "10.0.0.7"
    assert "--cpu" not in command
    assert COMFY.readings('{"exec_info": {"queue_remaining": 3}}').waiting == 2
    assert COMFY.readings("<html>").running is None


@pytest.mark.parametrize(
    ("engine", "fields"),
    [(each, {}) for each in FOREIGN]
    + [(each, {"rank": 1, **GANG}) for each in FOREIGN if ENGINES[each.name].spans_nodes],
)
def test_every_option_is_one_the_engine_has(engine: Any, fields: dict[str, Any]) -> None:
    assert options(engine.command(wants(engine.name, **fields), PLACE)) <= set(recorded(engine.name))


@pytest.mark.parametrize("engine", FOREIGN)
def test_a_key_is_on_no_command_line_and_devices_go_by_uuid(engine: Any) -> None:
    wanted = wants(engine.name)
    env = environment(wanted, engine, "ek-secret", PLACE)
    assert "ek-secret" not in " ".join(engine.command(wanted, PLACE))
    assert ("ek-secret" in env.values()) == (ENGINES[engine.name].key_variable is not None)
    assert env["CUDA_VISIBLE_DEVICES"] == UUIDS[0]
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["PYTHONPATH"] == "", "nothing of the agent's own Python"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert "NCCL_SOCKET_IFNAME" not in env, "one card talks to nobody"


def test_libraries_start_as_many_threads_as_the_shard_has_cores() -> None:
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")

    def threads(**fields: Any) -> set[str]:
        env = environment(wants("vllm", **fields), VLLM, None, PLACE)
        return {env[pool] for pool in pools}

    assert threads(cores=3) == {"3"}
    # None are reserved: half of those the machine may use, which a control group may have made few.
    assert threads(cores=0) == {"4"}
    assert (
        environment(wants("vllm", cores=3, env={"OMP_NUM_THREADS": "1"}), VLLM, None, PLACE)["OMP_NUM_THREADS"] == "1"
    )


def test_ranks_use_the_management_interface_and_the_fabrics_adapters_only() -> None:
    env = environment(wants("vllm", **GANG), VLLM, None, PLACE)
    assert env["NCCL_SOCKET_IFNAME"] == "=eth9"
    assert env["GLOO_SOCKET_IFNAME"] == "eth9"
    assert env["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    assert env["NCCL_IB_GID_INDEX"] == "3"
    assert env["VLLM_HOST_IP"] == "10.0.0.7"
    assert "NCCL_MNNVL_ENABLE" not in env
    domain = environment(wants("vllm", **(GANG | {"nics": (), "nvlink_domain": "c/1"})), VLLM, None, PLACE)
    assert (domain["NCCL_MNNVL_ENABLE"], domain["NCCL_IB_DISABLE"]) == ("1", "1")
    assert "NCCL_IB_HCA" not in domain


def test_what_a_profile_sets_never_overrules_the_agent() -> None:
    env = environment(wants("vllm", env={"VLLM_NO_USAGE_STATS": "0", "NCCL_DEBUG": "INFO"}), VLLM, "k", PLACE)
    assert (env["VLLM_NO_USAGE_STATS"], env["NCCL_DEBUG"]) == ("1", "INFO")


def test_vllm_on_the_cpu_takes_its_cores_and_part_of_its_memory() -> None:
    wanted = wants("vllm", devices=(), cores=3, memory_mb=16_384)
    env = environment(wanted, VLLM, None, PLACE)
    assert (env["OMP_NUM_THREADS"], env["VLLM_CPU_KVCACHE_SPACE"]) == ("3", "4")
    assert "--tensor-parallel-size" not in VLLM.command(wanted, PLACE)
    said = msgspec.structs.replace(wanted, env={"VLLM_CPU_KVCACHE_SPACE": "1"})
    assert environment(said, VLLM, None, PLACE)["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_pickles_are_not_loaded_unless_the_model_says_so() -> None:
    for engine in (VLLM, SGLANG):
        assert after(engine.command(wants(engine.name), PLACE), "--load-format") == "safetensors"
        assert "--load-format" not in engine.command(wants(engine.name, allow_pickle=True), PLACE)


OLD = msgspec.structs.replace(GPUS[UUIDS[0]], uuid="GPU-old", name="Tesla V100", compute_capability="7.0")
MIG = msgspec.structs.replace(
    GPUS[UUIDS[0]],
    uuid="MIG-a",
    mig=MigInstance(card_index=0, card_uuid="GPU-x", card_memory_total_mb=1, device=0, profile="3g.40gb"),
)
HERE: dict[str, Gpu] = GPUS | {"GPU-old": OLD, "MIG-a": MIG, "MIG-b": msgspec.structs.replace(MIG, uuid="MIG-b")}


@pytest.mark.parametrize(
    ("engine", "fields", "said"),
    [
        (VLLM, {"weights": None}, "names none"),
        (VLLM, {"weights": weights(gguf())}, "config.json"),
        (VLLM, {"weights": weights(gguf(path="config.json"))}, "no safetensors"),
        (VLLM, {"devices": ("GPU-old",)}, "compute capability 7.5 and Tesla V100 has 7.0"),
        (VLLM, {"devices": ("MIG-a", "MIG-b")}, "exactly one MIG instance"),
        (VLLM, {"devices": UUIDS[:4], "tp": 8}, "4 GPUs (4 on each of 1 machines) for tensor width 8"),
        (VLLM, {"ranks": 2, "devices": UUIDS}, "leader's address"),
        (VLLM, {"args": ("--trust_remote_code",)}, "--trust_remote_code"),
        (VLLM, {"env": {"VLLM_PLUGINS": "x"}}, "VLLM_PLUGINS"),
        (SGLANG, {"devices": ()}, "GPUs only"),
        (SGLANG, {"args": ("--lora-paths", "x")}, "--lora-paths"),
        (TRTLLM, {"ranks": 2}, "runs on one machine"),
        (TRTLLM, {"devices": ("GPU-old",)}, "8.0"),
        (COMFY, {"devices": UUIDS[:2]}, "one card"),
        (COMFY, {"args": ("--li", "0.0.0.0")}, "--li"),
    ],
)
def test_what_an_engine_cannot_run_is_said_with_the_reason(engine: Any, fields: dict[str, Any], said: str) -> None:
    assert said in (engine.refusal(wants(engine.name, **fields), HERE) or "")


@pytest.mark.parametrize("engine", FOREIGN)
def test_what_an_engine_can_run_is_not_refused(engine: Any) -> None:
    assert engine.refusal(wants(engine.name), HERE) is None


def test_sglang_gets_its_key_inside_the_process(tmp_path: Path) -> None:
    module = tmp_path / "sglang"
    module.mkdir()
    (module / "__init__.py").write_text("")
    (module / "launch_server.py").write_text(
        "import os, sys\nif __name__ == '__main__':\n"
        "    print(sys.argv[1:], open('/proc/self/cmdline').read().count('ek-1'), 'LLMGW_ENGINE_KEY' in os.environ)\n"
    )
    ran = subprocess.run(
        [sys.executable, str(LAUNCHER), "--port", "1"],
        env={"PYTHONPATH": str(tmp_path), "LLMGW_ENGINE_KEY": "ek-1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split("\n")[0] == "['--port', '1', '--api-key', 'ek-1'] 0 False"


def test_an_environment_counts_once_it_was_seen_to_load(tmp_path: Path) -> None:
    for version, works in (("0.9.0", True), ("0.32.0", True), ("1.0.0", False)):
        folder = tmp_path / f"vllm-{version}"
        (folder / "lib/python3.11/site-packages").mkdir(parents=True)
        (folder / "bin").mkdir()
        python = folder / "bin" / "python"
        python.write_text(
            f"#!/bin/sh\necho run >> {folder}/runs\n" + (f"echo version {version}" if works else "exit 1")
        )
        python.chmod(0o755)
    found = installed.newest(tmp_path, "vllm", "vllm")
    assert found is not None
    assert (found.version, found.folder.name) == ("0.32.0", "vllm-0.32.0")
    assert installed.newest(tmp_path, "vllm", "vllm") == found
    assert (tmp_path / "vllm-0.32.0" / "runs").read_text() == "run\n", "once"
    assert installed.newest(tmp_path, "sglang", "sglang") is None
