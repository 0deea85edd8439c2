"""Estimated tokens a second."""

from __future__ import annotations

import msgspec
import pytest

from libs.fit import Load, plan, speed
from tests.unit.fit.models import card, experts, gemma, host, invented, published

LOAD = Load(context=4096, parallel=1)


def test_an_h100_sxm_is_no_h100_pcie() -> None:
    assert speed.card_bandwidth("NVIDIA H100 80GB HBM3") == 3350e9
    assert speed.card_bandwidth("NVIDIA H100 PCIe") == 2000e9
    assert speed.card_bandwidth("NVIDIA H100") is None


def test_a_card_that_is_not_known_gets_no_figure() -> None:
    strange = msgspec.structs.replace(host("a", 0), cards=(card(0, name="Shiny 9000"),))

    (layout,) = plan([invented(10)], [strange], LOAD).layouts

    assert layout.tokens_per_s is None
    assert layout.pace == "the bandwidth of a card 'Shiny 9000' is not known"


def test_llama_3_70b_on_four_h100s() -> None:
    # 139 GB are read by four cards at 0.7 of 3,350 GB/s: 14.8 ms; 80 layers start in 15 us and exchange twice in 12.
    expected = 1 / (139.005e9 / (4 * 3350e9 * 0.7) + 80 * 15e-6 + 2 * 80 * 12e-6)

    made = speed.tensor_parallel(published("llama-3-70b"), 3350e9, 4, 1, "NVLink")

    assert made == pytest.approx(expected, rel=1e-3)


def test_wider_is_faster_and_pipelines_and_splits_are_not() -> None:
    facts = invented(60)
    one = speed.tensor_parallel(facts, 1e12, 1, 1, "NVLink")

    assert speed.tensor_parallel(facts, 1e12, 4, 1, "NVLink") > speed.tensor_parallel(facts, 1e12, 4, 1, "PCIe") > one
    assert speed.tensor_parallel(facts, 1e12, 1, 2, "NVLink") < one
    assert speed.layer_split(facts, 1e12, 4) < speed.layer_split(facts, 1e12, 1) == pytest.approx(one)


def test_idle_experts_cost_nothing() -> None:
    facts = msgspec.structs.replace(experts(64), weights=msgspec.structs.replace(experts(64).weights, experts=60 << 30))

    assert facts.weights.active(facts.experts) == pytest.approx((4 + 60 * 4 / 64) * 2**30)


def test_a_cpu_reads_with_the_threads_it_is_given() -> None:
    facts = gemma()
    one, all_cores = 10e9, 40e9

    assert speed.cpu(facts, all_cores, one, 2) == pytest.approx(20e9 * 0.9 / facts.weights.total)
    assert speed.cpu(facts, all_cores, one, 16) == pytest.approx(40e9 * 0.9 / facts.weights.total)
    assert speed.cpu(facts, all_cores, None, 1) == pytest.approx(40e9 * 0.9 / facts.weights.total)


def test_a_cpu_without_avx2_gets_no_figure() -> None:
    old = host("old", 0, joined=False, read_bytes_s=40e9, vector=False)

    (layout,) = plan([gemma()], [old], LOAD).layouts

    assert (layout.tokens_per_s, layout.pace) == (None, "its CPU shows no AVX2")


def test_a_mig_instance_has_its_share_of_the_bandwidth() -> None:
    def on(share: float) -> float:
        made = msgspec.structs.replace(host("a", 0), cards=(card(0, 40, mig=True, share=share),))
        pace = plan([invented(10)], [made], LOAD).layouts[0].tokens_per_s
        assert pace is not None
        return pace

    assert on(0.5) == pytest.approx(on(1.0) / 2, rel=0.02)
