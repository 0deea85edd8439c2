"""Text that others may have written (names, reasons, engines' output), as it may reach a terminal.

A terminal obeys control characters: they move the cursor, change what was printed, set the window's title or answer as
if typed. None goes out raw.
"""

from __future__ import annotations

import re

COLOURS = re.compile("\x1b\\[[0-9;]*m")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
"""Of ASCII and Latin-1 but for tab and line feed; and what turns the direction of text around, or breaks lines."""
BREAKS = re.compile("[\t\n]")


def visible(text: str) -> str:
    """Text with colours taken out and every other control character written as its code, in Python's spelling."""
    return CONTROL.sub(_code, COLOURS.sub("", text))


def in_one_line(text: str) -> str:
    """The same, with breaks written as codes: for what stands among other words."""
    return BREAKS.sub(_code, visible(text))


def in_json(text: str) -> str:
    """JSON text, in which ASCII's are escaped already."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _code(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]
