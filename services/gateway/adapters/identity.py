"""Who a gateway is: what lies in its spool says it, whatever the machine or the container is called today."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def identity(directory: Path, name: str) -> str:
    """The id in the file ``id`` of a directory, made when it is first asked for: ``name`` and six hex digits.

    A spool of an earlier version, which has none, is the gateway's that was called ``name``. Raises OSError, and
    ValueError where the file holds no id.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "id"
    try:
        gateway_id = path.read_text().strip()
    except FileNotFoundError:
        gateway_id = name if any(directory.glob("*.log")) else f"{name}-{secrets.token_hex(3)}"
        scratch = directory / f"id.{os.getpid()}.new"
        scratch.write_text(gateway_id + "\n")
        scratch.rename(path)
    if not _ID.fullmatch(gateway_id):
        raise ValueError(f"{path} holds no gateway's id but {gateway_id[:40]!r}; remove it, and a new one is made")
    return gateway_id
