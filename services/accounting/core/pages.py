"""The tree, its keys and prices in one order, and the pages questions about them are answered in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from libs.events import encode
from libs.events.budget import LevelBudget
from libs.events.questions import KeyInfo, Level, TenancyAnswer
from libs.events.tenancy import Allowance, OrgSpec, Price, ProjectSpec, TeamSpec

from .narrowing import of_level
from .prices import newest
from .state import Key, State

PAGE_BYTES = 1 << 20
"""Of an answer, as it is sent; the bus takes eight times as much."""
LOOKED_AT = 20_000
"""Levels and keys looked at for one page of budgets: many may have none."""

ORDER: tuple[Level, ...] = ("org", "team", "project", "key", "price")


class PageCursor(NamedTuple):
    """Where a page ends. Levels stand by name, keys as they were created."""

    level: Level
    name: str = ""
    created: int = 0

    @classmethod
    def of(cls, text: str) -> PageCursor | None:
        """The place a text (of ``str``) means; None for any other text."""
        level, _, rest = text.partition(":")
        if level == "key" and rest.isdecimal():
            return cls("key", "", int(rest))
        for known in ORDER:
            if level == known and level != "key":
                return cls(known, rest)
        return None

    def __str__(self) -> str:
        return f"{self.level}:{self.created if self.level == 'key' else self.name}"


def tenancy_page(
    state: State, levels: Collection[Level], key_ids: Collection[str], after: PageCursor | None
) -> TenancyAnswer:
    """What comes after a place, or from the beginning on, as much as fits into one answer."""
    shown_by_level: dict[Level, list[OrgSpec | TeamSpec | ProjectSpec | KeyInfo | Price]] = {
        level: [] for level in ORDER
    }
    size = 0
    end = ""
    last: PageCursor | None = None
    for cursor, entry in _entries(state, levels, key_ids, after):
        shown = _info(entry) if isinstance(entry, Key) else entry
        size += len(encode(shown)) + 1
        if size > PAGE_BYTES and last is not None:
            end = str(last)
            break
        shown_by_level[cursor.level].append(shown)
        last = cursor
    return TenancyAnswer(
        orgs=tuple(shown_by_level["org"]),  # type: ignore[arg-type]
        teams=tuple(shown_by_level["team"]),  # type: ignore[arg-type]
        projects=tuple(shown_by_level["project"]),  # type: ignore[arg-type]
        keys=tuple(shown_by_level["key"]),  # type: ignore[arg-type]
        prices=tuple(shown_by_level["price"]),  # type: ignore[arg-type]
        next=end,
    )


def budgets_page(state: State, after: PageCursor | None, most: int) -> tuple[list[LevelBudget], str]:
    """The budgets of the levels and usable keys after a place, about ``most`` of them, and what comes next."""
    budgets: list[LevelBudget] = []
    for looked, (cursor, entry) in enumerate(_entries(state, ORDER[:-1], (), after), 1):
        match entry:
            case OrgSpec():
                budgets += _budgets(f"{cursor.name}/*", entry.allowance)
            case TeamSpec():
                budgets += _budgets(f"{cursor.name}/*", entry.allowance)
            case ProjectSpec():
                budgets += _budgets(cursor.name, entry.allowance)
            case Key() if not entry.revoked:
                budgets += _budgets(entry.key_id, entry.allowance)
        if len(budgets) >= most or looked >= LOOKED_AT:
            return budgets, str(cursor)
    return budgets, ""


def _budgets(account: str, allowance: Allowance) -> tuple[LevelBudget, ...]:
    return of_level(account, allowance) if allowance.budgets else ()


def _entries(
    state: State, levels: Collection[Level], key_ids: Collection[str], after: PageCursor | None
) -> Iterator[tuple[PageCursor, OrgSpec | TeamSpec | ProjectSpec | Key | Price]]:
    begin = ORDER.index(after.level) if after is not None else 0
    for level in ORDER[begin:]:
        here = after if after is not None and after.level == level else None
        if level not in levels:
            continue
        if level == "key":
            yield from _keys(state, key_ids, here.created if here else 0)
            continue
        named = _named(state, level)
        for name in sorted(named):
            if here is None or name > here.name:
                yield PageCursor(level, name), named[name]


def _named(
    state: State, level: Level
) -> Mapping[str, OrgSpec] | Mapping[str, TeamSpec] | Mapping[str, ProjectSpec] | Mapping[str, Price]:
    match level:
        case "org":
            return state.orgs
        case "team":
            return state.teams
        case "project":
            return state.projects
        case _:
            return {price.model: price for price in newest(state.prices)}


def _keys(state: State, key_ids: Collection[str], after: int) -> Iterator[tuple[PageCursor, Key]]:
    chosen = sorted((state.keys[key_id] for key_id in {*key_ids} & state.keys.keys()), key=lambda key: key.created)
    for key in chosen if key_ids else state.keys.values():
        if key.created > after:
            yield PageCursor("key", "", key.created), key


def _info(key: Key) -> KeyInfo:
    return KeyInfo(
        key_id=key.key_id,
        shown=key.shown,
        name=key.name,
        project=key.project,
        roles=key.roles,
        allowance=key.allowance,
        expires_at=key.expires_at,
        revoked=key.revoked,
    )
