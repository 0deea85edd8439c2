"""What is to be embedded: its shape."""

from __future__ import annotations

from typing import Any

from services.gateway.core.json.fields import wrong


def check(given: Any) -> None:
    """That ``input`` is a text, or a list of texts, token ids or lists of them; an engine's own objects (an image, say)
    pass in a list. Raises Fault naming the field that is wrong."""
    if not isinstance(given, list):
        if not isinstance(given, str):
            raise wrong("input", given, "a text or a list of texts")
        return
    for n, item in enumerate(given):
        if isinstance(item, bool) or not isinstance(item, str | int | list | dict):
            raise wrong(f"input.{n}", item, "a text or token ids")
        if isinstance(item, list) and not all(isinstance(token, int) for token in item):
            raise wrong(f"input.{n}", item, "token ids only")
