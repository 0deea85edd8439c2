"""Bytes to contracts and back. One line of JSON, the tag first.

Decoding takes two steps: the tag (from the header, else from the payload's ``type``) picks the contract,
then the payload is decoded as that contract. An old version passes through its upcasts on the way.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import msgspec

from .contract import Contract, contract_of, has_upcast, newest

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


class BadPayload(ValueError):
    """The payload is not what its tag says."""


class _Tagged(msgspec.Struct):
    type: str


def encode(message: Any) -> bytes:
    """One line of JSON."""
    return _encoder.encode(message)


def decode_as(kind: type[T], payload: bytes) -> T:
    """Decode a payload whose kind is known. Raises BadPayload naming the field."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        value: T = decoder.decode(payload)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadPayload(f"{kind.__name__}: {error}") from None
    except RecursionError:
        raise BadPayload(f"{kind.__name__}: it is nested too deeply") from None
    return value


def tag_in(payload: bytes) -> str:
    """The tag a payload says it has. Raises BadPayload."""
    return decode_as(_Tagged, payload).type


def decode(payload: bytes, tag: str | None = None) -> Contract:
    """Decode a message of any kind. Raises UnknownTag or BadPayload."""
    if not tag:
        tag = tag_in(payload)
    if has_upcast(tag):
        tag, fields = newest(tag, decode_as(dict, payload))
        payload = encode(fields)
    return decode_as(contract_of(tag), payload)


def state_hash(state: Any) -> str:
    """SHA-256 (hex) of a state: equal states give equal hashes across processes and versions of Python.

    Mappings and sets are ordered before hashing, so how a state was reached leaves no trace in it. Keys are text:
    msgspec orders no others.
    """
    return hashlib.sha256(msgspec.json.encode(state, order="deterministic")).hexdigest()
