"""What NATS answers, and what it means: away (asked again until it is known), first come first served, or refused.

One place for all who speak to the server: what stores, reads, leads and looks after streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import nats.errors
import nats.js.errors

from .transport import BusAway, BusError, Full, Misconfigured, TooLarge, WrongSequence

UNREACHABLE = (
    nats.errors.TimeoutError,
    nats.errors.NoRespondersError,
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.OutboundBufferLimitError,
    nats.errors.StaleConnectionError,
    nats.errors.ConnectionDrainingError,
    nats.js.errors.ServiceUnavailableError,
    nats.js.errors.NoStreamResponseError,
    OSError,
)
"""The client's errors that mean that nothing answered. What was asked for may have been done all the same."""

WRONG_SEQUENCE = (10071, 10164)
"""An expectation failed: on one replica, and beside a message that is still being agreed on by three."""
IN_PROCESS = (10158, 10167)
"""Three replicas have not agreed yet: on a message of this id, or on so many that more would not be taken."""
STORE_FAILED = 10077
"""The stream is at its bound, or the disk is full; the text says which."""
MESSAGE_TOO_LARGE = 10054
NO_MESSAGE = (10037, 10057)
NOT_FOUND = (10059, 10014)
"""No such stream, no such consumer."""

RENEWED = ("404", "408")
"""Statuses of a pull request that ended by itself: nothing there, or expired."""


class ApiRefused(Misconfigured):
    """JetStream refused an API call."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def meaning(subject: str, error: Mapping[str, Any]) -> BusError:
    """The ``error`` of an answer of JetStream, as an exception.

    Whatever a server says of itself (5xx: no leader, no quorum, shutting down, disabled, no room) passes, as do 409
    and 429 of a group of servers that has not agreed yet: it is asked again. The rest is about the request.
    """
    status, code = int(error.get("code", 0)), int(error.get("err_code", 0))
    text = f"{subject}: {error.get('description', '')} ({code})"
    if code in WRONG_SEQUENCE:
        return WrongSequence(text)
    if code == STORE_FAILED:
        return Full(text)
    if status >= 500 or status == 429 or code in IN_PROCESS:
        return BusAway(text)
    if code == MESSAGE_TOO_LARGE:
        return TooLarge(text)
    return ApiRefused(code, text)
