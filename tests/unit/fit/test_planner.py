"""Which layouts there are, in which order, and what speaks against each."""

from __future__ import annotations

import time

import msgspec
import pytest

from libs.fit import Facts, Host, Layout, Load, Unreadable, plan, profile_of
from libs.fit.hardware import Network
from libs.fit.layouts import width_reason
from libs.fit.memory import GIB
from libs.fit.quantisation import FP8
from tests.unit.fit.models import card, experts, gemma, host, invented, of, published, qwen

LOAD = Load(context=8192, parallel=1)


def ib(*identities: str, name: str = "ib-a") -> Network:
    return Network(name=name, identities=frozenset(identities), rate_gbps=400)


def best(models: list[Facts] | Facts, hosts: list[Host], load: Load = LOAD) -> Layout:
    made = plan([models] if isinstance(models, Facts) else models, hosts, load)
    assert made.best is not None, [layout.rejected for layout in made.layouts]
    return made.best


def shape(layout: Layout) -> tuple[int, int, int, int]:
    return (layout.nodes, layout.cards, layout.tensor, layout.pipeline)


def checks(layout: Layout) -> list[str]:
    return [reason.check for reason in layout.rejected]


def test_one_card_when_one_holds_it() -> None:
    assert shape(best(invented(60), [host("a"), host("b")])) == (1, 1, 1, 1)


def test_the_fewest_cards_of_one_node() -> None:
    made = plan([invented(200)], [host("a")], LOAD)

    # 3 cards would do and do not divide 8 KV heads.
    assert [(layout.cards, checks(layout)) for layout in made.layouts] == [
        (1, ["memory"]),
        (2, ["memory"]),
        (3, ["width"]),
        (4, []),
    ]
    assert made.best is not None
    assert (made.best.cards, made.best.tensor, made.best.link) == (4, 4, "NVLink")


@pytest.mark.parametrize(
    ("kv_heads", "heads", "widths"),
    [
        (8, 64, [1, 2, 4, 8, 16, 32, 64]),
        (4, 64, [1, 2, 4, 8, 16, 32, 64]),
        (2, 14, [1, 2, 14]),
        (1, 8, [1, 2, 4, 8]),
        (12, 48, [1, 2, 3, 4, 6, 12, 24, 48]),
    ],
)
def test_tensor_widths(kv_heads: int, heads: int, widths: list[int]) -> None:
    facts = invented(1, kv_heads=kv_heads, heads=heads)

    assert [width for width in range(1, 65) if width_reason(facts, width) is None] == widths


def test_several_nodes_on_one_fabric_when_no_node_holds_it() -> None:
    hosts = [host(name, networks=(ib("sm:1"),)) for name in ("a", "b", "c")]

    made = plan([invented(800)], hosts, LOAD)

    assert made.best is not None
    # Twelve cards of three nodes before sixteen of two.
    assert shape(made.best) == (3, 4, 4, 3)
    assert made.best.link == "ib-a (sm:1)"
    assert made.best.machines == ("a", "b", "c")
    assert shape(best(invented(800), hosts[:2])) == (2, 8, 8, 2)


def test_what_one_node_holds_is_not_spread() -> None:
    hosts = [host(name, networks=(ib("sm:1"),)) for name in ("a", "b")]

    assert all(layout.nodes == 1 for layout in plan([invented(500)], hosts, LOAD).layouts)


def test_never_across_two_fabrics_of_one_name() -> None:
    hosts = [
        host("a", networks=(ib("sm:1"),)),
        host("b", networks=(ib("sm:1"),)),
        host("c", networks=(ib("sm:2"),)),
        host("d", networks=(ib("sm:2"),)),
    ]

    made = plan([invented(1500)], hosts, LOAD)

    assert made.best is None
    across = made.layouts[-1]
    assert (across.nodes, across.cards, checks(across)) == (4, 8, ["fabric"])
    assert across.rejected[0].text == (
        "a replica never spans two fabrics (ib-a (sm:1) joins a, b; ib-a (sm:2) joins c, d)"
    )


@pytest.mark.parametrize(
    ("networks", "why"),
    [
        ((), "c: no InfiniBand or RoCE fabric"),
        ((ib(),), "c: which physical fabric its ib-a is could not be measured"),
        ((ib("sm:1", "sm:2"),), "c: its adapters of ib-a are on 2 physical fabrics"),
        ((ib("sm:9", name="ib-z"),), "c: alone on ib-z (sm:9)"),
    ],
)
def test_a_node_without_the_fabric_stays_apart_and_it_is_said_why(networks: tuple[Network, ...], why: str) -> None:
    hosts = [host(name, networks=(ib("sm:1"),)) for name in ("a", "b")] + [host("c", networks=networks)]

    made = plan([invented(1400)], hosts, LOAD)

    assert made.best is None
    assert why in made.layouts[-1].rejected[0].text
    assert best(invented(800), hosts).machines == ("a", "b")


def test_a_domain_of_nvlink_comes_before_a_fabric() -> None:
    def tray(name: str, **changes: object) -> Host:
        made = host(name, 4, networks=(ib("sm:1"),), imex=True)
        joined = tuple(msgspec.structs.replace(one, domain="uuid/1") for one in made.cards)
        return msgspec.structs.replace(made, **{"cards": joined, **changes})

    hosts = [tray("a"), tray("b"), tray("c")]

    assert best(invented(400), hosts).link == "NVLink domain uuid/1"
    # Without its service, or with a card that has not joined, a tray is in no domain.
    assert best(invented(400), [tray("a"), tray("b", imex=False)]).link == "ib-a (sm:1)"
    strange = tray("b", cards=(*tray("b").cards[:3], card(3)))
    assert best(invented(400), [tray("a"), strange]).link == "ib-a (sm:1)"


def test_cards_without_nvlink_form_a_pipeline() -> None:
    made = plan([invented(120)], [host("a", 4, joined=False)], LOAD)

    assert [(shape(layout), checks(layout)) for layout in made.layouts] == [
        ((1, 1, 1, 1), ["memory"]),
        ((1, 2, 2, 1), ["nvlink"]),
        ((1, 2, 1, 2), []),
    ]
    assert made.best is not None
    assert made.best.link == "PCIe"


def test_what_is_not_known_of_nvlink_rejects_nothing() -> None:
    unknown = host("a", 4, joined=False, nvlink="unknown")

    layout = best(invented(120), [unknown])

    assert (shape(layout), layout.link) == ((1, 2, 2, 1), "NVLink not known")


def test_a_replica_runs_on_exactly_one_mig_instance() -> None:
    slices = tuple(card(i, 40, mig=True, gpu_class="a100-80g-mig-3g.40gb") for i in range(4))
    sliced = host("a", cards=0, joined=False)
    sliced = msgspec.structs.replace(sliced, cards=slices)

    assert shape(best(invented(20), [sliced])) == (1, 1, 1, 1)
    made = plan([invented(50)], [sliced, sliced], LOAD)
    assert [(layout.cards, checks(layout)) for layout in made.layouts] == [(1, ["memory"]), (2, ["mig"])]


def test_experts_across_cards_are_served_in_parallel() -> None:
    assert not best(experts(40), [host("a")]).expert_parallel
    assert best(experts(200), [host("a")]).expert_parallel
    assert not best(invented(200), [host("a")]).expert_parallel


def test_cards_too_old_for_a_precision() -> None:
    old = host("a")
    old = msgspec.structs.replace(old, cards=tuple(msgspec.structs.replace(c, capability=(7, 0)) for c in old.cards))
    fp8 = invented(10, precision="fp8", bits=8, capability=FP8.capability)

    made = plan([fp8], [old], LOAD)

    assert made.best is None
    assert made.layouts[0].rejected[0].text == "fp8 needs compute capability 7.5, these cards have 7.0"
    assert best(fp8, [host("silent")]).fits


@pytest.mark.parametrize(
    ("capability", "note"),
    [
        ((7, 5), "fp8 weights only: these cards (7.5) compute in 16 bits, others from 8.9 on in it"),
        ((8, 6), "fp8 weights only: these cards (8.6) compute in 16 bits, others from 8.9 on in it"),
        ((8, 9), ""),
        ((9, 0), ""),
        (None, ""),
    ],
)
def test_cards_that_keep_a_precision_and_do_not_compute_in_it(capability: tuple[int, int] | None, note: str) -> None:
    one = host("a")
    cards = tuple(msgspec.structs.replace(card, capability=capability) for card in one.cards)
    fp8 = invented(10, precision="fp8", bits=8, capability=FP8.capability)

    assert best(fp8, [msgspec.structs.replace(one, cards=cards)]).note == note


def test_an_encoder_needs_no_cache_and_has_no_speed() -> None:
    encoder = published("bge-m3")

    layout = best(encoder, [host("a")])

    assert layout.need.context == 0
    assert layout.tokens_per_s is None
    assert layout.pace == "an encoder generates nothing"
    assert profile_of(layout, LOAD).engine == "vllm"


def precision(name: str, bits: float, gib: float) -> Facts:
    return invented(gib, precision=name, bits=bits, published=name == "bf16")


def test_better_precision_up_to_eight_bits_among_equals() -> None:
    of_bits = [precision("bf16", 16, 60), precision("fp8", 8, 30), precision("int4", 4, 15)]

    # All fit one card: 16 bits are no better than 8, so the files as they are win over computed ones.
    assert best(of_bits, [host("a")]).precision == "bf16"
    assert best(of_bits[1:], [host("a")]).precision == "fp8"
    # Fewer cards come before precision.
    assert best([precision("bf16", 16, 120), precision("int4", 4, 30)], [host("a")]).precision == "int4"


def test_the_smaller_card_among_equals() -> None:
    small = msgspec.structs.replace(
        host("small", 0, joined=False), cards=(card(0, 24, gpu_class="l4-24g", name="NVIDIA L4"),)
    )

    assert best(invented(10), [host("big"), small]).gpu_class == "l4-24g"
    assert best(invented(40), [host("big"), small]).gpu_class == "h100-80g"


def test_a_cpu_when_no_card_will_do() -> None:
    plain = host("plain", 0, joined=False)

    assert best(gemma(), [host("a"), plain]).gpu_class == "h100-80g"
    layout = best(gemma(), [plain])
    assert (layout.gpu_class, layout.engine, layout.machines) == (None, "llamacpp", ("plain",))
    made = plan([invented(10)], [plain], LOAD)
    assert made.layouts[0].rejected[0].check == "engine"


def test_llamacpp_knows_no_second_node() -> None:
    large = msgspec.structs.replace(qwen(), weights=msgspec.structs.replace(qwen().weights, total=900 * GIB))
    hosts = [host(name, networks=(ib("sm:1"),)) for name in ("a", "b")]

    made = plan([large], hosts, LOAD)

    assert all(layout.nodes == 1 for layout in made.layouts)
    assert made.best is None


def test_what_is_free_now_is_counted_and_decides_among_equals_only() -> None:
    busy = msgspec.structs.replace(
        host("a"), cards=tuple(msgspec.structs.replace(c, used_bytes=50 * GIB) for c in host("a").cards[:7])
    )

    layout = best(invented(60), [busy])

    assert layout.fits
    assert not layout.now
    assert (layout.free_units, layout.units) == (0, 7)
    assert layout.free_bytes == 7 * 30 * GIB
    assert best(invented(60), [busy, host("b")]).now


def test_machines_and_cards_out_of_use_are_left_out_and_named() -> None:
    sick = msgspec.structs.replace(host("b", 1), cards=(card(0, unusable="XID 79: it fell off the bus"),))

    made = plan([invented(60)], [host("a", away="it is drained"), sick], LOAD)

    assert [checks(layout) for layout in made.layouts] == [["engine"]]
    assert made.left_out == ("a: it is drained", "b GPU-0: XID 79: it fell off the bus")


def test_a_context_longer_than_trained_for_is_refused() -> None:
    with pytest.raises(Unreadable, match="200,000 tokens is longer than invented was trained for: 131,072 at most"):
        plan([invented(1)], [host("a")], Load(context=200_000))


def test_the_largest_models_go_where_they_should() -> None:
    assert shape(best(published("deepseek-v3"), list(of("two-fabrics.yaml")))) == (2, 8, 8, 2)
    assert shape(best(published("qwen3-235b-a22b"), list(of("h100x8.yaml")))) == (1, 8, 8, 1)
    rack = best(published("deepseek-v3"), list(of("gb200-nvl72.yaml")), Load(context=163840, parallel=8))
    assert rack.link.startswith("NVLink domain")


def test_a_thousand_nodes_take_moments() -> None:
    hosts = [host(f"n{i}", networks=(ib("sm:1"),)) for i in range(1000)]
    began = time.process_time()

    made = plan([invented(30_000)], hosts, LOAD)

    assert made.best is None
    assert time.process_time() - began < 5
