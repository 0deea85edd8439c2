"""The one sentence for a person: why a machine comes before the next best, and why none will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from libs.events.machine import Gpu, MachineRegistered
from libs.fit.health import (
    limited,
    slow,
    usable,
    worst,
)

from .devices import short_link
from .gangs import LEAST, NAMED

LEADS = {
    "weights": "its weights have run there",
    "spread": "fewer of its replicas run there",
    "history": "it failed there less often",
    "racks": "fewer of its replicas run in that rack",
    "plain": "no GPUs stand idle beside it there",
    "sound": "the cards there are not slowed down",
    "link": "the cards' PCIe links are wider",
    "whole": "no larger group of cards is broken up",
    "near": "the cards are nearer to each other",
    "adapter": "the cards are nearer to the network adapters",
    "cable": "its cable runs at full rate",
}
"""What a higher score says."""
FIT_OF_GPUS = "it is the fuller one, so that whole machines stay whole"
FIT_OF_CPUS = "more of its memory is free"


def ahead(best: Mapping[str, float], second: Mapping[str, float], worth: Mapping[str, float]) -> str | None:
    """The one or two scores that put one machine before another; None: nothing but its name does."""
    leads = {part: worth[part] * (score - second.get(part, 0.0)) for part, score in best.items() if part in worth}
    if sum(leads.values()) < LEAST:
        return None
    first = sorted((part for part in leads if leads[part] >= LEAST), key=lambda part: (-leads[part], part))
    if "spread" in first and "racks" in first:
        first.remove("racks")  # it is said with the other
    fit = FIT_OF_CPUS if "plain" in best else FIT_OF_GPUS
    return " and ".join(fit if part == "fit" else LEADS[part] for part in first[:2])


def chosen(where: str, profile: str, considered: int, fitting: int, second: str | None, lead: str | None) -> str:
    """``second``: the next best machine; ``lead``: what puts the chosen one before it."""
    here = f"{where} with the profile {profile}"
    if second is None:
        of = f"one of {considered} machines that can take it"
        return f"{here}: the only {of if considered > 1 else 'machine there is'}"
    why = f", before {second}: {lead}" if lead is not None else f": as good as {second}, and first by name"
    return f"{here}{why}; {fitting} of {considered} machines can take it"


def where(facts: MachineRegistered, devices: Sequence[str]) -> str:
    """A machine and which of its cards, and which were left for last."""
    mine = [gpu for gpu in facts.gpus if gpu.uuid in devices]
    if not mine:
        return facts.machine_id
    of_class = [gpu for gpu in facts.gpus if gpu.gpu_class == mine[0].gpu_class]
    last = "" if any(map(_worse, mine)) else "; ".join(_why_last(gpu) for gpu in of_class if _worse(gpu))
    return f"{facts.machine_id} ({_cards(mine)}{'; ' if last else ''}{last})"


def _worse(gpu: Gpu) -> bool:
    return usable(gpu) and (slow(gpu) or short_link(gpu))


def _why_last(gpu: Gpu) -> str:
    link = gpu.pcie
    if limited(gpu):
        return f"{card(gpu)} comes last: limited to {gpu.power_limit_watts} of its {gpu.power_default_watts} W"
    if slow(gpu) or link is None:
        worst_problem = worst(gpu.problems)
        return f"{card(gpu)} comes last{f': {worst_problem[1]}' if worst_problem is not None else ''}"
    if link.lanes is not None and link.card_lanes is not None and link.lanes < link.card_lanes:
        return f"{card(gpu)} comes last: {link.lanes} of its {link.card_lanes} PCIe lanes"
    return f"{card(gpu)} comes last: PCIe generation {link.generation} of its {link.card_generation}"


def _cards(gpus: Sequence[Gpu]) -> str:
    indexes = sorted(gpu.index for gpu in gpus)
    if len(gpus) == 1:
        return card(gpus[0])
    if indexes == list(range(indexes[0], indexes[-1] + 1)):
        return f"GPUs {indexes[0]} to {indexes[-1]}"
    return f"GPUs {', '.join(map(str, indexes))}"


def card(gpu: Gpu) -> str:
    """A card for people: by its index, and its instance where it is divided."""
    if gpu.mig is not None:
        return f"instance {gpu.mig.device} of GPU {gpu.mig.card_index}"
    return f"GPU {gpu.index}"


def chosen_together(machines: Sequence[str], profile: str, where: str, considered: int, fitting: int) -> str:
    """``where``: over what they compute together, and which others would have done."""
    names = ", ".join(machines[:NAMED])
    if len(machines) > NAMED:
        names = f"{names} and {len(machines) - NAMED} more"
    return f"{names} with the profile {profile}, together {where}; {fitting} of {considered} machines can take a part"


def power(needs: int, drawn: int, cap: int, rack: str) -> str:
    """Why a rack's limit keeps a machine from it; all in W."""
    over = f" (what runs there may draw {drawn} W)" if drawn > cap else ""
    return f"needs {needs} W, {max(0, cap - drawn)} W left of the {cap} W of rack {rack}{over}"


def nowhere(considered: int, counted: Mapping[str, int], examples: Mapping[str, tuple[str, str]]) -> str:
    """``counted``: check to machines it turned away; ``examples``: to one of them, and why, the most helpful first."""
    worst = [check for check in examples if check in counted]
    if considered == 1:
        machine_id = examples[worst[0]][0]
        return f"{machine_id}, the only machine, cannot take it: {'; '.join(examples[check][1] for check in worst)}"
    why = "; ".join(f"{check} turned away {counted[check]} ({': '.join(examples[check])})" for check in worst)
    return f"none of {considered} machines can take it: {why}"
