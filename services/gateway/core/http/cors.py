"""Pages of other origins that may use the gateway from a browser (the Fetch standard's CORS protocol).

Keys travel in a header the page sets itself, never in cookies, so credentials in the browser's sense are never allowed:
a page without a key can do nothing, whatever its origin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

ANY = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
_TOKENS = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2000}")
REMEMBERED_S = 600
"""How long a browser may keep the answer to a preflight."""
EXPOSED = b", ".join(
    (
        *(b"request-id", b"retry-after", b"x-llmgw-model", b"x-llmgw-warning", b"x-ratelimit-limit-requests"),
        *(b"x-ratelimit-limit-tokens", b"x-ratelimit-remaining-requests", b"x-ratelimit-remaining-tokens"),
        *(b"x-ratelimit-reset-requests", b"x-ratelimit-reset-tokens", b"x-request-id", b"x-should-retry"),
    )
)
"""Of an answer, what a page may read besides its body."""


class Origins:
    """The origins of a setting: ``https://chat.example``, or ``*`` alone. Raises ValueError."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(allowed)
        for origin in sorted(self._allowed):
            if origin == ANY and len(self._allowed) > 1:
                raise ValueError("cors_origins: '*' stands for every origin and stands alone; leave out the others")
            if origin != ANY and _ORIGIN.fullmatch(origin) is None:
                raise ValueError(
                    f"cors_origins: {origin!r} is not an origin; write scheme and host in small letters, and the port "
                    "where it is not the usual one, as https://chat.example"
                )

    def allow(self, origin: bytes | None) -> bool:
        """Whether pages of this origin may read answers."""
        return origin is not None and (ANY in self._allowed or origin.decode("latin-1") in self._allowed)

    def headers(self, origin: bytes | None) -> Headers:
        """What goes with every answer, whatever it is, to a page of this origin."""
        if not self._allowed:
            return []
        vary = [] if ANY in self._allowed else [(b"vary", b"origin")]
        if origin is None or not self.allow(origin):
            return vary
        allowed = b"*" if ANY in self._allowed else origin
        return [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", EXPOSED), *vary]

    def preflight(self, methods: Iterable[str], wanted: bytes | None) -> Headers:
        """What a browser is told that asks before it sends: the path's methods, and the headers it wants to send."""
        allowed = ", ".join(sorted(methods)).encode()
        headers = [(b"access-control-allow-methods", allowed), (b"access-control-max-age", b"%d" % REMEMBERED_S)]
        if wanted is not None and _TOKENS.fullmatch(wanted):
            headers.append((b"access-control-allow-headers", wanted))
        return headers
