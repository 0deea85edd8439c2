"""The table ``llmgw.origin``."""

from __future__ import annotations

from typing import Any

from services.accounting.core.origin import Origin, Reached

COLUMNS = Origin.__struct_fields__

_NEWEST = f'SELECT {", ".join(COLUMNS)} FROM llmgw.origin ORDER BY epoch COLLATE "C" DESC LIMIT 1'
_ADD = (
    f"INSERT INTO llmgw.origin ({', '.join(COLUMNS)}) VALUES ({', '.join(f'${n + 1}' for n in range(len(COLUMNS)))})"
    " ON CONFLICT DO NOTHING"
)
_RAISE = """
UPDATE llmgw.origin SET complete = greatest(complete, $1),
    mark = CASE WHEN reached <= $2 THEN $3 ELSE mark END, reached = greatest(reached, $2)
WHERE epoch = $4 AND reached >= $5
"""

_COMPLETE = f"""
UPDATE llmgw.origin SET complete = greatest(complete, $1), reached = greatest(reached, $1), mark = ''
WHERE epoch = (SELECT epoch FROM ({_NEWEST}) AS newest)
"""


async def newest(connection: Any) -> Origin | None:
    """The newest origin; None: the ledger has none yet."""
    row = await connection.fetchrow(_NEWEST)
    return Origin(**row) if row is not None else None


async def add(connection: Any, origin: Origin) -> None:
    """Add an origin, unless one of its epoch is there."""
    await connection.execute(_ADD, *(getattr(origin, column) for column in COLUMNS))


async def raise_to(connection: Any, reached: Reached) -> bool:
    """Note how far the ledger is, never less than it was; whether it is the ledger that was written so far."""
    places = reached.complete, reached.sequence, reached.mark, reached.epoch, reached.since
    done: str = await connection.execute(_RAISE, *places)
    return done == "UPDATE 1"


async def complete(connection: Any, sequence: int) -> None:
    """Note in the newest origin that everything up to a sequence is entered."""
    await connection.execute(_COMPLETE, sequence)
