"""The tables the workers of a host share, as files beside their spools: they outlive every process of the gateway."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from services.gateway.core.admission.shared_table import LENGTH, Table, digest

BYTES = LENGTH * 8
BOOT = Path("/proc/sys/kernel/random/boot_id")


class HostTables(msgspec.Struct):
    """What a worker needs to know of its host."""

    host: str
    """The id of all of its workers together."""
    table: Path
    """Its own."""
    others: tuple[Path, ...]
    """Of the other workers."""


def prepare(directory: Path) -> Path:
    """A worker's table, made where there is none and emptied where the machine was started again since: its times are
    those of the machine's clock. Nobody may use it yet. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "table"
    boot = digest(f"{BOOT.read_text().strip()} {LENGTH}").to_bytes(8, "little")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.pread(descriptor, 8, 0) != boot or os.fstat(descriptor).st_size != BYTES:
            os.ftruncate(descriptor, 0)
            # Writing to a page the disk has no room for would kill the process, with SIGBUS.
            os.posix_fallocate(descriptor, 0, BYTES)
            os.pwrite(descriptor, boot, 0)
    finally:
        os.close(descriptor)
    return path


def opened(own: Path, others: Sequence[Path]) -> Table:
    """A worker's table, with those it reads. Raises OSError."""
    return Table(_mapped(own, mmap.PROT_READ | mmap.PROT_WRITE), [_mapped(path, mmap.PROT_READ) for path in others])


def _mapped(path: Path, protection: int) -> memoryview:
    descriptor = os.open(path, os.O_RDWR if protection & mmap.PROT_WRITE else os.O_RDONLY)
    try:
        return memoryview(mmap.mmap(descriptor, BYTES, prot=protection)).cast("q")
    finally:
        os.close(descriptor)
