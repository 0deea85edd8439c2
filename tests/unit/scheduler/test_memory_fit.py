"""A definition that cannot work is refused with the arithmetic, where the headers of its weights are known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from libs.events.commands import DefineModel
from libs.events.headers import ModelHeaders
from libs.events.library import LibraryVersion, VersionAdded
from libs.events.machine import EngineFound
from libs.events.model import ModelSpec, Profile
from libs.events.replica import ReplicaMeasured
from services.scheduler.core.placement.memory_fit import problems_of_headers
from services.scheduler.core.views.history import explain
from tests.unit.fit.models import gemma, published

from .harness import World, cpu_profile, gpu_profile, model_spec


def world_with(headers: ModelHeaders | None, gpus: int = 8, **machine: Any) -> World:
    world = World()
    world.machine("dgx", memory_mb=1_000_000, cores=64, gpus=gpus, **machine)
    world.mirror()
    library(world, headers)
    return world


def library(world: World, headers: ModelHeaders | None) -> None:
    version = LibraryVersion(name="w", version="v1", files=(), source="test", headers=headers)
    world.append(VersionAdded(at=world.now, name="w", version=version))


def spec(profile: Profile, **fields: Any) -> ModelSpec:
    return model_spec("m", 1, profile, **{"source": "library:w", "context_length": 8192} | fields)


def vllm(gpus: int = 1, **fields: Any) -> Profile:
    return gpu_profile("gpu", gpus, engine="vllm", **fields)


def test_a_model_too_large_for_its_cards_is_refused_with_the_arithmetic() -> None:
    world = world_with(published("llama-3-70b"))
    assert world.refused(DefineModel(spec=spec(vllm()))) == {
        "profiles[0].gpus_per_node": (
            "the GPU would hold 138.5 GiB (weights 131.4 + context 2.5 + engine 4.6), of a h100-80g 71.7 GiB are"
            " usable: take 2 of them, a shorter context_length or smaller weights"
        )
    }
    world.define(spec(vllm(2)))
    assert world.model().fingerprint


def test_of_vllm_one_of_the_longest_requests_must_fit_and_the_others_may_wait() -> None:
    world = world_with(published("llama-3-8b"))
    world.define(spec(vllm(parallel=256)))
    assert world.model().spec.profiles[0].parallel == 256
    llamacpp = spec(gpu_profile("gpu", 1, engine="llamacpp", parallel=256))
    assert world.refused(DefineModel(spec=llamacpp)) == {
        "profiles[0].engine": "llamacpp does not read safetensors: use vllm or sglang or trtllm"
    }


@pytest.mark.parametrize(
    ("profile", "path", "message"),
    [
        (vllm(3), "profiles[0].gpus_per_node",
         "3 neither divides the 8 KV heads nor is a multiple of them: a width of 1, 2, 4, 8, 16 would do"),
        (vllm(6, tp=3, pp=2), "profiles[0].tp",
         "3 neither divides the 8 KV heads nor is a multiple of them: a width of 1, 2, 4, 8, 16 would do"),
    ],
)  # fmt: skip
def test_a_width_must_go_with_the_heads(profile: Profile, path: str, message: str) -> None:
    assert world_with(published("llama-3-70b")).refused(DefineModel(spec=spec(profile))) == {path: message}


def test_a_context_longer_than_it_was_trained_for_is_refused_unless_it_is_stretched() -> None:
    world = world_with(gemma(), gpus=0)
    profile = cpu_profile(engine="llamacpp", memory_mb=20_000, cores=4)
    found = world.refused(DefineModel(spec=spec(profile, context_length=65_536)))
    assert found == {"context_length": "a context of 65,536 tokens; it was trained for 32,768: state at most that"}
    stretched = msgspec.structs.replace(profile, args=("--rope-scaling", "yarn"))
    world.define(spec(stretched, context_length=65_536))
    assert world.model().spec.context_length == 65_536


def test_main_memory_that_is_far_too_little_is_refused() -> None:
    world = world_with(gemma(), gpus=0)
    profile = cpu_profile(engine="llamacpp", memory_mb=300, cores=1)
    found = world.refused(DefineModel(spec=spec(profile)))
    assert found.keys() == {"profiles[0].memory_mb"}
    assert "300 MB, and gemma-3-270m takes 0.5 GiB" in found["profiles[0].memory_mb"]
    assert "state at least 5" in found["profiles[0].memory_mb"]
    world.define(spec(cpu_profile(engine="llamacpp", memory_mb=480, cores=1)))


def test_it_is_said_together_with_everything_else() -> None:
    world = world_with(published("llama-3-70b"))
    found = world.refused(DefineModel(spec=spec(vllm(), capabilities=("chta",))))
    assert set(found) == {"capabilities[0]", "profiles[0].gpus_per_node"}
    found = world.refused(DefineModel(spec=spec(vllm(parallel=0))))
    assert set(found) == {"profiles[0].parallel"}, "figures that are wrong by themselves are not reckoned with"


def test_what_is_not_known_refuses_nothing() -> None:
    world_with(None).define(spec(vllm()))
    world_with(published("llama-3-70b"), gpus=0).define(spec(vllm()))  # nobody has seen such a card
    world_with(published("llama-3-70b")).define(spec(vllm(args=("--kv-cache-dtype", "fp8"))))


def test_weights_that_come_later_are_judged_when_a_place_is_looked_for() -> None:
    world = World()
    engines = (EngineFound(engine="vllm", version="1", source="test"),)
    world.machine("dgx", memory_mb=1_000_000, cores=64, gpus=8, engines=engines)
    world.mirror()
    world.define(spec(vllm()))
    library(world, published("llama-3-70b"))
    world.settle()
    unplaced = world.model().unplaced
    assert unplaced is not None
    assert unplaced.rejected == {"gpu_memory": 1}
    said = "needs 138.5 GiB (weights 131.4 + context 2.5 + engine 4.6) on each GPU, 71.7 GiB are usable"
    assert said in unplaced.summary


def test_what_was_taken_once_is_not_refused_when_it_is_said_again() -> None:
    world = World()
    world.define(spec(vllm()))
    world.machine("dgx", memory_mb=1_000_000, cores=64, gpus=8)
    library(world, published("llama-3-70b"))
    assert world.command(DefineModel(spec=spec(vllm()))) is None


def test_how_fast_it_answers_is_told_once_against_the_estimate() -> None:
    world = world_with(gemma(), gpus=0, memory_read_mb_s=40_000, memory_read_one_core_mb_s=10_000,
                       engines=(EngineFound(engine="llamacpp", version="1", source="test"),))  # fmt: skip
    world.define(spec(cpu_profile(engine="llamacpp", memory_mb=2000, cores=2)))
    world.settle()
    world.use("m", paces=19, tokens_per_s=61.26)
    world.wait(70)
    assert world.events(ReplicaMeasured) == []
    world.use("m", paces=20, tokens_per_s=61.26)
    world.wait(130)
    [measured] = world.events(ReplicaMeasured)
    assert (measured.tokens_per_s, measured.requests) == (61.3, 20)
    assert 60 < measured.estimated_tokens_per_s < 120
    told = explain(world.state, world.model()).recent[-1].sentence
    assert f"answers one request with 61 tokens a second, {measured.estimated_tokens_per_s:.0f} were estimated" in told


def test_of_weights_nobody_knows_no_pace_is_told() -> None:
    world = World()
    world.machine("a", memory_read_mb_s=40_000)
    world.define(model_spec("m", 1))
    world.settle()
    world.use("m", paces=500, tokens_per_s=61.0)
    world.wait(130)
    assert world.events(ReplicaMeasured) == []


def test_headers_that_only_nodes_can_see_are_held_against_a_definition_that_is_examined() -> None:
    world = world_with(None)
    headers = published("llama-3-70b")
    source = "hf:meta/llama@" + "0" * 40

    def problems(*profiles: Profile, **fields: Any) -> dict[str, str]:
        tried = model_spec("m", 1, *profiles, **{"source": source, "context_length": 8192} | fields)
        world.define(tried)
        return {one.path: one.message for one in problems_of_headers(world.state, tried, (), headers)}

    assert problems(vllm(2, min_gpu_memory_mb=80_000)) == {}
    assert problems(vllm(3, min_gpu_memory_mb=80_000)).keys() == {"profiles[0].gpus_per_node"}
    assert "138.5 GiB" in problems(vllm(1, min_gpu_memory_mb=80_000))["profiles[0].gpus_per_node"]
    understated = problems(vllm(2, min_gpu_memory_mb=10_000))
    assert understated.keys() == {"profiles[0].min_gpu_memory_mb"}
    said = understated["profiles[0].min_gpu_memory_mb"]
    assert said.startswith("10000 MB, of which 8.8 GiB are usable, and each GPU must hold ")
    assert "trained for 8,192" in problems(vllm(2, min_gpu_memory_mb=80_000), context_length=16_384)["context_length"]
