"""How many weights a model of the usual decoder kind has, part by part, from the figures in its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Weights of each part."""

    embedding: int
    head: int
    """The output head; 0 when the embedding table serves as it."""
    linear: int
    """Attention, feed-forward and shared experts: what repositories quantise."""
    experts: int = 0
    """Experts a router picks from."""
    other: int = 0
    """Norms, routers, biases: never quantised."""
    tower: int = 0
    """For pictures."""
    extra_embedding: int = 0
    """Copies of embedding and head that a layer for guessing ahead brings with it."""

    @property
    def total(self) -> int:
        """All parameters, experts and tower counted in."""
        parts = (self.embedding, self.head, self.linear, self.experts, self.other, self.tower, self.extra_embedding)
        return sum(parts)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of config.json that count."""

    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    tied: bool
    gated: bool = True
    """Three matrices a feed-forward part, not two."""
    experts: int = 0
    expert_feed_forward: int = 0
    shared_feed_forward: int = 0
    dense_layers: int = 0
    """Of a model of experts: layers without any."""
    dense_feed_forward: int = 0
    """Width of those, where it is not ``feed_forward``."""
    expert_biases: bool = False
    latent: Latent | None = None
    ahead: int = 0
    """Layers for guessing tokens ahead, with an embedding, a head and a projection of their own."""
    table_positions: int = 0
    """Rows of a table of positions that is learnt."""
    token_types: int = 0
    pooler: bool = False
    """An encoder's last matrix over its first token, with biases throughout and a norm after the tables."""
    norms: int = 2
    """A layer's norms over the hidden size."""


class Latent(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention."""

    q_rank: int | None
    kv_rank: int
    rope: int
    nope: int
    value: int


def attention(shape: Shape) -> int:
    """Weights of one layer's attention."""
    if shape.latent is None:
        return shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    a = shape.latent
    query = shape.heads * (a.nope + a.rope)
    queries = shape.hidden * query if a.q_rank is None else (shape.hidden + query) * a.q_rank
    keys = shape.hidden * (a.kv_rank + a.rope) + a.kv_rank * shape.heads * (a.nope + a.value)
    return queries + keys + shape.heads * a.value * shape.hidden


def count(shape: Shape, config: Mapping[str, Any]) -> Counts:
    """Every weight; ``config`` is the whole config.json, for the tower."""
    matrices = 3 if shape.gated else 2
    feed_forward = matrices * shape.hidden * (shape.dense_feed_forward or shape.feed_forward)
    embedding = shape.vocabulary * shape.hidden
    layers = shape.layers + shape.ahead
    with_experts = layers - shape.dense_layers if shape.experts else 0
    expert = 3 * shape.hidden * shape.expert_feed_forward
    shared = 3 * shape.hidden * shape.shared_feed_forward
    other = layers * shape.norms * shape.hidden + shape.hidden + with_experts * shape.hidden * shape.experts
    if shape.expert_biases:
        other += with_experts * shape.experts * (2 * shape.expert_feed_forward + shape.hidden)
    if shape.pooler:
        # Of each layer: the biases of four matrices of attention and two of the feed-forward part, and of its norms.
        other += layers * (4 * shape.hidden + shape.feed_forward + shape.hidden + shape.norms * shape.hidden)
        other += shape.hidden * shape.hidden + 2 * shape.hidden
    embedding += (shape.table_positions + shape.token_types) * shape.hidden
    return Counts(
        embedding=embedding,
        head=0 if shape.tied else embedding,
        linear=layers * attention(shape)
        + (layers - with_experts) * feed_forward
        + with_experts * shared
        + shape.ahead * 2 * shape.hidden * shape.hidden,
        experts=with_experts * shape.experts * expert,
        other=other,
        tower=tower(config.get("vision_config")),
        extra_embedding=shape.ahead * 2 * embedding,
    )


def tower(vision: Any) -> int:
    """Weights of an encoder for pictures: blocks of attention and two matrices, and the patches."""
    if not isinstance(vision, Mapping):
        return 0
    hidden, layers, inner = (vision.get(key) for key in ("hidden_size", "num_hidden_layers", "intermediate_size"))
    if not (isinstance(hidden, int) and isinstance(layers, int) and isinstance(inner, int)):
        return 0
    patch = vision.get("patch_size", 14)
    patches = int(vision.get("num_channels", 3)) * patch * patch * hidden if isinstance(patch, int) else 0
    return layers * (4 * hidden * hidden + 2 * hidden * inner) + patches
