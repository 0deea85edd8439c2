"""Embeddings and rankings without a model: the same text always gives the same numbers."""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any

DIMENSIONS = 16
MAX_DIMENSIONS = 4096
"""A model's vectors have an end; what asks for longer ones is refused, as vLLM does."""


def embedding(text: str, dimensions: int | None) -> list[float]:
    """A vector of length 1; texts with words in common are near each other. Every number is a float32."""
    sums = [0.0] * (dimensions or DIMENSIONS)
    for word in text.split() or [""]:
        for index in range(len(sums)):
            sums[index] += zlib.crc32(f"{index} {word}".encode()) / 2**31 - 1
    length = math.sqrt(sum(value * value for value in sums)) or 1.0
    return list(struct.unpack(f"<{len(sums)}f", struct.pack(f"<{len(sums)}f", *(value / length for value in sums))))


def ranking(query: str, documents: list[str]) -> list[dict[str, Any]]:
    """By the share of the query's words a document has, best first, as vLLM answers."""
    words = set(query.split())
    scores = [len(words & set(document.split())) / max(1, len(words)) for document in documents]
    order = sorted(range(len(documents)), key=lambda index: -scores[index])
    return [
        {"index": index, "document": {"text": documents[index]}, "relevance_score": scores[index]} for index in order
    ]
