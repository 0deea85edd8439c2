"""JSON as it was spelt: numbers that keep their digits, and characters of which only half came.

A double has not room for every number that can be written, so what is not whole keeps its text from decoding to
encoding. Half a surrogate pair is no character: one whose other half comes in the next piece of a stream is put
together, any other becomes U+FFFD.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

ABSENT = msgspec.Raw(b"")
"""The default of a field whose value is only passed on. (msgspec takes no union of Raw and None.)"""


def present(value: msgspec.Raw) -> bool:
    """Whether a value that is only passed on was there and is not null."""
    return bytes(memoryview(value)[:5]) not in (b"", b"null")


class Number(float):
    """A number with a fraction or an exponent, and the text it stood there as."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Number:
        self = super().__new__(cls, text)
        self.text = text
        return self


def _as_spelt(value: Any) -> msgspec.Raw:
    if isinstance(value, Number):
        return msgspec.Raw(value.text.encode())
    raise NotImplementedError(f"{type(value).__name__} is not JSON")


_decoder = msgspec.json.Decoder(float_hook=Number)
_encoder = msgspec.json.Encoder(enc_hook=_as_spelt)


def decoded(text: bytes | str) -> Any:
    """Raises msgspec.DecodeError, RecursionError."""
    return _decoder.decode(text)


def encoded(value: Any) -> bytes:
    """The JSON of a value, numbers as they were spelt."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_without_halves(value))


def _without_halves(value: Any) -> Any:
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, dict):
        return {_without_halves(name): _without_halves(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_halves(inner) for inner in value]
    return value


# halves of surrogate pairs

_ESCAPES = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_LIKE_MARKS = re.compile(
    rb"\\\\|(\xf4\x8f[\xa0-\xbf][\x80-\xbf])|\\u([dD][bB][fF][eEfF])\\u([dD][c-fC-F][0-9a-fA-F]{2})"
)
"""Characters that are what marks are, as such and escaped."""
_HALF = re.compile("[\ud800-\udfff]")
_MARK = re.compile("[\U0010f800-\U0010ffff]")
_FIRST_MARK, _FIRST_HALF = 0x10F800, 0xD800
"""A half is carried through a decoder that takes none as one of 2,048 characters of the last private plane. Such a
character that stands there itself is carried as two halves."""


def repaired(data: bytes) -> bytes:
    """JSON in which no half of a pair and no byte that is not UTF-8 is left: each is U+FFFD."""
    if _may_have_halves(data):
        data = _ESCAPES.sub(lambda match: b"\\ufffd" if match[1] else match[0], data)
    return _utf8(data)


def with_marks(data: bytes) -> bytes:
    """The same, but halves travel as marks, which ``SurrogateHalves`` puts together; without any, ``data`` itself."""
    marked_data = data
    if b"\xf4\x8f" in data or b"\\udbf" in data.lower():
        marked_data = _LIKE_MARKS.sub(_as_halves, marked_data)
    if _may_have_halves(data):
        marked_data = _ESCAPES.sub(lambda match: _mark_of(match[1]) if match[1] else match[0], marked_data)
    marked_data = _utf8(marked_data)
    return marked_data if marked_data != data else data


def _may_have_halves(data: bytes) -> bool:
    return b"\\u" in data and (b"\\ud" in data or b"\\uD" in data)


def _utf8(data: bytes) -> bytes:
    try:
        if not data.isascii():
            data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode()
    return data


def _mark_of(escape: bytes) -> bytes:
    return chr(int(escape[2:], 16) - _FIRST_HALF + _FIRST_MARK).encode()


def _as_halves(match: re.Match[bytes]) -> bytes:
    if match[1]:
        above = ord(match[1].decode()) - 0x10000
        first, second = b"%04x" % (0xD800 + (above >> 10)), b"%04x" % (0xDC00 + (above & 0x3FF))
    elif match[2]:
        first, second = match[2], match[3]
    else:
        return match[0]
    return _mark_of(b"\\u" + first) + _mark_of(b"\\u" + second)


def whole_characters(text: str) -> str:
    """Halves that stand beside each other as one character, others as U+FFFD."""
    if _HALF.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class SurrogateHalves:
    """Pieces of one text with marks in them, put together across their borders."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def joined(self, piece: str) -> str:
        """What of the text is whole by now; the first half of a pair waits for the next piece."""
        text = self._held + _MARK.sub(lambda match: chr(ord(match[0]) - _FIRST_MARK + _FIRST_HALF), piece)
        self._held = ""
        if "\ud800" <= text[-1:] <= "\udbff":
            self._held, text = text[-1], text[:-1]
        return whole_characters(text)

    @property
    def waiting(self) -> bool:
        """Whether the first half of a pair is held back."""
        return bool(self._held)

    def rest(self) -> str:
        """What waited in vain."""
        held, self._held = self._held, ""
        return "\ufffd" if held else ""
