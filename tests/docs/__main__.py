"""Writes every generated page: ``python -m tests.docs``."""

from __future__ import annotations

from .pages import DOCS, GENERATED

for name, page in GENERATED.items():
    (DOCS / name).write_text(page())
