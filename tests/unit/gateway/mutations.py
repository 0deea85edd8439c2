"""Bodies and streams with something wrong in them, from a seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from .core.protocols.conversations import CHAT, MESSAGES, RESPONSES
from .core.protocols.streams import NAMES, source

TOOLS = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "n": 1}
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": ["a", [1, 2]], "stop": ["x"], "logprobs": 2, "seed": 7}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "é"}]}], **TOOLS}),
    ("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 3}),
    ("/v1/rerank", {"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1}),
    ("/tokenize", {"prompt": "a", "content": "b"}),
    ("/detokenize", {"tokens": [1, 2]}),
]
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 10**30, 0.5, -0.0, 1e308, "", "a", "\x00", "\ud800"),
    *(
        "data:image/png;base64,",
        "🙂" * 50,
        "x" * 5000,
        [],
        {},
        [[]],
        [{}],
        {"": ""},
        {"type": "text"},
        {"type": "image"},
    ),
    *([None], [0], ["a"], {"type": "function"}, {"type": []}, {"a": {"b": {"c": []}}}),
)
BYTES = (b"\x00", b"\xff", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"1e999", b"NaN", b"\xf0\x9f", b"null")
LINES = (
    *(
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b": c\n",
        b"data\n",
        b"data:\n\n",
        b"data: [DONE]\n\n",
        b"event: x\n",
        b"\xef\xbb\xbf",
    ),
    *(b"id: 1\n", b"retry: 1\n", b'data: {"error":{"message":3}}\n\n', b'data: {"choices":[{"delta":3}]}\n\n'),
    *(b'data: {"choices":[{"index":9,"delta":{"tool_calls":[{}]}}]}\n\n', b'data: {"usage":{"prompt_tokens":-1}}\n\n'),
)


def _corpus() -> list[tuple[str, dict[str, Any]]]:
    paths = {"/v1/chat/completions": CHAT, "/v1/messages": MESSAGES, "/v1/responses": RESPONSES}
    found = [(path, body) for path, listed in paths.items() for body, _ in listed.values()]
    found += [("/v1/messages/count_tokens", body) for body, _ in MESSAGES.values()]
    return [(path, {**body, "model": "sim"}) for path, body in found + OTHERS]


CORPUS = _corpus()


def bodies(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Paths, and bodies for them: most are JSON with wrong values, some are no JSON."""
    chance = random.Random(seed)
    for _ in range(count):
        path, body = chance.choice(CORPUS)
        value = json.loads(json.dumps(body))
        for _ in range(chance.randint(1, 3)):
            _spoil(value, chance)
        data = json.dumps(value, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
        yield path, _spoiled(data, BYTES, chance) if chance.random() < 0.2 else data


def _spoil(value: Any, chance: random.Random) -> None:
    """Change one place in a value: what is near the root as likely as what is deep."""
    while True:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        inner = value[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.7:
            value = inner
            continue
        match chance.randrange(4):
            case 0 if isinstance(value, dict):
                del value[key]
            case 1 if isinstance(value, dict):
                value[chance.choice(("x", "type", "content", "\x00", key + "x"))] = inner
            case _:
                value[key] = copy.deepcopy(chance.choice(VALUES))
        return


def _spoiled(data: bytes, pieces: tuple[bytes, ...], chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data) + 1)
        gone = chance.choice((0, 0, 1, 1, chance.randrange(200)))
        data = data[:at] + chance.choice((b"", *pieces)) + data[at + gone :]
    return data


def streams(seed: int, count: int) -> Iterator[tuple[str, list[bytes]]]:
    """Names of streams, and what comes instead of them, in pieces."""
    chance = random.Random(seed)
    originals = [(name, source(name)) for name in NAMES]
    for _ in range(count):
        name, data = chance.choice(originals)
        data = _spoiled(data, LINES + BYTES, chance)
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(6)))
        yield name, [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
