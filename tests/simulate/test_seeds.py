"""Whatever happens from a seed, the invariants hold; when it stops, what is wanted is there or it is said why not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .mutations import MUTATIONS, PAGE, Mutation
from .story import failure, shortest, tell


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_seeds(first: int) -> None:
    for seed in range(first, first + 50):
        tell(seed)


@pytest.mark.parametrize("seed", [10959, 13569, 18825, 22227, 27054, 28496])
def test_seeds_that_once_failed(seed: int) -> None:
    tell(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_seeds() -> None:
    """Twenty thousand, on every core."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulate", "20000", "10000"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def found_by() -> dict[str, int]:
    """Deliberate bug to the seed the page names."""
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {row[1].strip(): int(row[3]) for row in rows if row[3].strip().isdigit()}


def test_every_deliberate_bug_is_on_the_page_with_a_seed() -> None:
    assert set(found_by()) == {mutation.name for mutation in MUTATIONS}
    assert max(found_by().values()) < 500


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_deliberate_bug_is_found(mutation: Mutation) -> None:
    seed = found_by()[mutation.name]
    assert failure(seed) is None
    with mutation.applied():
        assert failure(seed) is not None


def test_a_failing_story_is_cut_down_to_what_it_takes() -> None:
    mutation = next(one for one in MUTATIONS if one.name == "ignoring drains")
    seed = found_by()[mutation.name]
    with mutation.applied():
        found = failure(seed)
        assert found is not None
        why, told = shortest(seed)
    assert len(told) < len(found[1])
    assert "is placed on" in why
