"""Parts of sentences."""

from __future__ import annotations


def because(reason: str) -> str:
    """What follows a statement that has a reason."""
    return f": {reason}" if reason else ""


def count(number: int, what: str) -> str:
    """``1 replica``, ``2 replicas``"""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def seconds(elapsed_ms: float) -> str:
    """``8.2 s``, or ``41 ms`` of less than a tenth of a second."""
    return f"{elapsed_ms / 1000:.1f} s" if elapsed_ms >= 100 else f"{elapsed_ms:.0f} ms"


def size(size_bytes: int) -> str:
    """``4.1 GiB``: bytes in powers of 1,024."""
    size = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
