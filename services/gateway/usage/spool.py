"""What was asked and what was answered, written down before it can be lost.

Two files of a gateway's data directory keep every request accountable through ``kill -9``:

- the log, in segments: an ``opened`` line before the engine is asked, a ``closed`` line (the whole usage
  record) before the last byte goes to the client. Plain ``write(2)``: the page cache outlives the process, and
  usage is not worth a disk sync for each answer. A ``published`` line says which message of USAGE the stretch up to a
  position became.
- ``slots``: a mapped table with one row for each request in flight, holding how many tokens were delivered. A row
  is updated before each write to the client, so that an answer cut by a kill counts at least what the client got
  and at most what the engine made.

What cannot be read back, because the disk changed it, is set aside in a file beside them, ``unreadable``.

Positions are bytes since the beginning of the spool, plus the microsecond it was made: a spool that was lost and
made anew never repeats a position that was already counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import struct
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from libs.events.usage import RequestRecord
from services.gateway.core.usage.engine_usage import estimate_prompt
from services.gateway.core.usage.spool_marks import Marks

from .unreadable import Unreadable

log = logging.getLogger("llmgw.gateway")

SLOTS = 4096
"""Requests one worker has in flight at most."""
SEGMENT_BYTES = 8 * 1024 * 1024
READ_BYTES = 256 * 1024
"""A batch is what this much of the log holds: far below the bus's limit for a message."""
_CHECKPOINT = struct.Struct("<QQ")


class SpoolBroken(Exception):
    """Nothing can be written; says why."""


class Opened(msgspec.Struct, omit_defaults=True):
    """A request an engine is about to be asked for."""

    request_id: str
    opened_at: datetime
    key_id: str
    project: str
    model_asked: str
    model: str
    protocol: str
    stream: bool
    slot: int
    body_bytes: int


class Batch(NamedTuple):
    """Records of a stretch of the log."""

    records: tuple[RequestRecord, ...]
    end: int


_encode = msgspec.json.Encoder().encode
_opened = msgspec.json.Decoder(Opened)
_closed = msgspec.json.Decoder(RequestRecord)


T = TypeVar("T")


def _decoded(decoder: msgspec.json.Decoder[T], line: bytes) -> T | None:
    """A line's record. None, said in the log, for one that was damaged on the disk or not written to its end."""
    try:
        return decoder.decode(line[1:])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        log.error("a line of the usage spool cannot be read: %s", error)
        return None


class Spool:
    """The spool of one gateway worker. Not for several processes at once.

    ``max_bytes`` bounds what waits to be published; over it nothing is opened any more. Raises
    SpoolBroken where another process uses the spool, or it cannot be made.
    """

    def __init__(self, directory: Path, max_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self.problem: str | None = None
        """Why nothing can be written; None while it can."""
        self._late: list[tuple[int | None, bytes]] = []
        """Slots and closing lines that could not be written yet."""
        directory.mkdir(parents=True, exist_ok=True)
        self._checkpoint_fd = os.open(directory / "checkpoint", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._checkpoint_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._checkpoint_fd)
            raise SpoolBroken(f"another gateway uses the spool {directory}: give each its own data_dir") from None
        try:
            self._table = self._map_table()
        except OSError as error:
            os.close(self._checkpoint_fd)
            raise SpoolBroken(f"the usage spool {directory} cannot be made: {error.strerror}") from None
        self._segments = sorted(int(path.stem) for path in directory.glob("*.log"))
        if not self._segments:
            self._segments = [time.time_ns() // 1000]
        self._start = self._segments[-1]
        self._fd = self._open_segment(self._start)
        self._end = self._start + os.fstat(self._fd).st_size
        self.marks = Marks()
        """Which message of USAGE each stretch became."""
        self._acked, self._promised = self._read_checkpoint()
        self._open_at: dict[int, int] = {}
        self.counted: int | None = None
        """Up to where the ledger has what is here; None: not known. What it does not have is kept, within the bound."""
        self._rows = memoryview(self._table).cast("Q")
        self.unreadable = Unreadable(directory / "unreadable")
        self.cut = self._recover()
        """Requests that were in flight when this gateway died."""

    # writing

    def usable(self) -> bool:
        """Whether what is used can be written down."""
        return self.problem is None

    @property
    def in_flight(self) -> int:
        """Requests that were opened and are not closed."""
        return len(self._open_at)

    @property
    def full(self) -> bool:
        """As many requests are in flight as one worker takes."""
        return not self._free

    @property
    def backlog_bytes(self) -> int:
        """Written and not yet published."""
        return self._end - self._acked

    def opened(self, record: Opened) -> int:
        """Write that an engine is about to be asked; the slot to count in. Raises SpoolBroken."""
        if self.backlog_bytes > self._max_bytes:
            self.problem = f"{self.backlog_bytes} bytes wait to be published, the limit is {self._max_bytes}"
            raise SpoolBroken(self.problem)
        slot = record.slot = self._free[-1]
        at = self._end
        self._rows[2 * slot + 1] = 0
        self._rows[2 * slot] = at
        self._write(b"O%s\n" % _encode(record))
        self._free.pop()
        self._open_at[slot] = at
        return slot

    def delivered(self, slot: int, tokens: int) -> None:
        """So many tokens are about to be with the client."""
        self._rows[2 * slot + 1] = tokens

    def closed(self, slot: int | None, record: RequestRecord) -> int:
        """Write what a request used, and free its slot. Never raises: what cannot be written is kept for later.

        Without a slot no engine was asked: such a record is dropped when it cannot be written. Returns a position:
        whoever read up to it has read this record.
        """
        line = b"C%s\n" % _encode(record)
        if slot is not None:
            self._finish(slot, line)
        elif self.backlog_bytes <= self._max_bytes:
            with contextlib.suppress(SpoolBroken):
                self._write(line)
        # What is kept for later will stand behind this.
        return self._end + 1 if self._late else self._end

    def _finish(self, slot: int | None, line: bytes) -> None:
        """Write a closing line. Until it is written the slot stays taken: what it counted outlives the process."""
        try:
            self._write(line)
        except SpoolBroken:
            self._late.append((slot, line))
            return
        if slot is not None:
            self._rows[2 * slot] = 0
            self._open_at.pop(slot, None)
            self._free.append(slot)

    def probe(self) -> None:
        """Try again whether it can be written."""
        if self.problem is None and not self._late:
            return
        if self.backlog_bytes > self._max_bytes:
            return
        try:
            self._write(b"#\n")
        except SpoolBroken:
            return
        late, self._late = self._late, []
        for slot, line in late:
            self._finish(slot, line)

    def _write(self, line: bytes) -> None:
        if self._end - self._start >= self._segment_bytes:
            self._next_segment()
        try:
            written = os.write(self._fd, line)
            if written != len(line):
                os.ftruncate(self._fd, self._end - self._start)
                raise OSError("the disk is full")
        except OSError as error:
            if self.problem is None:
                log.error("the usage spool %s cannot be written: %s", self._directory, error)
            self.problem = f"the usage spool cannot be written: {error}"
            raise SpoolBroken(self.problem) from None
        self._end += written
        if self.problem is not None:
            log.info("the usage spool %s can be written again", self._directory)
            self.problem = None

    def _next_segment(self) -> None:
        try:
            fd = self._open_segment(self._end)
        except OSError as error:
            self.problem = f"the usage spool cannot be written: {error}"
            raise SpoolBroken(self.problem) from None
        os.close(self._fd)
        self._fd = fd
        self._start = self._end
        self._segments.append(self._start)

    # publishing

    def batch(self) -> Batch | None:
        """The next records to publish, promised: after a crash the same stretch is the next one again.

        None: everything is published. Raises OSError.
        """
        while self._acked < self._end or self._promised > self._acked:
            end = self._promised
            data = self._read(self._acked, end - self._acked if end > self._acked else READ_BYTES)
            data, torn = data[: data.rfind(b"\n") + 1], data[data.rfind(b"\n") + 1 :]
            if not data:
                following = min((start for start in self._segments if start > self._acked), default=None)
                if following is None:
                    return None
                log.error("%d bytes of the usage spool were lost with the machine's power", following - self._acked)
                if torn:
                    self.unreadable.add(self._acked, torn)
                self._acked_to(following)
                continue
            end = self._acked + len(data)
            records = self._records(data)
            if not records:
                self._acked_to(end)
                continue
            self._save_checkpoint(self._acked, end)
            return Batch(records, end)
        return None

    def _records(self, data: bytes) -> tuple[RequestRecord, ...]:
        """Those in whole lines that begin at what was published last; what cannot be read is set aside. Raises
        OSError."""
        records = []
        position = self._acked
        for line in data.split(b"\n")[:-1]:
            if line.startswith(b"C"):
                record = _decoded(_closed, line)
                if record is None:
                    self.unreadable.add(position, line)
                else:
                    records.append(record)
            elif not line.startswith((b"O", b"P", b"#")):
                log.error("a line of the usage spool cannot be read: it is of no kind that is written there")
                self.unreadable.add(position, line)
            position += len(line) + 1
        return tuple(records)

    def published(self, end: int, sequence: int) -> None:
        """The batch that ends there is a message of USAGE. Raises OSError.

        Where that cannot be written, the stretch is published again after the next start: as the same message.
        """
        self.marks.add(end, sequence)
        with contextlib.suppress(SpoolBroken):
            self._write(b"P%d %d %s\n" % (end, sequence, self.marks.epoch.encode()))
        self._acked_to(end)

    def again(self, epoch: str) -> None:
        """USAGE is another stream: what is here, and the ledger may not have, is published once more. What it has
        already it knows by the request."""
        self.marks.begin(epoch)
        self._save_checkpoint(self._segments[0], self._segments[0])

    def _acked_to(self, end: int) -> None:
        """Nothing up to there is to be published. Segments nobody needs any more are removed. Raises OSError."""
        self._save_checkpoint(end, end)
        needed = min(self._open_at.values(), default=end)
        if self.counted is not None:
            needed = min(needed, max(self.counted, self._end - self._max_bytes))
        while len(self._segments) > 1 and self._segments[1] <= min(end, needed):
            self._path(self._segments.pop(0)).unlink(missing_ok=True)

    def closings(self, after: int) -> Iterator[tuple[int, RequestRecord]]:
        """The closed requests that are still here and end behind a position, with where they end. Raises OSError."""
        segments = list(self._segments)
        for start, following in zip(segments, [*segments[1:], self._end], strict=True):
            if following <= after:
                continue
            position = start
            with self._path(start).open("rb") as segment:
                for line in segment:
                    position += len(line)
                    if position > after and line.startswith(b"C") and (record := _decoded(_closed, line)) is not None:
                        yield position, record

    def _read(self, position: int, size: int) -> bytes:
        """From one segment only; b"" at the end."""
        start = max((s for s in self._segments if s <= position), default=None)
        if start is None:
            return b""
        with self._path(start).open("rb") as segment:
            segment.seek(position - start)
            return segment.read(size)

    # starting and stopping

    def close(self) -> None:
        """Let go of the files; everything in them stays."""
        self._rows.release()
        self._table.close()
        os.close(self._fd)
        os.close(self._checkpoint_fd)

    def _recover(self) -> int:
        """Close what an earlier process left open, with what its client had got so far."""
        open_lines: dict[str, tuple[int, Opened]] = {}
        damaged: dict[int, bytes] = {}
        for start in self._segments:
            position = start
            with self._path(start).open("rb") as segment:
                for line in segment:
                    if line.startswith(b"O"):
                        if (opened := _decoded(_opened, line)) is not None:
                            open_lines[opened.request_id] = (position, opened)
                        else:
                            damaged[position] = line.rstrip(b"\n")
                    elif line.startswith(b"C") and (closed := _decoded(_closed, line)) is not None:
                        open_lines.pop(closed.request_id, None)
                    elif line.startswith(b"P"):
                        self._marked(line)
                    position += len(line)
        self._mend()
        # What has no sequence is published once more; it is the same message where it was one.
        self._acked = max(self._segments[0], self.marks.end)
        if not self._acked <= self._promised <= self._acked + READ_BYTES:
            self._promised = self._acked
        counted: dict[int, int] = {}
        for position, opened in open_lines.values():
            if 0 <= opened.slot < SLOTS and self._rows[2 * opened.slot] == position:
                counted[opened.slot] = position
        for slot in range(SLOTS):
            if slot not in counted:
                if (lost := damaged.get(self._rows[2 * slot])) is not None:
                    self.unreadable.add(self._rows[2 * slot], lost)
                self._rows[2 * slot] = self._rows[2 * slot + 1] = 0
        self._open_at.update(counted)
        self._free = [slot for slot in range(SLOTS - 1, -1, -1) if slot not in counted]
        for position, opened in open_lines.values():
            held = opened.slot if counted.get(opened.slot) == position else None
            delivered = 0 if held is None else self._rows[2 * held + 1]
            self._finish(held, b"C%s\n" % _encode(cut_record(opened, delivered)))
        return len(open_lines)

    def _marked(self, line: bytes) -> None:
        try:
            end, sequence, epoch = line[1:-1].split(b" ")
            if epoch and epoch.decode() != self.marks.epoch:
                self.marks.begin(epoch.decode())
            self.marks.add(int(end), int(sequence))
        except ValueError as error:
            log.error("a line of the usage spool cannot be read: %s", error)

    def _mend(self) -> None:
        """Cut off a last line that was not written to its end. What is written from now on stands behind everything
        that was published, also when the disk has lost the end of it with the machine's power."""
        data = self._path(self._start).read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.ftruncate(self._fd, whole)
            self._end = self._start + whole
        if self._end < self._promised:
            self._end = self._promised
            self._next_segment()

    def _path(self, start: int) -> Path:
        return self._directory / f"{start:020d}.log"

    def _open_segment(self, start: int) -> int:
        return os.open(self._path(start), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _map_table(self) -> mmap.mmap:
        fd = os.open(self._directory / "slots", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            size = SLOTS * 16
            os.ftruncate(fd, size)
            # Writing to a page the disk has no room for would kill the process, with SIGBUS.
            os.posix_fallocate(fd, 0, size)
            os.posix_fallocate(self._checkpoint_fd, 0, _CHECKPOINT.size)
            return mmap.mmap(fd, size)
        finally:
            os.close(fd)

    def _read_checkpoint(self) -> tuple[int, int]:
        data = os.pread(self._checkpoint_fd, _CHECKPOINT.size, 0)
        acked, promised = _CHECKPOINT.unpack(data) if len(data) == _CHECKPOINT.size else (0, 0)
        acked = max(acked, self._segments[0])
        return acked, max(acked, promised)

    def _save_checkpoint(self, acked: int, promised: int) -> None:
        self._acked, self._promised = acked, promised
        os.pwrite(self._checkpoint_fd, _CHECKPOINT.pack(acked, promised), 0)


def cut_record(opened: Opened, delivered: int) -> RequestRecord:
    """What a request used whose gateway died: what the client had got; nothing when it had got nothing."""
    return RequestRecord(
        request_id=opened.request_id,
        opened_at=opened.opened_at,
        closed_at=datetime.now(UTC),
        key_id=opened.key_id,
        project=opened.project,
        model_asked=opened.model_asked,
        model=opened.model,
        protocol=opened.protocol,  # type: ignore[arg-type]
        stream=opened.stream,
        status="cut",
        prompt_tokens=estimate_prompt(opened.body_bytes) if delivered else 0,
        completion_tokens=delivered,
        tokens_estimated=True,
    )
