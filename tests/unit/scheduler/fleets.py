"""Models on the fleets of ``examples/fleets``, and what is said of them: ``python -m tests.unit.scheduler.fleets``.

Run as a program it writes the texts ``llmgw explain`` prints, which are read by people before they are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from cli.fleet import load, registered, sample
from cli.models import explained
from libs.events.commands import CapRack
from libs.events.machine import EngineFound
from libs.events.model import ModelSpec, Profile
from services.scheduler.core.inputs.heartbeats import Heartbeat
from services.scheduler.core.views.history import explain

from .harness import FakeMachine, World, cpu_profile, gangs_are_together, model_spec, no_double_holding

FLEETS = Path(__file__).parents[3] / "examples" / "fleets"
TEXTS = Path(__file__).parents[2] / "golden" / "explanations"
ENGINES = tuple(EngineFound(engine=name, version="1", source="test") for name in ("sim", "vllm", "llamacpp"))


class Fleet(World):
    """A world of the machines a file describes, with what they measure."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.checks = [no_double_holding, gangs_are_together]
        self.samples: dict[str, Any] = {}
        for machine in load(FLEETS / f"{name}.yaml").machines:
            facts = msgspec.structs.replace(
                registered(machine), at=self.now, address=machine.id, sealing_key="00" * 32, engines=ENGINES
            )
            self.machines[machine.id] = FakeMachine(self, machine.id, facts)
            self.samples[machine.id] = sample(machine)
            self.append(facts)
        self.settle(2)

    def heartbeats(self) -> dict[str, Heartbeat] | None:
        heard = super().heartbeats()
        assert heard is not None
        for machine_id, said in self.samples.items():
            foreign = {g.uuid: g.foreign_memory_mb for g in said.gpus if g.foreign_memory_mb}
            holders = {g.uuid: f"process {g.foreign_processes[0].pid}" for g in said.gpus if g.foreign_processes}
            heard[machine_id] = msgspec.structs.replace(heard[machine_id], foreign_mb=foreign, foreign_holders=holders)
        return heard

    def explain(self, model: str = "m") -> str:
        answer = explain(self.state, self.model(model), self.heartbeats())
        return "\n".join(explained(answer)) + "\n"


def on(gpu_class: str, gpus: int = 1, **fields: Any) -> Profile:
    return Profile(
        **{"name": "gpu", "engine": "sim", "gpu_class": gpu_class, "gpus_per_node": gpus, "cores": 0} | fields
    )


class Case(msgspec.Struct, frozen=True):
    fleet: str
    what: str
    spec: ModelSpec
    where: tuple[str, ...]
    """Machines of its replicas, sorted; of one that spans several joined by ``+``."""
    why_not: dict[str, str] = {}
    """Machine id to a part of the sentence that turned it away."""
    before: Callable[[Fleet], None] | None = None


def _capped(fleet: Fleet) -> None:
    fleet.command(CapRack(rack="cold", watts=2800))


CASES = (
    Case("single-gpu", "one card", model_spec("m", 1, on("rtx-4090-24g")), ("box",)),
    Case(
        "single-gpu", "two replicas on one card", model_spec("m", 2, on("rtx-4090-24g")), ("box",),
        {"box": "needs 1 GPU of class rtx-4090-24g, 0 free of 1 (1 held by replicas"},
    ),
    Case(
        "single-gpu", "a newer card", model_spec("m", 1, on("rtx-4090-24g", min_compute_capability="9.0")), (),
        {"box": "needs compute capability 9.0, its GPUs have 8.9"},
    ),
    Case("h100x8", "two halves", model_spec("m", 2, on("h100-80g", 4)), ("dgx", "dgx")),
    Case(
        "h100x8", "sixteen cards", model_spec("m", 1, on("h100-80g", 8, nodes=2)), (),
        {"dgx": "can compute with no other machine: it has no port on a fabric"},
    ),
    Case("l40s-pcie", "all four, without NVLink", model_spec("m", 1, on("l40s-48g", 4)), ("pcie",)),
    Case(
        "l40s-pcie", "larger cards", model_spec("m", 1, on("l40s-48g", min_gpu_memory_mb=60_000)), (),
        {"pcie": "needs 60000 MB on each GPU, its GPUs of this class have 46068 MB"},
    ),
    Case(
        "a100-mig", "one half each", model_spec("m", 3, on("a100-80g-mig-3g.40gb")), ("sliced", "sliced"),
        {"sliced": "needs 1 GPU of class a100-80g-mig-3g.40gb, 0 free of 2 (2 held"},
    ),
    Case(
        "a100-mig", "the whole card", model_spec("m", 1, on("a100-80g")), (),
        {"sliced": "has no GPU of class a100-80g (it has a100-80g-mig-1g.10gb, a100-80g-mig-3g.40gb)"},
    ),
    Case(
        "two-fabrics", "two machines", model_spec("m", 2, on("h100-80g", 8, nodes=2)),
        ("left-1+left-2", "right-1+right-2"),
    ),
    Case(
        "two-fabrics", "three machines", model_spec("m", 1, on("h100-80g", 8, nodes=3)), (),
        {
            "left-1": "3 machines are needed on one fabric, 2 that could take a part are on",
            "unsure": "nobody knows which fabric its port mlx5_0/1 is on",
        },
    ),
    Case(
        "gb200-nvl72", "the whole rack", model_spec("m", 1, on("gb200-180g", 4, nodes=18)),
        ("+".join(sorted(f"tray-{i}" for i in range(1, 19))),),
    ),
    Case("mixed", "on a processor", model_spec("m", 2, cpu_profile(cores=32, memory_mb=100_000)), ("cpu-1", "cpu-2")),
    Case(
        "mixed", "cards first, a processor else",
        model_spec(
            "m", 5, on("a100-80g", 2, priority=2),
            cpu_profile(cores=16, memory_mb=50_000, node_selector={"kind": "cpu"}),
        ),
        ("big", "big", "cpu-1", "cpu-1", "cpu-2"),
    ),
    Case(
        "foreign", "beside somebody else", model_spec("m", 3, on("a100-80g")), ("shared", "shared"),
        {"shared": "2 used by others: GPU 0: 61440 MB held by process 4242"},
    ),
    Case(
        "foreign", "four cards", model_spec("m", 1, on("a100-80g", 4)), (),
        {"shared": "needs 4 GPUs of class a100-80g, 2 free of 4"},
    ),
    Case(
        "sick-card", "eight cards", model_spec("m", 2, on("h100-80g", 8)), ("well",),
        {"ill": "7 free of 8 (1 with problems: GPU 0 is out of use: XID 79"},
    ),
    Case("narrow-pcie", "the wide card first", model_spec("m", 1, on("l40s-48g")), ("narrow",)),
    Case(
        "capped-rack", "a rack at its power", model_spec("m", 9, on("h100-80g")),
        ("cold-1", "cold-1", "cold-2", "cold-2", "warm", "warm", "warm", "warm"),
        {"cold-1": "needs 700 W, 0 W left of the 2800 W of rack cold"}, _capped,
    ),
)  # fmt: skip


def told(case: Case) -> Fleet:
    fleet = Fleet(case.fleet)
    if case.before is not None:
        case.before(fleet)
    fleet.define(case.spec)
    fleet.settle()
    return fleet


def text_name(case: Case) -> str:
    return f"{case.fleet} - {case.what}.txt".replace(",", "")


def main() -> None:
    TEXTS.mkdir(exist_ok=True)
    for case in CASES:
        (TEXTS / text_name(case)).write_text(told(case).explain())


if __name__ == "__main__":
    main()
