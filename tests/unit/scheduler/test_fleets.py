"""Every kind of fleet: where a model goes, why not elsewhere, and how that reads."""

from __future__ import annotations

import pytest

from .fleets import CASES, TEXTS, Case, text_name, told


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.fleet}: {case.what}")
def test_where_it_goes_and_why_not_elsewhere(case: Case) -> None:
    fleet = told(case)
    where = sorted("+".join(sorted(r.machines)) for r in fleet.replicas("m", "ready"))
    assert tuple(where) == case.where
    unplaced = fleet.model("m").unplaced
    said = {c.machine_id: "; ".join(c.rejected) for c in unplaced.candidates if c.rejected} if unplaced else {}
    for machine_id, part in case.why_not.items():
        assert part in said[machine_id]
    if not case.why_not:
        assert unplaced is None
    assert fleet.explain() == (TEXTS / text_name(case)).read_text()


def test_no_text_is_left_over() -> None:
    assert {path.name for path in TEXTS.glob("*.txt")} == {text_name(case) for case in CASES}


def test_the_narrow_card_is_used_last() -> None:
    fleet = told(next(case for case in CASES if case.fleet == "narrow-pcie"))
    [replica] = fleet.replicas("m")
    [shard] = replica.shards.values()
    assert shard.placement.devices == ("GPU-narrow-1",)


def test_a_replica_in_a_domain_needs_no_fabric() -> None:
    fleet = told(next(case for case in CASES if case.fleet == "gb200-nvl72"))
    [replica] = fleet.replicas("m")
    assert replica.nvlink_domain == "5f0c2a9e-7d1b-4b60-9e44-0f3a77f0b001/1"
    assert len(replica.shards) == 18
