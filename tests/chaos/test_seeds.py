"""A short story, each time CI runs; ten long ones are `make prove`'s."""

from __future__ import annotations

from pathlib import Path

import pytest

from .run import run


@pytest.mark.timeout(240)
async def test_a_short_story_leaves_no_difference(tmp_path: Path) -> None:
    said: list[str] = []
    result = await run(11, 25, tmp_path, said.append)
    assert result.wrong == [], "\n".join([*said, str(result)])
