"""A text and its decodings: escapes taken for what they stand for, hidden characters left out, base64 undone.

A model reads ``key\\nAKIA…`` as two words, and so does whoever it is passed on to. Every decoding knows where in the
text it was made of each of its bytes comes from, so that what is found in it is replaced in the text that was sent.
"""

from __future__ import annotations

import binascii
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

import re2

from .text import Text

MAX_DEPTH = 5
"""Encodings inside encodings that are undone. A tool's result in the arguments of another one is three."""
PIECES_BETWEEN_CHECKS = 1024
"""Pieces between two checks whether time is left."""
RUNS_BETWEEN_CHECKS = 64
"""The same for base64, which takes longer."""

_JSON_ESCAPE = (
    rb'\\(?:[bfnrt"\\/]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}'
    rb"|u\{[0-9a-fA-F]{1,6}\}|x[0-9a-fA-F]{2})"
)
# Nothing here goes back more than a few bytes, so it is linear, and Python's own is several times as fast at giving out
# matches as RE2's wrapper. Every alternative begins with a literal byte: then what is none is skipped at once.
_ENCODED = re.compile(
    _JSON_ESCAPE
    # RFC 3986, section 2.1; bytes beyond ASCII make a character together
    + rb"|%(?:[0-7][0-9a-fA-F]|[89a-fA-F][0-9a-fA-F](?:%[89a-fA-F][0-9a-fA-F])*)"
    + rb"|&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|amp|lt|gt|quot|apos|commat|period|colon|nbsp);"
    # what a terminal takes for a colour
    + rb"|\x1b\[[0-9;:?]{0,32}[A-Za-z]"
    # no width, directions, variation selectors: U+AD, 34F, 61C, 180B-180F, 200B-200F, 202A-202E, 2060-206F, FE00-FE0F,
    # FEFF
    + rb"|\xc2\xad|\xcd\x8f|\xd8\x9c|\xe1\xa0[\x8b-\x8f]|\xe2\x80[\x8b-\x8f\xaa-\xae]|\xe2\x81[\xa0-\xaf]"
    + rb"|\xef\xb8[\x80-\x8f]|\xef\xbb\xbf"
    # letters, digits and signs in another guise: tags (U+E0000-E007F), full width, spaces and hyphens that do not break
    + rb"|\xf3\xa0[\x80\x81][\x80-\xbf]|\xef\xbc[\x8e\x90-\x99\xa0-\xba]|\xef\xbd[\x81-\x9a]"
    + rb"|\xc2\xa0|\xe2\x80[\x80-\x8a\x90\x91\xaf]"
)
_ESCAPED = re.compile(_JSON_ESCAPE)
_LETTERS = {
    **{b"\\" + bytes([name]): bytes([meant]) for name, meant in zip(b'bfnrt"\\/', b'\b\f\n\r\t"\\/', strict=True)},
    b"&amp;": b"&",
    b"&lt;": b"<",
    b"&gt;": b">",
    b"&quot;": b'"',
    b"&apos;": b"'",
    b"&nbsp;": b" ",
    b"&commat;": b"@",
    b"&period;": b".",
    b"&colon;": b":",
}
_MAYBE_ENCODED = (b"\\", b"%", b"&", b"\x1b")

_options = re2.Options()
_options.log_errors = False
_BASE64 = re2.compile(rb"[A-Za-z0-9+/_-]{20,}(?:\r?\n[ \t]{0,16}[A-Za-z0-9+/_-]{4,})*", _options)
_READABLE = re2.compile(rb"[\x07-\x0d\x1b -~\x{A0}-\x{D7FF}\x{E000}-\x{10FFFF}]{12,}", _options)
_LINE_ENDS = b"\r\n \t"
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")


class Piece(NamedTuple):
    """An encoded stretch of a text, from byte ``start`` to before byte ``end``."""

    start: int
    end: int
    decoded: bytes
    """What it stands for."""


class Decoding:
    """A text, and where each of its bytes comes from."""

    def __init__(self, text: Text, source: Decoding | None, here: list[tuple[int, int]], there: list[tuple[int, int]]):
        """``here`` and ``there``: where the pieces stand that were decoded, in this text and in the source."""
        self.text = text
        self.source = source
        self._starts = [start for start, _ in here]
        self._ends = [end for _, end in here]
        self._source_starts = [start for start, _ in there]
        self._source_ends = [end for _, end in there]
        self.plain: Decoding | None = None
        """The decoding made of this text, where anything in it is encoded in place (base64 is not)."""

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Where a stretch stands in the text that was sent. A piece it only partly covers is covered as a whole."""
        decoding = self
        while decoding.source is not None:
            start, end = decoding._before(start), decoding._after(end)
            decoding = decoding.source
        return start, end

    def _before(self, at: int) -> int:
        index = bisect_right(self._starts, at) - 1
        if index < 0:
            return at
        if at < self._ends[index]:
            return self._source_starts[index]
        return self._source_ends[index] + at - self._ends[index]

    def _after(self, at: int) -> int:
        index = bisect_left(self._starts, at) - 1
        if index < 0:
            return at
        return self._source_ends[index] + max(0, at - self._ends[index])

    def widened(self, start: int, end: int) -> tuple[int, int] | None:
        """A stretch with the whole of each encoded piece it touches, here and in what is decoded of this text; None
        when it touches none."""
        if self.plain is None:
            return None
        starts, ends = self.plain._source_starts, self.plain._source_ends
        first = bisect_right(ends, start)
        last = bisect_left(starts, end) - 1
        touches = first <= last
        if touches:
            start, end = min(start, starts[first]), max(end, ends[last])
        further = self.plain.widened(*self.plain.of_source(start, end))
        if further is not None:
            return min(start, self.plain._before(further[0])), max(end, self.plain._after(further[1]))
        return (start, end) if touches else None

    def of_source(self, start: int, end: int) -> tuple[int, int]:
        """Where a stretch of the source stands in this text."""
        low, high = bisect_right(self._source_starts, start) - 1, bisect_left(self._source_starts, end) - 1
        if low >= 0:
            inside = start < self._source_ends[low]
            start = self._starts[low] if inside else self._ends[low] + start - self._source_ends[low]
        if high >= 0:
            end = self._ends[high] + max(0, end - self._source_ends[high])
        return start, end


class OutOfTime(Exception):
    """No time was left for what is still to be decoded or looked through."""


def decodings(text: Text, keep_going: Callable[[], bool]) -> list[Decoding]:
    """The text as it is, and all that is encoded in it; a source comes before what is decoded of it.

    ``keep_going`` is asked now and then; once it says no, it raises OutOfTime.
    """
    every: list[Decoding] = []
    seen: set[bytes] = set()
    left = [(Decoding(text, None, [], []), 0)]
    while left:
        decoding, depth = left.pop()
        every.append(decoding)
        if depth == MAX_DEPTH:
            continue
        if (inner := _enclosed(decoding, seen, keep_going)) is not None:
            left.append((inner, depth + 1))
        if (plain := _plain(decoding, keep_going)) is not None:
            decoding.plain = plain
            left.append((plain, depth + 1))
    return every


def _plain(decoding: Decoding, keep_going: Callable[[], bool]) -> Decoding | None:
    data = decoding.text.data
    if data.isascii() and not any(sign in data for sign in _MAYBE_ENCODED):
        return None
    return _replaced(decoding, _encoded(data, keep_going))


def unescaped(text: Text) -> Decoding:
    """What the inside of a JSON string stands for (RFC 8259, section 7)."""
    source = Decoding(text, None, [], [])
    pieces = (Piece(*match.span(), _decoded(match.group())) for match in _ESCAPED.finditer(text.data))
    return _replaced(source, pieces) or source


def _encoded(data: bytes, keep_going: Callable[[], bool]) -> Iterator[Piece]:
    """Raises OutOfTime."""
    for count, match in enumerate(_ENCODED.finditer(data), 1):
        if count % PIECES_BETWEEN_CHECKS == 0 and not keep_going():
            raise OutOfTime
        yield Piece(*match.span(), _decoded(match.group()))


def _decoded(encoded: bytes) -> bytes:
    if (letter := _LETTERS.get(encoded)) is not None:
        return letter
    if encoded[:1] == b"\\":
        return _escaped(encoded[2:])
    if encoded[:1] == b"%":
        return binascii.unhexlify(encoded.replace(b"%", b"")).decode("utf-8", "replace").encode()
    if encoded[:2] == b"&#":
        number = encoded[2:-1]
        return _character(int(number[1:], 16) if number[:1] in b"xX" else int(number))
    if encoded[:1] == b"\x1b":
        return b" "
    return _guise(ord(encoded.decode()))


def _escaped(number: bytes) -> bytes:
    first, pair, second = number.partition(b"\\u")
    if pair:
        return _character(0x10000 + ((int(first, 16) & 0x3FF) << 10) + (int(second, 16) & 0x3FF))
    return _character(int(number.strip(b"{}"), 16))


def _character(number: int) -> bytes:
    return chr(number).encode("utf-8", "replace") if number <= 0x10FFFF else b"?"


def _guise(number: int) -> bytes:
    if 0xFF00 < number < 0xFF5F:
        return bytes([number - 0xFEE0])
    if 0xE0020 <= number <= 0xE007E:
        return bytes([number - 0xE0000])
    if number in (0xA0, 0x202F) or 0x2000 <= number <= 0x200A:
        return b" "
    return b"-" if number in (0x2010, 0x2011) else b""


def _replaced(source: Decoding, pieces: Iterator[Piece]) -> Decoding | None:
    data = source.text.data
    parts: list[bytes] = []
    here: list[tuple[int, int]] = []
    there: list[tuple[int, int]] = []
    at = size = 0
    for start, end, decoded in pieces:
        parts.append(data[at:start])
        parts.append(decoded)
        size += start - at
        here.append((size, size + len(decoded)))
        there.append((start, end))
        size += len(decoded)
        at = end
    if not there:
        return None
    parts.append(data[at:])
    return Decoding(Text.of(b"".join(parts)), source, here, there)


def _enclosed(source: Decoding, seen: set[bytes], keep_going: Callable[[], bool]) -> Decoding | None:
    """What can be read in the text's base64, a line for each piece. Such a piece is replaced as a whole."""
    parts: list[bytes] = []
    here: list[tuple[int, int]] = []
    there: list[tuple[int, int]] = []
    size = 0
    for count, match in enumerate(_BASE64.finditer(source.text.data), 1):
        run = match.group()
        if run in seen:
            continue
        seen.add(run)
        if count % RUNS_BETWEEN_CHECKS == 0 and not keep_going():
            raise OutOfTime
        for readable in _readable(run.translate(_FROM_URL_SAFE, _LINE_ENDS)):
            line = readable + b"\n"
            parts.append(line)
            here.append((size, size + len(line)))
            there.append(match.span())
            size += len(line)
    return Decoding(Text.of(b"".join(parts)), source, here, there) if parts else None


def _readable(run: bytes) -> Iterator[bytes]:
    # A letter before it may belong to it as well as not, so each of the four ways to group its letters is tried.
    for shift in range(4):
        letters = run[shift:]
        whole = letters[:-1] if len(letters) % 4 == 1 else letters
        for match in _READABLE.finditer(binascii.a2b_base64(whole + b"=" * (-len(whole) % 4))):
            yield match.group()
