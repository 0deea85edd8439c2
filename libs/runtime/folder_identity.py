"""Which folder this is, so that what was written in one is not believed in a copy of it."""

from __future__ import annotations

from pathlib import Path


def folder_id(path: Path) -> str:
    """``device:inode`` of a folder that exists: the same after it was moved, another for a copy. Raises OSError.

    Process ids and the like hold only together with it.
    """
    status = path.stat()
    return f"{status.st_dev}:{status.st_ino}"
