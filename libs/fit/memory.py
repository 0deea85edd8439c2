"""What a model takes of a card, or of main memory: weights, context, and the engine's own.

All figures are bytes; GiB and MiB are powers of two.
"""

from __future__ import annotations

import msgspec

from .facts import Facts

MIB = 1 << 20
GIB = 1 << 30

USABLE = 0.9
"""Of a card's memory; the rest is the driver's and lost to fragmentation."""
USABLE_MAIN = 0.9
"""Of a machine's main memory; the rest is the system's and its page cache's."""

VLLM_OWN = 2 * GIB
VLLM_OWN_SHARE = 1 / 50
"""vLLM's activations, CUDA graphs and workspace: 2 GiB and a fiftieth of the weights on the card."""
VLLM_STEP = 2048
"""Tokens vLLM works on in one step; layers with a window keep so many besides their window."""

LLAMACPP_STEP = 512
"""llama.cpp's physical batch (``--ubatch-size``) unless told otherwise: its compute buffer is sized for so many
tokens."""
LLAMACPP_CELLS = 256
"""llama.cpp rounds the cells of a cache up to a multiple of this."""
LLAMACPP_PROGRAM = 48 * MIB
"""The server itself: program, libraries, buffers of its HTTP side and its worker threads. Measured."""
LLAMACPP_WORD = 200
"""Bytes llama.cpp keeps for every word of a vocabulary: texts, scores and two look-up tables. Measured."""
LLAMACPP_CARD = 512 * MIB
"""CUDA's context and kernels on every card llama.cpp uses."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica should be able to hold."""

    context: int
    """Tokens of one request, prompt and answer."""
    parallel: int = 4
    """Requests worked on at once."""
    step: int = LLAMACPP_STEP
    """Tokens of llama.cpp's physical batch: the whole context where every input becomes a vector."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one card, or of main memory."""

    weights: int
    context: int
    engine: int

    @property
    def total(self) -> int:
        """Bytes of all three."""
        return self.weights + self.context + self.engine


def cache(facts: Facts, load: Load, step: int, cells: int) -> int:
    """Bytes of the whole KV cache: a layer with a window keeps that and a step, the others the whole context."""
    total = 0
    for group in facts.attention:
        tokens = load.context if group.window is None else min(load.context, group.window + step)
        total += group.count * group.token_bytes * _up(tokens, cells)
    return total * load.parallel


def paged(facts: Facts, load: Load, tensor: int, pipeline: int) -> Need:
    """Of each card, for an engine whose cache is in pages (vLLM): a pipeline of stages, in each of them a width of
    tensor parallelism.

    The cache is divided among the stages and, within one, among as many cards as there are KV heads; past them each
    card holds a copy.
    """
    weights = facts.weights.total / (tensor * pipeline)
    kept = cache(facts, load, VLLM_STEP, 1) / (pipeline * min(tensor, facts.split_heads))
    return Need(weights=round(weights), context=round(kept), engine=round(VLLM_OWN + weights * VLLM_OWN_SHARE))


def slots(facts: Facts, load: Load, cards: int) -> Need:
    """Of each card, for an engine with one slot a request (llama.cpp) that splits the layers among its cards; every
    card has a compute buffer of its own."""
    kept = cache(facts, load, load.step, LLAMACPP_CELLS)
    return Need(
        weights=round(facts.weights.total / cards),
        context=round(kept / cards),
        engine=LLAMACPP_CARD + compute_buffer(facts, load) + outputs(facts, load),
    )


def slots_in_main_memory(facts: Facts, load: Load) -> Need:
    """Of main memory, for llama.cpp's server on the CPU.

    Weights are counted as the process shows them: the mapped file, and the second copy of what it repacks.
    """
    own = LLAMACPP_PROGRAM + LLAMACPP_WORD * facts.vocabulary
    return Need(
        weights=facts.weights.total + facts.weights.repacked,
        context=cache(facts, load, load.step, LLAMACPP_CELLS),
        engine=own + compute_buffer(facts, load) + outputs(facts, load),
    )


def compute_buffer(facts: Facts, load: Load) -> int:
    """llama.cpp's scratch memory for one physical batch: what a layer holds at once, and the attention masks.

    The widest moment is the gated feed-forward part, three rows as wide as it is, beside four of the hidden size and
    the queries; masks are 16 bits for every token of the batch and cell of the cache.
    """
    if facts.encoder:
        # It sees a text whole: one batch holds as many tokens as a request may have.
        row = 3 * facts.feed_forward + 4 * facts.hidden + facts.heads * facts.head_dim
        return load.context * (4 * row + 2 * load.context)
    row = 3 * facts.feed_forward + 4 * facts.hidden + facts.heads * facts.head_dim
    windows = {group.window for group in facts.attention}
    cells = sum(_up(load.context if w is None else min(load.context, w + load.step), LLAMACPP_CELLS) for w in windows)
    return load.step * (4 * row + 2 * cells)


def outputs(facts: Facts, load: Load) -> int:
    """A row of scores, 32 bits a word, for every request."""
    return 4 * facts.vocabulary * load.parallel


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
