"""Ways as profiles, and profiles judged by a model's headers."""

from __future__ import annotations

import msgspec
import pytest

from libs.events.model import ModelSpec, Profile
from libs.fit import Load, need_of, pace_of, plan, problems_of, profile_of
from libs.fit.memory import MIB, paged, slots, slots_in_main_memory
from libs.tuning import argument_problems
from services.scheduler.core.commands import validation
from services.scheduler.core.state.state import State
from tests.unit.fit.models import card, experts, gemma, host, invented, of, published

LOAD = Load(context=8192, parallel=8)


@pytest.mark.parametrize(
    ("model", "fleet", "shape"),
    [
        ("llama-3-8b", "a100-mig.yaml", (1, 1, None, None, ())),
        ("llama-3-70b", "h100x8.yaml", (4, 1, None, None, ())),
        ("llama-3-70b", "l40s-pcie.yaml", None),
        ("mixtral-8x7b", "h100x8.yaml", (2, 1, None, None, ("--enable-expert-parallel",))),
        ("deepseek-v3", "two-fabrics.yaml", (8, 2, None, None, ("--enable-expert-parallel",))),
    ],
)
def test_the_best_way_is_a_profile_the_catalog_takes(
    model: str, fleet: str, shape: tuple[int, int, int | None, int | None, tuple[str, ...]] | None
) -> None:
    facts = published(model)
    best = plan([facts], of(fleet), LOAD).best
    if shape is None:
        # Four of them do not hold eight requests of this length.
        assert best is None
        return
    assert best is not None

    profile = profile_of(best, LOAD)

    assert (profile.gpus_per_node, profile.nodes, profile.tp, profile.pp, profile.args) == shape
    assert argument_problems(profile.engine, profile.args) == {}
    spec = ModelSpec(name="planned", source="library:planned", context_length=LOAD.context, profiles=(profile,))
    assert validation.problems(State(), spec) == []
    assert need_of(facts, profile, LOAD.context) == best.need
    assert list(problems_of(facts, profile, LOAD.context)) == []


def test_a_pipeline_inside_a_node_says_its_widths() -> None:
    best = plan([invented(120)], [host("a", 4, joined=False)], LOAD).best
    assert best is not None

    profile = profile_of(best, LOAD)

    assert (profile.gpus_per_node, profile.nodes, profile.tp, profile.pp) == (2, 1, 1, 2)
    assert need_of(invented(120), profile, LOAD.context) == best.need


def test_on_the_cpu_memory_and_cores_are_reserved() -> None:
    best = plan([gemma()], [host("a", 0, joined=False)], LOAD).best
    assert best is not None

    profile = profile_of(best, LOAD)

    assert (profile.name, profile.engine, profile.gpu_class, profile.cores) == ("cpu", "llamacpp", None, 32)
    assert profile.memory_mb is not None
    assert 0 <= profile.memory_mb * MIB - best.need.total < MIB


def test_what_profiles_need() -> None:
    def need(engine: str, **fields: object) -> object:
        return need_of(gemma(), Profile(name="p", engine=engine, parallel=2, **fields), 4096)

    load = Load(context=4096, parallel=2)
    assert need("llamacpp") == slots_in_main_memory(gemma(), load)
    assert need("llamacpp", gpu_class="l4-24g", gpus_per_node=2) == slots(gemma(), load, 2)
    assert need("vllm", gpu_class="l4-24g", gpus_per_node=2, nodes=3) == paged(gemma(), load, 2, 3)
    assert need("vllm", gpu_class="l4-24g", gpus_per_node=2, tp=1, pp=2) == paged(gemma(), load, 1, 2)
    assert need("comfyui", gpu_class="l4-24g", gpus_per_node=1) is None


def test_what_is_wrong_with_a_profile_is_said() -> None:
    def said(profile: Profile, context: int = 1000) -> list[str]:
        return [reason.text for reason in problems_of(experts(10), profile, context)]

    three = Profile(name="p", engine="vllm", gpu_class="h100-80g", gpus_per_node=3, nodes=9)
    assert said(three) == [
        "3 neither divides the 8 KV heads nor is a multiple of them",
        "9 stages and only 8 layers",
    ]
    assert said(Profile(name="p", engine="llamacpp", memory_mb=1)) == [
        "llamacpp does not read safetensors: use vllm or sglang or trtllm"
    ]
    assert said(Profile(name="p", engine="sim"), 1_000_000) == [
        "a context of 1,000,000 tokens; it was trained for 131,072"
    ]


def test_a_profile_has_the_pace_of_its_way() -> None:
    for model in ("llama-3-8b", "llama-3-70b", "mixtral-8x7b"):
        facts, hosts = published(model), of("h100x8.yaml")
        best = plan([facts], hosts, LOAD).best
        assert best is not None
        cards = [card.uuid for card in hosts[0].cards[: best.cards]]
        assert pace_of(facts, profile_of(best, LOAD), hosts, cards) == pytest.approx(best.tokens_per_s)


def test_on_the_cpu_the_threads_given_set_the_pace() -> None:
    measured = host("a", 0, joined=False, read_bytes_s=40e9, read_core_bytes_s=10e9)
    profile = Profile(name="cpu", engine="llamacpp", memory_mb=1000, cores=2)
    two = pace_of(gemma(), profile, [measured], ())
    four = pace_of(gemma(), msgspec.structs.replace(profile, cores=4), [measured], ())
    assert two is not None
    assert four == pytest.approx(2 * two)


def test_of_what_is_not_known_there_is_no_pace() -> None:
    cpu = Profile(name="cpu", engine="llamacpp", memory_mb=1000, cores=2)
    assert pace_of(gemma(), cpu, [host("a", 0, joined=False)], ()) is None
    unknown = msgspec.structs.replace(host("a", 1), cards=(card(0, name="something new"),))
    gpu = Profile(name="gpu", engine="vllm", gpu_class="h100-80g", gpus_per_node=1)
    assert pace_of(invented(10), gpu, [unknown], ("GPU-0",)) is None
    assert pace_of(invented(10), msgspec.structs.replace(gpu, engine="sglang"), [host("a", 1)], ("GPU-0",)) is None
