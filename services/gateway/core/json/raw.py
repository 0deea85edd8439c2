"""JSON values that are passed on without being looked into."""

from __future__ import annotations

import msgspec

ABSENT = msgspec.Raw(b"")
"""The default of a field whose value is only passed on. (msgspec takes no union of Raw and None.)"""


def present(value: msgspec.Raw) -> bool:
    """Whether a value was there and is not null."""
    return bytes(memoryview(value)[:5]) not in (b"", b"null")
