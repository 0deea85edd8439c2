"""What a card needs, by the formulas of docs/fit.md."""

from __future__ import annotations

import pytest

from libs.fit import Load
from libs.fit.memory import GIB, MIB, cache, compute_buffer, outputs, paged, slots, slots_in_main_memory
from tests.unit.fit.models import experts, gemma, invented, published, qwen


def test_a_card_of_four() -> None:
    need = paged(published("llama-3-70b"), Load(context=8192, parallel=4), tensor=4, pipeline=1)

    assert need.weights == 141_107_412_992 / 4
    assert need.context == 327_680 * 8192 * 4 / 4
    assert need.engine == pytest.approx(2 * GIB + need.weights / 50, abs=1)
    assert need.total == need.weights + need.context + need.engine
    assert round(need.total / GIB, 1) == 38.0


@pytest.mark.parametrize(
    ("tensor", "pipeline", "shares"),
    [(1, 1, 1), (2, 1, 2), (8, 1, 8), (16, 1, 8), (32, 1, 8), (4, 2, 8), (16, 3, 24)],
)
def test_past_the_kv_heads_each_card_holds_a_copy(tensor: int, pipeline: int, shares: int) -> None:
    facts, load = invented(100), Load(context=1024, parallel=2)

    need = paged(facts, load, tensor, pipeline)

    assert need.context == round(facts.token_bytes * 1024 * 2 / shares)
    assert need.weights == round(100 * GIB / (tensor * pipeline))


def test_latent_attention_is_copied_to_every_card_of_a_stage() -> None:
    facts, load = published("deepseek-v3"), Load(context=1000, parallel=1)

    assert paged(facts, load, 8, 1).context == 70_272 * 1000
    assert paged(facts, load, 8, 2).context == 70_272 * 1000 / 2


def test_layers_with_a_window_keep_no_more_than_that_and_a_step() -> None:
    facts = published("gemma-3-27b")

    # 10 layers keep every token, 52 the last 1,024 and the 2,048 being worked on; 8 KiB a token and layer.
    assert paged(facts, Load(context=32768, parallel=1), 1, 1).context == 8192 * (10 * 32768 + 52 * 3072)
    assert paged(facts, Load(context=2048, parallel=1), 1, 1).context == 8192 * 62 * 2048


@pytest.mark.parametrize(
    ("context", "parallel", "kept_mib", "compute_mib"),
    # What llama.cpp itself prints: "KV buffer size" of both its caches, "compute buffer size".
    [(2048, 1, 6 + 15, 21.28), (8192, 4, 96 + 60, 27.28), (32768, 1, 96 + 15, 51.28)],
)
def test_llamacpp_allocates_what_it_prints(context: int, parallel: int, kept_mib: int, compute_mib: float) -> None:
    facts, load = gemma(), Load(context=context, parallel=parallel)

    need = slots_in_main_memory(facts, load)

    assert need.context == kept_mib * MIB
    assert compute_buffer(facts, load) / MIB == pytest.approx(compute_mib, rel=0.05)
    assert outputs(facts, load) == parallel * MIB
    assert need.weights / MIB == pytest.approx(235.16 + 12.66, abs=0.01)


def test_llamacpp_rounds_its_cells() -> None:
    assert cache(qwen(), Load(context=100, parallel=3), 512, 256) == 12_288 * 256 * 3


def test_llamacpp_splits_layers() -> None:
    facts, load = qwen(), Load(context=4096, parallel=2)

    one, four = slots(facts, load, 1), slots(facts, load, 4)

    assert four.weights == round(one.weights / 4)
    assert four.context == round(one.context / 4)
    assert four.engine == one.engine


def test_experts_need_no_less() -> None:
    load = Load(context=1024)

    assert paged(experts(100), load, 4, 1) == paged(invented(100), load, 4, 1)
