"""What workers share: found by name, kept through a death, never anybody else's to write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.adapters import shared_tables
from services.gateway.core.admission.shared_table import (
    AT,
    KEPT_S,
    RESERVED,
    SETTLED,
    TableFull,
    digest,
)

from .tables import again, tables


@given(st.lists(st.text(max_size=5), unique=True, max_size=60))
def test_every_name_has_its_own_row_and_the_others_find_it(names: list[str]) -> None:
    first, second, third = tables(3, rows=64)
    for number, name in enumerate(names, start=1):
        first.words[first.row(digest(name)) + RESERVED] = number
        second.words[second.row(digest(name)) + RESERVED] = 1000 * number
    for number, name in enumerate(names, start=1):
        assert sorted(words[at + RESERVED] for words, at in third.rows_of_others(digest(name))) == [
            number,
            1000 * number,
        ]
        assert again(first).words[first.row(digest(name)) + RESERVED] == number
    assert third.rows_of_others(digest("nobody's name")) == []


def test_a_row_that_says_nothing_for_long_is_anothers_to_take() -> None:
    (table,) = tables(rows=4)
    for number in range(4):
        row = table.row(digest(f"n-{number}"))
        table.words[row + AT] = table.now = 1
        table.words[row + SETTLED] = int(number < 3)
    with pytest.raises(TableFull):
        table.row(digest("another"))
    table.now += KEPT_S + 1
    row = table.row(digest("another"))
    assert (table.words[row + AT], table.words[row + SETTLED]) == (table.now, 0)
    with pytest.raises(TableFull):
        table.row(digest("one more"))


def test_a_file_outlives_processes_and_not_the_machines_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = shared_tables.prepare(tmp_path / "1"), shared_tables.prepare(tmp_path / "2")
    table = shared_tables.opened(own, [other])
    table.words[table.row(digest("k")) + RESERVED] = 5
    rows_of_others = shared_tables.opened(
        shared_tables.prepare(tmp_path / "2"), [shared_tables.prepare(tmp_path / "1")]
    )
    assert [words[at + RESERVED] for words, at in rows_of_others.rows_of_others(digest("k"))] == [5]
    with pytest.raises(TypeError):
        rows_of_others.others[0][100] = 1  # only its owner writes it
    assert os.stat(own).st_blocks * 512 >= shared_tables.BYTES, (
        "a full disk is found out when it is made, not when it is used"
    )
    boot = tmp_path / "boot"
    boot.write_text("another start")
    monkeypatch.setattr(shared_tables, "BOOT", boot)
    assert shared_tables.opened(own, [shared_tables.prepare(tmp_path / "1")]).rows_of_others(digest("k")) == []
