"""Which pages of the manual there are, and what generates those that are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from libs.events import document

from . import cli_page, errors_page, metrics_page, settings_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

GENERATED: Mapping[str, Callable[[], str]] = {
    "cli.md": cli_page.page,
    "errors.md": errors_page.page,
    "events.md": document.page,
    "metrics.md": metrics_page.page,
    "settings.md": settings_page.page,
}
"""File below ``docs`` to what writes it."""


def pages() -> list[Path]:
    """Every page a reader may open, those written by hand and those generated."""
    return sorted(
        [
            *(ROOT / name for name in ("README.md", "CONTRIBUTING.md") if (ROOT / name).exists()),
            *DOCS.rglob("*.md"),
            *(ROOT / "deploy").rglob("*.md"),
        ]
    )


def written() -> list[Path]:
    """The pages that are written by hand."""
    return [page for page in pages() if page.parent != DOCS or page.name not in GENERATED]
