"""What there is to find in a text: secrets, e-mail addresses, payment cards, an operator's patterns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import re2

from .secret_formats import ANY_LITERAL, COMPILED, is_template
from .text import Text

Detector = Callable[[Text], Iterator["Match"]]


class Match(NamedTuple):
    start: int
    """Bytes, as RE2 counts; likewise ``end``."""
    end: int
    rule: str
    """``secrets.jwt``, ``pii.email``, ``pii.card``, ``deny.NAME``."""
    label: str
    """What its placeholder is called: ``EMAIL`` gives ``[EMAIL_1]``."""
    value: bytes
    """What makes two matches the same: an address in lower case, a card without its spaces."""


_options = re2.Options()
_options.log_errors = False


def _compiled(pattern: str) -> Any:
    return re2.compile(pattern.encode(), _options)


_HASH = re.compile(rb"[0-9a-f]{40}")
"""A commit's name; a key of random base64 has other letters too."""


def secrets(text: Text) -> Iterator[Match]:
    """Well-known keys, tokens, private keys and connection strings with a password in them."""
    if ANY_LITERAL.search(text.lowered) is None:
        return
    ends: dict[int, int] = {}
    for rule, literals, pattern in COMPILED:
        if not any(literal in text.lowered for literal in literals):
            continue
        for match in pattern.finditer(text.data):
            start, end = match.span(match.re.groups)
            if rule == "secrets.aws_secret_key" and _HASH.fullmatch(text.data, start, end):
                continue
            if rule == "secrets.connection_string":
                if is_template(text.data[start:end]):
                    continue
                # User, host and database say as much about the place as the password does.
                start, end = match.span()
            # The general formats come last in the table: what a narrower one has named is not named again.
            if ends.get(start, 0) >= end:
                continue
            ends[start] = end
            yield Match(start, end, rule, "SECRET", text.data[start:end])


# RFC 5322 atoms; letters beyond ASCII (RFC 6531) as Latin, Greek and Cyrillic have them. Scripts written without
# spaces are left out: there an address would take the words before it along.
_LETTER = r"A-Za-z0-9\x{C0}-\x{24F}\x{370}-\x{52F}"
_LABEL = rf"[{_LETTER}](?:[{_LETTER}-]*[{_LETTER}])?"
_EMAIL = _compiled(
    rf"[{_LETTER}.!#$%&'*+/=?^_`{{|}}~-]+@(?:{_LABEL}\.)+(?:[A-Za-z\x{{C0}}-\x{{24F}}\x{{370}}-\x{{52F}}]{{2,}}|xn--[A-Za-z0-9-]+)"
)
_EDGE = b".'`{|}~=/*!#$%&?^"
"""Allowed in a local part, but at its beginning they are far more often what stands around an address."""


def emails(text: Text) -> Iterator[Match]:
    """Addresses with a domain that has a dot in it."""
    if b"@" not in text.data:
        return
    for match in _EMAIL.finditer(text.data):
        start, end = match.span()
        local_end = text.data.index(b"@", start)
        while start < local_end and text.data[start] in _EDGE:
            start += 1
        if start < local_end and not _is_login(text.data, start, local_end, end):
            yield Match(start, end, "pii.email", "EMAIL", text.data[start:end].lower())


_ON_A_COMMAND_LINE = re.compile(
    rb"(?:\b(?:ssh|scp|sftp|rsync|mosh|ssh-copy-id)(?:[ \t]+[^ \t\r\n]{1,60}){0,4}[ \t]+|\b(?:ssh|sftp|git|(?:git|svn)\+ssh)://)$"
)
_PATH_FOLLOWS = re.compile(rb":(?:[/~]|[A-Za-z0-9_.-]{1,100}(?:/|\.git\b))")
_REACH = 120
"""Bytes before an address in which a command it is an argument of may begin."""


def _is_login(data: bytes, start: int, local_end: int, end: int) -> bool:
    """Whether it says which account of which machine, as ssh and git do, and nobody's address."""
    if data[start:local_end] == b"git" or _PATH_FOLLOWS.match(data, end):
        return True
    return _ON_A_COMMAND_LINE.search(data[max(0, start - _REACH) : start]) is not None


_NO_CARD = re.compile(
    rb"\b(?:article|artikel|item|part|parcel|shipment|tracking|sendungs|paket|meter|z\xc3\xa4hler|order|bestell"
    rb"|invoice|rechnungs|serial|imei|isbn|ean|gtin|upc|sku|ticket|case)(?:s?[ -]?(?:no|nr|num|number|nummer|id|code))?"
    rb"[.:# \t]{0,4}(?:is |ist )?$",
    re.IGNORECASE,
)
"""What a number is that stands right behind it; one in ten of those has a card's check digit."""

_DIGIT_RUNS = _compiled(r"\b[0-9]{3,19}(?:[ -][0-9]{1,19})*\b")

# First digits and lengths by network: ISO/IEC 7812 ranges as the networks publish them.
_NETWORKS: tuple[tuple[int, int, frozenset[int]], ...] = (
    (4, 4, frozenset({13, 16, 19})),  # Visa
    (51, 55, frozenset({16})),  # Mastercard
    (2221, 2720, frozenset({16})),  # Mastercard
    (34, 34, frozenset({15})),  # American Express
    (37, 37, frozenset({15})),
    (6011, 6011, frozenset({16, 19})),  # Discover
    (644, 659, frozenset({16, 19})),
    (300, 305, frozenset({14, 16, 19})),  # Diners Club
    (36, 36, frozenset({14, 16, 19})),
    (38, 39, frozenset({14, 16, 19})),
    (3528, 3589, frozenset({16, 17, 18, 19})),  # JCB
    (62, 62, frozenset({16, 17, 18, 19})),  # UnionPay
    (81, 82, frozenset({16})),  # UnionPay, RuPay
    (508, 508, frozenset({16})),  # RuPay
    (50, 50, frozenset({13, 16, 19})),  # Maestro
    (56, 58, frozenset({13, 16, 19})),
    (6304, 6304, frozenset({16, 18, 19})),
    (6759, 6759, frozenset({16, 18, 19})),
    (6761, 6763, frozenset({16, 18, 19})),
    (2200, 2204, frozenset({16, 17, 18, 19})),  # Mir
    (9792, 9792, frozenset({16})),  # Troy
)
_BEGINNINGS = frozenset(
    str(number)[:2].encode()
    for low, high, _ in _NETWORKS
    for number in (range(low, high + 1) if low > 9 else range(40, 50))
)
"""The first two digits any card can have."""
_LONGEST_CARD = 19
_SHORTEST_CARD = 13
_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)


def luhn(digits: bytes) -> bool:
    """ISO/IEC 7812-1 annex B: whether the check digit is right."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        total += _DOUBLED[digit - 48] if place % 2 else digit - 48
    return total % 10 == 0


def card_network_known(digits: bytes) -> bool:
    """Whether a network issues numbers that begin and are as long as this one."""
    for low, high, lengths in _NETWORKS:
        if len(digits) in lengths and low <= int(digits[: len(str(low))]) <= high:
            return True
    return False


def is_card(digits: bytes) -> bool:
    """Whether digits are a payment card's number: of a network, with the right check digit, and not one digit over and
    over."""
    return card_network_known(digits) and luhn(digits) and len(set(digits)) > 1


def cards(text: Text) -> Iterator[Match]:
    """Card numbers, in one piece or in groups parted by a single space or hyphen.

    A number is taken at the borders of its groups only: 16 digits inside a longer unbroken number are not a
    card. Groups have three digits or more, save the last, as cards are written; so a list of small numbers is no
    card and costs nothing.
    """
    for run in _DIGIT_RUNS.finditer(text.data):
        low, high = run.span()
        if high - low < _SHORTEST_CARD or _is_decimals(text.data, low):
            continue
        if _NO_CARD.search(text.data[max(0, low - 48) : low]):
            continue
        groups = text.data[low:high].replace(b"-", b" ").split(b" ")
        start = low
        index = 0
        while index < len(groups):
            taken = _card_groups(groups, index) if groups[index][:2] in _BEGINNINGS else 0
            if taken:
                digits = b"".join(groups[index : index + taken])
                yield Match(start, start + len(digits) + taken - 1, "pii.card", "CARD", digits)
            for group in groups[index : index + max(1, taken)]:
                start += len(group) + 1
            index += max(1, taken)


def _is_decimals(data: bytes, start: int) -> bool:
    return data[max(0, start - 1) : start] == b"." and data[max(0, start - 2) : start - 1].isdigit()


def _card_groups(groups: list[bytes], first: int) -> int:
    """How many groups from ``first`` on make a card, the most that do; 0 if none."""
    digits = b""
    most = 0
    for index in range(first, len(groups)):
        digits += groups[index]
        if len(digits) > _LONGEST_CARD:
            break
        if len(digits) >= _SHORTEST_CARD and is_card(digits):
            most = index - first + 1
        if len(groups[index]) < 3:
            break
    return most


def denied(name: str, pattern: Any) -> Detector:
    """Finds an operator's pattern. ``pattern`` is compiled and does not match the empty text."""
    rule = f"deny.{name}"

    def find(text: Text) -> Iterator[Match]:
        for match in pattern.finditer(text.data):
            start, end = match.span()
            if start < end:
                yield Match(start, end, rule, "REDACTED", text.data[start:end])

    return find
