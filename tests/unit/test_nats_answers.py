from __future__ import annotations

import pytest

from libs.bus.nats_answers import ApiRefused, meaning
from libs.bus.transport import BusAway, BusError, Full, TooLarge, WrongSequence


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (409, 10158, BusAway),  # duplicate message id is in process
        (429, 10167, BusAway),  # too many requests
        (503, 10008, BusAway),  # JetStream temporarily unavailable
        (503, 10039, BusAway),  # JetStream not enabled for the account: it went off, the disk being full
        (500, 10009, BusAway),  # not the leader
        (500, 10041, BusAway),  # RAFT
        (503, 10077, Full),  # maximum bytes exceeded
        (400, 10071, WrongSequence),
        (400, 10164, WrongSequence),
        (400, 10054, TooLarge),
        (400, 10003, ApiRefused),
        (404, 10059, ApiRefused),
    ],
)
def test_what_passes_by_itself_is_told_from_what_is_refused(status: int, code: int, kind: type[BusError]) -> None:
    error = meaning("llmgw.evt.x", {"code": status, "err_code": code, "description": "what it says"})
    assert type(error) is kind
    assert str(error) == f"llmgw.evt.x: what it says ({code})"
