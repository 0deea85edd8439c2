"""How fast one request's tokens come: every token reads the active weights once, so memory sets the pace."""

from __future__ import annotations

from .facts import Facts

CARD_EFFICIENCY = 0.7
"""Share of a card's published bandwidth that engines reach with one request; the rest goes to launching kernels and to
attention."""
EXPERT_EFFICIENCY = 0.35
"""The same share while experts are read: each is a small matrix of its own."""
CPU_EFFICIENCY = 0.9
"""Share of the bandwidth that was measured on the machine itself."""
LAYER_S = 15e-6
"""Seconds to start a layer's kernels on a card; small models feel it."""
ROUTING_S = 45e-6
"""Seconds to choose a layer's experts and bring their tokens together."""
ALL_REDUCE_S = {"NVLink": 12e-6, "PCIe": 40e-6}
"""Seconds of one exchange of a layer's output among the cards of a node; tensor parallelism takes two a layer."""
HOP_S = 30e-6
"""Seconds to pass a layer's output to the next stage of a pipeline."""

BANDWIDTH_GBS: dict[str, int] = {
    "NVIDIA GB10": 273,
    "NVIDIA GB200": 8000,
    "NVIDIA GB300": 8000,
    "NVIDIA B200": 8000,
    "NVIDIA B300 SXM6 AC": 8000,
    "NVIDIA H200": 4800,
    "NVIDIA H200 NVL": 4800,
    "NVIDIA GH200 480GB": 4000,
    "NVIDIA GH200 144G HBM3e": 4900,
    "NVIDIA H100 80GB HBM3": 3350,
    "NVIDIA H100 NVL": 3900,
    "NVIDIA H100 PCIe": 2000,
    "NVIDIA H20": 4000,
    "NVIDIA A100-SXM4-80GB": 2039,
    "NVIDIA A100-SXM4-40GB": 1555,
    "NVIDIA A100 80GB PCIe": 1935,
    "NVIDIA A100-PCIE-40GB": 1555,
    "NVIDIA A800-SXM4-80GB": 2039,
    "NVIDIA A40": 696,
    "NVIDIA A30": 933,
    "NVIDIA A10": 600,
    "NVIDIA A10G": 600,
    "NVIDIA A2": 200,
    "NVIDIA L40S": 864,
    "NVIDIA L40": 864,
    "NVIDIA L20": 864,
    "NVIDIA L4": 300,
    "Tesla V100-SXM2-16GB": 900,
    "Tesla V100-SXM2-32GB": 900,
    "Tesla V100-PCIE-16GB": 900,
    "Tesla V100-PCIE-32GB": 900,
    "Tesla T4": 320,
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": 1597,
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": 1792,
    "NVIDIA RTX 6000 Ada Generation": 960,
    "NVIDIA RTX A6000": 768,
    "NVIDIA RTX A5000": 768,
    "NVIDIA RTX A4000": 448,
    "Quadro RTX 8000": 672,
    "Quadro RTX 6000": 672,
    "NVIDIA GeForce RTX 5090": 1792,
    "NVIDIA GeForce RTX 5080": 960,
    "NVIDIA GeForce RTX 4090": 1008,
    "NVIDIA GeForce RTX 4080": 717,
    "NVIDIA GeForce RTX 3090 Ti": 1008,
    "NVIDIA GeForce RTX 3090": 936,
    "NVIDIA GeForce RTX 3080": 760,
    "NVIDIA GeForce RTX 3060": 360,
}
"""GB/s (10^9 bytes) by the name the driver gives a card. From NVIDIA's data sheets; a variant has its own entry because
an H100 SXM and an H100 PCIe differ by two thirds."""


def card_bandwidth(name: str) -> float | None:
    """Bytes a second of a card, None when its name is not known."""
    known = BANDWIDTH_GBS.get(name)
    return known * 1e9 if known else None


def tensor_parallel(facts: Facts, bandwidth: float, width: int, stages: int, link: str) -> float:
    """Tokens a second of one request: cards of a stage read at once and then exchange, stages take turns."""
    seconds = _reading(facts, width * bandwidth)
    if width > 1:
        # Experts on other cards get their tokens in one more exchange, and give them back in another.
        exchanges = 4 if facts.experts else 2
        seconds += exchanges * facts.layers * ALL_REDUCE_S[link]
    return 1 / (seconds + (stages - 1) * HOP_S)


def layer_split(facts: Facts, bandwidth: float, cards: int) -> float:
    """Tokens a second when each card computes its layers in turn: no faster than on one card."""
    return 1 / (_reading(facts, bandwidth) + (cards - 1) * HOP_S)


def _reading(facts: Facts, bandwidth: float) -> float:
    """Seconds in which cards read the active weights once."""
    active, experts = facts.weights.active(facts.experts), 0.0
    if facts.experts:
        experts = facts.weights.experts * facts.experts.active / facts.experts.total
    starting = LAYER_S + (ROUTING_S if facts.experts else 0.0)
    return (
        (active - experts) / (bandwidth * CARD_EFFICIENCY)
        + experts / (bandwidth * EXPERT_EFFICIENCY)
        + facts.layers * starting
    )


def cpu(facts: Facts, all_cores: float, one_core: float | None, threads: int) -> float:
    """Tokens a second on a CPU: ``threads`` cores read so many times what one reads, and never more than all do."""
    bandwidth = all_cores if one_core is None else min(all_cores, threads * one_core)
    return bandwidth * CPU_EFFICIENCY / facts.weights.active(facts.experts)
