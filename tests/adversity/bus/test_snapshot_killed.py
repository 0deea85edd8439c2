"""A process killed while it writes its snapshot leaves the last whole one."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import msgspec

from libs.bus import Snapshot


class Numbers(msgspec.Struct):
    """As many times its number as fill some pages: a torn one would show."""

    numbers: list[int]


WRITER = """
import sys
from pathlib import Path
from libs.bus import Snapshot
from tests.adversity.bus.test_snapshot_killed import Numbers

snapshot = Snapshot(Path(sys.argv[1]), Numbers)
for number in range(int(sys.argv[2]), 1_000_000):
    snapshot.write(snapshot.packed("s", number, f"c-{number}", Numbers([number] * 100_000), {}))
    print(number, flush=True)
"""


def test_what_is_there_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    last = 0
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(last + 1)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(random.randint(1, 4)):
            last = int(writer.stdout.readline())
        try:
            writer.wait(timeout=random.uniform(0.0, 0.03))  # somewhere in the next one
        except subprocess.TimeoutExpired:
            writer.kill()
        writer.communicate()
        found = Snapshot(path, Numbers).load("s", 1_000_000)
        assert found is not None
        assert found.position >= last
        assert found.state == Numbers([found.position] * 100_000)
        assert found.mark == f"c-{found.position}"
        last = found.position
