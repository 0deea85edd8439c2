"""Tables of workers that share a host, in memory of the test's own."""

from __future__ import annotations

from services.gateway.core.admission.shared_table import HEADER, WORDS, Table


def tables(workers: int = 1, rows: int = 512) -> list[Table]:
    """Of the workers of one host, each seeing the others."""
    memory = [memoryview(bytearray((HEADER + rows * WORDS) * 8)).cast("q") for _ in range(workers)]
    return [Table(own, [other for other in memory if other is not own]) for own in memory]


def again(table: Table) -> Table:
    """Of the worker's next life."""
    return Table(table.words, table.others)
