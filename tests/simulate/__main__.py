"""``python -m tests.simulate COUNT [FIRST]``: so many seeds, on every core; a failing one prints its shortest story."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

from .story import failure, tell


def _fails(seed: int) -> int | None:
    return seed if failure(seed) is not None else None


def main(arguments: list[str]) -> int:
    count = int(arguments[0]) if arguments else 300
    first = int(arguments[1]) if len(arguments) > 1 else 0
    began = time.monotonic()
    failed: list[int] = []
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for done, seed in enumerate(pool.imap_unordered(_fails, range(first, first + count), chunksize=8), 1):
            if seed is not None:
                failed.append(seed)
            if done % 1000 == 0:
                print(f"{done} of {count} seeds, {len(failed)} failed, {time.monotonic() - began:.0f} s", flush=True)
    for seed in sorted(failed)[:3]:
        try:
            tell(seed)
        except AssertionError as why:
            print(why, end="\n\n")
    print(f"{count} seeds from {first}: {len(failed)} failed {sorted(failed)[:20]}, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
