"""Subjects, built and parsed in one place.

``llmgw.<plane>.<aggregate>.<id>...<event>``; commands and questions have their owner where the aggregate
stands: ``llmgw.cmd.scheduler.define_model``, ``llmgw.ask.node.gpu-07.logs``.
"""

from __future__ import annotations

import re

from .contract import Contract, tag_of

ROOT = "llmgw"
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]")


def encode_token(text: str) -> str:
    """One subject or KV-key token for any text: what NATS cannot carry is written ``=XX`` (hex of UTF-8).

    ``qwen2.5-7b`` becomes ``qwen2=2E5-7b``. Raises ValueError for an empty text.
    """
    if not text:
        raise ValueError("an empty text cannot stand in a subject")
    return _NOT_PLAIN.sub(lambda found: "".join(f"={b:02X}" for b in found[0].encode()), text)


def decode_token(token: str) -> str:
    """The text that ``encode_token`` was given."""
    out = bytearray()
    i = 0
    while i < len(token):
        if token[i] == "=":
            out.append(int(token[i + 1 : i + 3], 16))
            i += 3
        else:
            out += token[i].encode()
            i += 1
    return out.decode()


def split_tag(tag: str) -> tuple[str, str]:
    """``("machine", "registered")`` for ``machine.registered.v1``; a leading plane (``ask.``, ``cmd.``) is dropped."""
    parts = tag.split(".")
    if parts[0] in ("ask", "cmd", "tel", "use", "chk"):
        parts = parts[1:]
    return parts[0], parts[1]


def subject_of(message: Contract) -> str:
    """The subject a message is published to."""
    aggregate, name = split_tag(tag_of(message))
    ids = [encode_token(str(getattr(message, field))) for field in message.ids]
    return ".".join([ROOT, message.plane, aggregate, *ids, name])


def pattern_of(contract: type[Contract], **ids: str) -> str:
    """The subject filter that takes every message of a contract; ids that are given are fixed, others are ``*``."""
    aggregate, name = split_tag(tag_of(contract))
    tokens = [encode_token(ids[field]) if field in ids else "*" for field in contract.ids]
    return ".".join([ROOT, contract.plane, aggregate, *tokens, name])


def plane(name: str, *tokens: str) -> str:
    """A filter for a whole plane or a part of it: ``plane("evt")``, ``plane("evt", "machine")``."""
    return ".".join([ROOT, name, *tokens, ">"])


def matches(pattern: str, subject: str) -> bool:
    """NATS wildcards: ``*`` is one token, a final ``>`` one or more."""
    wanted, found = pattern.split("."), subject.split(".")
    for i, token in enumerate(wanted):
        if token == ">":
            return len(found) > i
        if i >= len(found) or token not in ("*", found[i]):
            return False
    return len(wanted) == len(found)


def elected(service: str) -> str:
    """The subject on which a service's elections stand: what its leader's decisions are fenced by."""
    return f"{ROOT}.evt.{service}.main.elected"
