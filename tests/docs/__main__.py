"""Writes every generated page but ``events.md``: ``python -m tests.docs``."""

from __future__ import annotations

from .pages import DOCS, GENERATED

for name, page in GENERATED.items():
    (DOCS / name).write_text(page())
