"""``python -m tests.chaos SEED MINUTES [SEEDS]``: one seed, or several from it on. 1 when anything differs."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from .run import run


def main(arguments: list[str]) -> int:
    if not 2 <= len(arguments) <= 3:
        print(__doc__, file=sys.stderr)
        return 2
    first, minutes = int(arguments[0]), float(arguments[1])
    failed = 0
    for seed in range(first, first + int(arguments[2] if len(arguments) > 2 else 1)):
        directory = Path(tempfile.mkdtemp(prefix=f"llmgw-chaos-{seed}-"))
        result = asyncio.run(run(seed, 60 * minutes, directory, lambda line: print(line, flush=True)))
        print(result, flush=True)
        for difference in result.wrong:
            print(f"  {difference}", flush=True)
        if result.wrong:
            failed += 1
            print(f"  its files: {directory}", flush=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
