from __future__ import annotations

import os

import pytest

from libs.events.machine import Gpu
from services.nodeagent.adapters.engine import process
from services.nodeagent.adapters.engine.process import StillRunning
from services.nodeagent.core.machine import hardware
from services.nodeagent.core.shard import capacity, failure_causes, liveness
from services.nodeagent.core.shard import weights as rules
from services.nodeagent.core.shard.engine_metrics import Readings, read
from services.nodeagent.core.shard.liveness import Liveness
from services.nodeagent.engines.vllm.engine import VLLM_METRICS

from .wanted import gguf, shard, weights

PAGE = """# HELP vllm:num_requests_running …
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="a b",engine="0"} 2.0
vllm:num_requests_running{model_name="x",engine="1"} 1
vllm:num_requests_waiting{engine="0"} 0.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:generation_tokens_total{engine="0"} 120.0 1700000000
broken line
"""


def test_figures_are_summed_over_labels_and_absent_when_not_said() -> None:
    assert read(PAGE, VLLM_METRICS) == Readings(running=3, waiting=0, tokens=120, kv_used=0.25, progress=120.0)
    assert read("nothing", VLLM_METRICS) == Readings()
    unknown = PAGE.replace(" 2.0", " NaN").replace(" 120.0", " +Inf").replace(" 0.25", " NaN")
    assert read(unknown, VLLM_METRICS) == Readings(running=1, waiting=0)


def watched(*looks: tuple[float, Readings | None, bool, float]) -> Liveness:
    state = Liveness(moved_at=0, answered_at=0)
    for now, readings, healthy, cpu_s in looks:
        state = liveness.observed(state, now=now, healthy=healthy, readings=readings, cpu_s=cpu_s)
    return state


def test_work_without_progress_is_hung() -> None:
    stuck = Readings(running=1, waiting=0, progress=10.0)
    state = watched(*((t, stuck, True, float(t)) for t in range(1, 103)))
    assert liveness.hung(state, 102, 100) is not None
    assert "102 s" not in (liveness.hung(state, 102, 100) or ""), "it counts from the last progress"
    assert liveness.hung(state, 100, 100) is None


def test_slow_progress_and_no_work_are_not_hung() -> None:
    slow = [(t, Readings(running=9, waiting=50, progress=float(t // 60)), True, 0.0) for t in range(1, 500)]
    assert liveness.hung(watched(*slow), 500, 100) is None
    idle = [(t, Readings(running=0, waiting=0, progress=5.0), True, 0.0) for t in range(1, 500)]
    assert liveness.hung(watched(*idle), 500, 100) is None


def test_an_engine_that_does_not_answer_is_busy_while_it_computes() -> None:
    busy = [(t, None, False, t * 0.9) for t in range(1, 300)]
    assert liveness.hung(watched(*busy), 300, 100) is None
    dead = [(t, None, False, 5.0) for t in range(1, 300)]
    assert "neither answered nor computed" in (liveness.hung(watched(*dead), 300, 100) or "")


def test_room_says_the_arithmetic() -> None:
    wanted = shard(memory_mb=1000)
    assert capacity.refusal(wanted, available_mb=1500, promised_mb=400, gpus=(), foreign={}) is None
    refusal = capacity.refusal(wanted, available_mb=1500, promised_mb=600, gpus=(), foreign={})
    assert refusal is not None
    for figure in ("1000 MB", "900 MB", "1500 MB", "600 MB"):
        assert figure in refusal
    assert capacity.outstanding_mb([(1000, 300), (500, 800)]) == 700


def test_a_gpu_that_is_not_here_is_named() -> None:
    here = Gpu(index=0, uuid="GPU-a", name="x", gpu_class="x-1g", memory_total_mb=1)
    refusal = capacity.refusal(shard(devices=("GPU-b",)), available_mb=1, promised_mb=0, gpus=[here], foreign={})
    assert refusal == "GPU GPU-b is not on this machine (it has GPU-a)"


def test_a_gpu_that_others_use_is_not_taken() -> None:
    here = Gpu(index=0, uuid="GPU-a", name="x", gpu_class="x-1g", memory_total_mb=1)
    wanted = shard(devices=("GPU-a",))

    def refusal(**held: int | None) -> str | None:
        foreign = {"GPU-a": {int(pid[1:]): mb for pid, mb in held.items()}, "GPU-b": {1: 5000}}
        return capacity.refusal(wanted, available_mb=1, promised_mb=0, gpus=[here], foreign=foreign)

    assert refusal() is None
    assert refusal(p7=150, p8=None) is None
    assert refusal(p7=150, p8=400) == (
        "550 MB of GPU GPU-a are held by process 7, process 8, which is none of the engines here"
    )


@pytest.mark.parametrize(
    ("name", "mb", "gpu_class"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "h100-80g"),
        ("NVIDIA H200", 143771, "h200-141g"),
        ("NVIDIA A100-SXM4-80GB", 81920, "a100-80g"),
        ("Tesla T4", 15360, "t4-16g"),
        ("NVIDIA L40S", 46068, "l40s-48g"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090-24g"),
        ("NVIDIA H100 NVL", 95830, "h100-94g"),
    ],
)
def test_classes_are_what_people_call_the_cards(name: str, mb: int, gpu_class: str) -> None:
    assert hardware.gpu_class(name, mb) == gpu_class


def test_a_mig_instance_keeps_the_class_of_its_card() -> None:
    assert hardware.gpu_class("NVIDIA A100-SXM4-80GB", 81920, "3g.40gb") == "a100-80g-mig-3g.40gb"


def test_vector_flags_and_what_is_wrong_without_them() -> None:
    info = "processor\t: 0\nflags\t\t: fpu sse4_2 avx2 fma\n\nprocessor\t: 1\nflags\t\t: fpu\n"
    assert hardware.vector_flags(info) == ("sse4_2", "avx2", "fma")
    assert hardware.cpu_problems("x86_64", ("sse4_2",)) != ()
    assert hardware.cpu_problems("x86_64", ("avx2",)) == hardware.cpu_problems("aarch64", ()) == ()


def test_a_death_says_how_when_and_why() -> None:
    lines = ["ggml: CUDA error", "cudaMalloc failed: out of memory", "error loading model", "failed to load model"]
    assert failure_causes.death(1, lines, "while loading") == (
        "the engine ended by itself with exit code 1 while loading: its GPU had too little free memory"
    )
    assert "SIGKILL" in failure_causes.death(-9, [], "while serving")
    assert failure_causes.death(None, [], "while serving").startswith("the engine is gone while serving")


def test_no_output_leaks_into_a_reason() -> None:
    lines = ["prompt: my password is hunter2", "unknown model architecture: 'qwen9'", "failed to load model hunter2"]
    reason = failure_causes.death(1, lines, "while loading")
    assert "hunter2" not in reason
    assert "qwen9" in reason


def test_a_port_that_was_taken_is_recognised() -> None:
    for line in ("OSError: [Errno 98] address already in use", "couldn't bind HTTP server socket, port: 80"):
        assert failure_causes.PORT_TAKEN in failure_causes.death(1, [line], "while loading")


@pytest.mark.parametrize(
    ("path", "sha256", "complaint"),
    [
        ("../x.gguf", "a" * 64, "outside"),
        ("/etc/x.gguf", "a" * 64, "outside"),
        ("model.bin", "a" * 64, "pickle"),
        ("sub/model.PT", "a" * 64, "pickle"),
        ("model.gguf", "../../x", "not a SHA-256"),
    ],
)
def test_weights_that_are_not_fetched(path: str, sha256: str, complaint: str) -> None:
    assert complaint in (rules.refusal(weights(gguf(path=path, sha256=sha256))) or "")


def test_weights_that_are_fetched() -> None:
    assert rules.refusal(weights(gguf(path="sub/model-00001.gguf"))) is None
    assert "cannot be the name" in (rules.refusal(weights(gguf(), name="..")) or "")


def test_pickles_are_known_by_their_beginning() -> None:
    import pickle

    for protocol in (2, 3, 4, 5):
        assert rules.pickled(pickle.dumps({"a": 1}, protocol))
    assert rules.pickled(b"PK\x03\x04rest")
    assert not rules.pickled(b"GGUF\x03\x00")
    assert not rules.pickled((640).to_bytes(8, "little") + b'{"w": {')  # safetensors
    assert not rules.pickled(b"\x80")
    assert not rules.pickled(b"")


def test_what_survives_being_killed_hangs_in_the_kernel_only_where_the_kernel_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "none hangs in the kernel: the machine is too busy to end them" in str(StillRunning({os.getpid()}))
    monkeypatch.setattr(process, "state_of", lambda pid: "D" if pid == 7 else "R")
    said = str(StillRunning({9, 7}))
    assert said.startswith("processes 7, 9 did not end after SIGKILL; 7 hang in the kernel, ")
