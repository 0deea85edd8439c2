"""Embeddings: the same vectors as numbers and as base64, whatever the engine sends.

OpenAI's SDK asks for base64 (little-endian float32) when its user names no format; several engines know numbers
only. The engine is asked for numbers, and base64 is made here; who asks for numbers gets the engine's own. A
float32 in decimal digits and read again is the same float32, so no bit is lost.
"""

from __future__ import annotations

import array
import base64
import sys
from typing import Literal

import msgspec

from services.gateway.core.json.fields import (
    Json,
    unmappable,
    wrong,
)
from services.gateway.core.request import inputs
from services.gateway.core.request.body import Body
from services.gateway.core.sse.events import BadStream

Format = Literal["float", "base64"]


class Wanted(msgspec.Struct, frozen=True):
    """What a client asked for."""

    format: Format
    dimensions: int | None


def wanted(body: Json) -> Wanted:
    """Raises Fault naming the field that is wrong."""
    chosen = body.get("encoding_format")
    if chosen not in (None, "float", "base64"):
        raise unmappable("encoding_format", f"{chosen!r} is neither float nor base64")
    dimensions = body.get("dimensions")
    if dimensions is not None and (not isinstance(dimensions, int) or isinstance(dimensions, bool) or dimensions < 1):
        raise wrong("dimensions", dimensions, "a whole number above 0")
    if body.get("input") in (None, "", []):
        raise unmappable("input", "send the text to embed, or a list of texts; nothing was found")
    inputs.check(body["input"])
    return Wanted(chosen or "float", dimensions)


def request(body: Body) -> tuple[Wanted, Body]:
    """What is asked for, and the engine's body: the client's, but never with base64 or a null in it. Raises Fault."""
    fields = body.tree
    asked = wanted(fields)
    changes: dict[str, bytes | None] = {name: None for name, value in fields.items() if value is None}
    if asked.format == "base64":
        changes["encoding_format"] = b'"float"'
    return asked, body.edited(changes)


class _Vector(msgspec.Struct):
    embedding: list[float] | str
    index: int = 0


class _Answer(msgspec.Struct):
    data: list[_Vector]


_answer = msgspec.json.Decoder(_Answer)


def answer(payload: bytes, asked: Wanted) -> bytes:
    """The engine's answer in the format that was asked for. Raises BadStream when it is none.

    Engines that cannot shorten vectors ignore ``dimensions``: of a longer vector the first so many numbers are
    taken and scaled to length 1, which is what OpenAI does. A shorter one cannot be made longer: BadStream.
    """
    try:
        read = _answer.decode(payload)
        fields = msgspec.json.decode(payload)
        if asked.format == "float" and all(_fits(item.embedding, asked.dimensions) for item in read.data):
            return payload
        vectors = [shortened(_floats(item.embedding), asked.dimensions) for item in read.data]
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:
        raise BadStream(f"the answer holds no embeddings that can be read: {problem}") from None
    data = fields["data"]
    for item, vector in zip(data, vectors, strict=True):
        item["embedding"] = base64_of(vector) if asked.format == "base64" else [shortest(v) for v in vector]
        item.setdefault("object", "embedding")
    fields.setdefault("object", "list")
    return msgspec.json.encode(fields)


def _fits(embedding: list[float] | str, dimensions: int | None) -> bool:
    return isinstance(embedding, list) and dimensions in (None, len(embedding))


def _floats(embedding: list[float] | str) -> array.array[float]:
    if isinstance(embedding, str):
        vector = array.array("f", base64.b64decode(embedding, validate=True))
        if sys.byteorder == "big":
            vector.byteswap()
        return vector
    return array.array("f", embedding)


def base64_of(vector: array.array[float]) -> str:
    """Little-endian float32, as OpenAI writes them."""
    if sys.byteorder == "big":
        vector = array.array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()


def shortest(value: float) -> float:
    """The number with the fewest digits that is the same float32."""
    for digits in (6, 7, 8):
        short = float(f"{value:.{digits}g}")
        if array.array("f", (short,))[0] == value:
            return short
    return float(f"{value:.9g}")


def shortened(vector: array.array[float], dimensions: int | None) -> array.array[float]:
    """The first ``dimensions`` numbers, scaled to length 1. Raises ValueError when there are fewer."""
    if dimensions is None or len(vector) == dimensions:
        return vector
    if len(vector) < dimensions:
        raise ValueError(f"the model's vectors have {len(vector)} dimensions and {dimensions} were asked for")
    kept = vector[:dimensions]
    length = sum(value * value for value in kept) ** 0.5
    return array.array("f", (value / length for value in kept)) if length else kept
