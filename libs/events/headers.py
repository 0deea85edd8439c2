"""What a model's headers say of it: enough to know what it takes of a card before anything of it is loaded."""

from __future__ import annotations

from .contract import Value

CACHE_ELEMENT_BYTES = 2
"""Engines keep keys and values in 16 bits unless told otherwise, whatever the weights are in."""


class AttentionLayers(Value, frozen=True, kw_only=True):
    """Layers that keep the same for every token."""

    count: int
    kv_heads: int
    """With latent attention 1: what is kept is one vector for all heads."""
    key_dim: int
    """Elements of one head; with latent attention ``kv_lora_rank`` + ``qk_rope_head_dim``."""
    value_dim: int
    """With latent attention 0: values are computed from the kept keys."""
    window: int | None = None
    """Tokens back that the layer sees; None: all of them."""

    @property
    def token_bytes(self) -> int:
        """Of one token in one of these layers."""
        return self.kv_heads * (self.key_dim + self.value_dim) * CACHE_ELEMENT_BYTES


class ExpertMixture(Value, frozen=True, kw_only=True):
    """A mixture of experts: a router picks ``active`` of ``total`` for every token."""

    total: int
    active: int
    shared: int = 0
    """Experts every token goes through besides."""


class WeightBytes(Value, frozen=True, kw_only=True):
    """Bytes of the weights, by how often they are read."""

    total: int
    experts: int = 0
    """Of experts a router picks from."""
    unread: int = 0
    """Of an embedding table that is not the output head too, and of towers for pictures: generating a token reads next
    to nothing of them."""
    repacked: int = 0
    """Of what llama.cpp keeps a second time in main memory when it computes on a CPU, in the order its kernels like."""

    def active(self, experts: ExpertMixture | None) -> float:
        """Bytes read for one token of one request."""
        idle = self.experts * (1 - experts.active / experts.total) if experts else 0.0
        return self.total - self.unread - idle


class ModelHeaders(Value, frozen=True, kw_only=True):
    """A model as one set of files holds it."""

    name: str
    format: str
    """``safetensors`` or ``gguf``."""
    architecture: str
    precision: str
    """``bf16``, ``fp8``, ``mxfp4``, ``Q4_K_M``."""
    bits: float
    """Of an ordinary weight, on average."""
    layers: int
    hidden: int
    feed_forward: int
    """Width inside a layer's feed-forward part, over the experts a token goes through."""
    heads: int
    kv_heads: int
    head_dim: int
    attention: tuple[AttentionLayers, ...]
    """Layers that keep nothing for a token (linear attention) stand in none."""
    latent: bool = False
    """Multi-head latent attention: one compressed vector a token for all heads."""
    experts: ExpertMixture | None = None
    vocabulary: int = 0
    context: int
    """Tokens it was trained for."""
    parameters: int = 0
    weights: WeightBytes
    capability: tuple[int, int] = (0, 0)
    """Compute capability of NVIDIA's that a card must have for it."""
    encoder: bool = False
    """It reads a text at once and generates nothing: no cache, no tokens a second."""
    published: bool = True
    """False: a precision nobody was seen to publish; the weights are computed from the others."""
    notes: tuple[str, ...] = ()
    """What the figures leave out."""

    @property
    def token_bytes(self) -> int:
        """KV cache of one token while every layer still keeps it."""
        return sum(group.count * group.token_bytes for group in self.attention)

    @property
    def far_token_bytes(self) -> int:
        """KV cache of one more token when all sliding windows are full."""
        return sum(group.count * group.token_bytes for group in self.attention if group.window is None)

    @property
    def split_heads(self) -> int:
        """Heads among which cards can divide the cache; past them each card holds a copy."""
        return 1 if self.latent else self.kv_heads
