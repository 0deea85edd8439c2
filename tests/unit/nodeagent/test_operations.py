from __future__ import annotations

from libs.events.node import Errand
from libs.events.views import ErrandWanted
from services.nodeagent.core.operations import OperationRecord, due

RESTART = Errand(kind="restart_agent")


def test_an_errand_that_was_told_is_not_done_again() -> None:
    told = OperationRecord(number=9, errand=RESTART, outcome="done", reported=True)
    assert due({9: told}, [ErrandWanted(number=9, errand=RESTART)]) == ([], set())
    assert due({9: told}, []) == ([], {9})


def test_another_errand_of_the_same_number_is_done() -> None:
    """As a log gives it that went back and numbers its events again."""
    told = OperationRecord(number=9, errand=RESTART, outcome="done", reported=True)
    other = Errand(kind="restart_shard", shard_id="r-1-0")
    found = due({9: told}, [ErrandWanted(number=9, errand=other)])
    assert found == ([OperationRecord(number=9, errand=other)], {9})
