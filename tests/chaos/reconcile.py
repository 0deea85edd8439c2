"""What clients saw, against the ledger: every difference is a sentence, and none is right."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from libs.events.tenancy import Price
from libs.testing.ledger import LedgerRow

from .load import Asked

ROW_OF = {400: {"refused_guard", "client_error"}, 402: {"refused_budget"}, 429: {"refused_limit"}}
"""What the row of a refused request says."""
EXPECTED = {0, 200, 400, 402, 429, 502, 503, 504}
"""HTTP statuses a client may see while parts are killed; 0: the connection broke before an answer."""
MINUTE = timedelta(seconds=60)
JUST_NOW = timedelta(seconds=1)
"""Between a request's end by the ledger's clock and its tokens' being counted."""
BEFORE_COUNTED = 2
"""Requests that may be opened, frozen with their worker, and counted in a later minute: one for each worker."""


def differences(
    asked: Sequence[Asked],
    rows: Sequence[LedgerRow],
    key_ids: Mapping[str, str],
    prices: Mapping[str, Price],
) -> Iterator[str]:
    """Where the ledger is not what clients saw: each request has one row of its key, with the tokens it was sent, and
    what they cost; nothing else has one, but requests whose client never heard of an id."""
    by_id = {row.request_id: row for row in rows}
    if len(by_id) != len(rows):
        yield f"{len(rows) - len(by_id)} rows of requests that have one already"
    named = {one.answer.request_id for one in asked if one.answer.request_id}
    for one in asked:
        yield from _answer(one, by_id.get(one.answer.request_id), key_ids[one.tenant.name])
    foreign = Counter(row.key_id for row in rows if row.request_id not in named)
    nameless = Counter(key_ids[one.tenant.name] for one in asked if not one.answer.request_id)
    for key_id in set(key_ids.values()) & foreign.keys():
        if foreign[key_id] > nameless[key_id]:
            told = f"{nameless[key_id]} requests without an id"
            yield f"{foreign[key_id]} rows of {key_id} that no client knows, and {told}"
    for row in rows:
        if row.key_id in key_ids.values():
            yield from _cost(row, prices[row.model])


def _answer(one: Asked, row: LedgerRow | None, key_id: str) -> Iterator[str]:
    answer = one.answer
    what = f"{answer.request_id or 'a request without an id'} of {one.tenant.name} ({one.manner}, {answer.status})"
    if answer.status not in EXPECTED:
        yield f"{what}: an unexpected status: {answer.error}"
    if one.manner == "secret" and answer.status == 200:
        yield f"{what}: a secret went to an engine"
    if not answer.request_id:
        if answer.status not in (0, 502, 503, 504):
            yield f"{what}: no id, {answer.error}"
        return
    if row is None:
        yield f"{what}: not in the ledger; the client had {answer.tokens} tokens, {answer.error or 'complete'}"
        return
    if row.key_id != key_id or row.project != one.tenant.project:
        yield f"{what}: charged to {row.key_id} of {row.project}"
    if answer.ok:
        told = answer.prompt_tokens, answer.completion_tokens
        if (row.prompt_tokens, row.completion_tokens) != told or row.status != "ok":
            yield f"{what}: the client was told {told} tokens, the row {row.status} {_tokens(row)}"
    elif answer.status == 200:
        if row.completion_tokens < answer.tokens:
            yield f"{what}: the client had {answer.tokens} tokens ({answer.error}), the row {row.status} {_tokens(row)}"
    elif answer.status in ROW_OF and row.status not in ROW_OF[answer.status]:
        yield f"{what}: its row says {row.status}"


def _tokens(row: LedgerRow) -> tuple[int, int]:
    return row.prompt_tokens, row.completion_tokens


def _cost(row: LedgerRow, price: Price) -> Iterator[str]:
    cost = 0
    if row.status in ("ok", "cancelled", "cut"):
        cost = price.cost_micros(row.prompt_tokens, row.cached_tokens, row.completion_tokens)
    if row.cost_micros != cost:
        yield f"{row.request_id}: costs {row.cost_micros} instead of {cost} ({row.status}, {_tokens(row)})"


def overspent(rows: Sequence[LedgerRow], budgets: Mapping[str, int]) -> Iterator[str]:
    """Budgets that were exceeded: on one host none is, whatever is killed or frozen (docs/promises.md).

    ``budgets``: key id, or ``org/team``, to micro-units in all.
    """
    spent: dict[str, int] = defaultdict(int)
    for row in rows:
        for account in (row.key_id, row.project.rpartition("/")[0]):
            spent[account] += row.cost_micros
    for account, amount in budgets.items():
        if spent[account] > amount:
            yield f"{account} spent {spent[account]} of {amount} micro-units"


def over_rpm(rows: Sequence[LedgerRow], key_id: str, rpm: int) -> Iterator[str]:
    """Whether in any minute more requests of a key were taken than its limit (docs/promises.md)."""
    times = sorted(row.opened_at for row in rows if row.key_id == key_id and row.status != "refused_limit")
    first = most = 0
    for last, at in enumerate(times):
        while at - times[first] > MINUTE:
            first += 1
        most = max(most, last - first + 1)
    if most > rpm + BEFORE_COUNTED:
        yield f"{key_id} had {most} requests in a minute; its limit is {rpm}"


def over_tpm(rows: Sequence[LedgerRow], key_id: str, tpm: int) -> Iterator[str]:
    """Requests of a key that were taken though those that had ended in the minute before had used up its limit."""
    own = [row for row in rows if row.key_id == key_id and row.status != "refused_limit"]
    for row in own:
        before = row.opened_at - JUST_NOW
        ended = [r for r in own if row.opened_at - MINUTE < r.closed_at < before and r.status != "cut"]
        used = sum(r.prompt_tokens + r.completion_tokens for r in ended)
        if used >= tpm:
            yield f"{row.request_id} of {key_id} was taken though {used} tokens had gone in a minute of {tpm}"
            return
