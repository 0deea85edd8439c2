"""Models and fleets the tests of fit share."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cli import fleet
from libs.fit import Card, Experts, Facts, Host, Layers, Weights, hosts_of
from libs.fit.gguf import facts_of, parse
from libs.fit.headers import open_source, read
from libs.fit.memory import GIB
from tests.data.models.gguf_headers import gemma_3_270m, qwen2_5_0_5b

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "tests" / "data" / "models"
FLEETS = ROOT / "examples" / "fleets"


def published(name: str) -> Facts:
    """A model of tests/data/models."""
    (model,) = read(*open_source(str(MODELS / name)))
    return model.facts


def gemma() -> Facts:
    return facts_of("gemma-3-270m", [parse(gemma_3_270m())])


def qwen() -> Facts:
    return facts_of("qwen2.5-0.5b", [parse(qwen2_5_0_5b())])


def of(file: str) -> tuple[Host, ...]:
    """The machines of one of the example fleets."""
    machines = fleet.load(FLEETS / file).machines
    return hosts_of(map(fleet.registered, machines), {one.id: fleet.sample(one) for one in machines})


def invented(gib: float, **changes: object) -> Facts:
    """A plain model of 8 layers and 8 KV heads with weights of this size and a cache of 32 KiB a token."""
    facts = Facts(
        name="invented",
        format="safetensors",
        architecture="LlamaForCausalLM",
        precision="bf16",
        bits=16,
        layers=8,
        hidden=1024,
        feed_forward=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        attention=(Layers(count=8, kv_heads=8, key_dim=128, value_dim=128),),
        context=131072,
        weights=Weights(total=round(gib * GIB)),
    )
    return msgspec.structs.replace(facts, **changes)


def experts(gib: float) -> Facts:
    return invented(gib, experts=Experts(total=64, active=4))


def card(number: int, gib: float = 80, **changes: object) -> Card:
    made = Card(uuid=f"GPU-{number}", gpu_class="h100-80g", name="NVIDIA H100 80GB HBM3", memory_bytes=round(gib * GIB))
    return msgspec.structs.replace(made, **changes)


def host(name: str, cards: int = 8, *, joined: bool = True, **changes: object) -> Host:
    """A node of cards of 80 GiB, all joined by NVLink or none."""
    uuids = frozenset(f"GPU-{i}" for i in range(cards))
    made = Host(
        id=name,
        cores=64,
        memory_bytes=512 * GIB,
        cards=tuple(card(i, peers=uuids - {f"GPU-{i}"} if joined else frozenset()) for i in range(cards)),
    )
    return msgspec.structs.replace(made, **changes)
