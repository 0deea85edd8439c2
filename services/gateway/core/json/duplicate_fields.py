"""Fields that stand twice in one object of a request: what a policy reads and what an engine reads could differ.

No fast decoder tells of them, so colons are counted: those in the bytes that came, and those in the bytes made of what
was decoded. A field that was dropped takes at least its own colon along, and nothing else removes one; only a colon
that is written as an escape adds one. So where the counts are the same and there is no such escape, every field is
there once; otherwise the names themselves are looked at, with a decoder that gives them all.
"""

from __future__ import annotations

import json

import msgspec

from services.gateway.core.faults import Fault, bad_body

_ESCAPED = rb"\u003"
"""How the escape of a colon begins."""


def refuse_duplicates(body: bytes) -> None:
    """Raises Fault (400) naming a field that an object of the body has twice; of what is no JSON others tell."""
    try:
        once = msgspec.json.encode(msgspec.json.decode(body))
    except (msgspec.DecodeError, RecursionError):
        once = b""
    if once.count(b":") != body.count(b":") or _ESCAPED in body:
        try:
            # Python makes no number of very many digits, and other decoders pass over them.
            json.loads(body, object_pairs_hook=_object, parse_int=len)
        except (ValueError, RecursionError):
            return


def _object(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _twice(name)
        seen.add(name)


def _twice(name: str) -> Fault:
    named = name.encode("utf-8", "replace").decode()
    return bad_body(
        f"The field '{named}' stands twice in one object of the body; send it once.",
        param=named,
        code="duplicate_field",
    )
