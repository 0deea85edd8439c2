"""Taking a version in: from a file, a folder, or an installed model package. Blocking; runs in a thread."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from libs.events.library import WeightFile
from libs.events.refusal import Refused
from libs.fit import Unreadable, headers
from libs.runtime.hub_cache import reach
from services.mirror.core import model_files
from services.mirror.core.manifest import MAX_FILES, in_order
from services.mirror.core.source import (
    PackageSource,
    Source,
    is_licence_file,
    left_out,
    licence_in,
    path_problem,
)
from services.mirror.core.unsafe import HEAD_BYTES, unsafe_content, unsafe_name

from .store import Store, WrongSum

log = logging.getLogger("llmgw.mirror")

REPORT_EVERY_S = 5.0
MAX_HEADER_BYTES = 256 << 20
"""No header in use takes a tenth of it."""
MARGIN_BYTES = 256 * 1024 * 1024
"""Left free on the disk after an import."""


class Imported(NamedTuple):
    """What a source held, now in the store."""

    files: tuple[WeightFile, ...]
    licence: str
    """What the files themselves say; may be empty."""


class SourceFile(NamedTuple):
    """A file to import."""

    path: str
    """Its path in the version."""
    real: Path
    size_bytes: int


class GivenUp(Exception):
    """It is not to go on: the process stops, another instance leads, or somebody cancelled it."""


class Intake:
    """Imports one source at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._given_up = threading.Event()
        self.progress: Progress | None = None
        """Of what is imported now; read from any thread."""

    def bring_in(self, source: Source, name: str, given_up: threading.Event | None = None) -> Imported:
        """Bring every file of the source into the store. Raises Refused, and GivenUp once ``given_up`` is set."""
        self._given_up = given_up or threading.Event()
        self._store.unpin()
        try:
            if isinstance(source, PackageSource):
                return self._package(source.module, name)
            return self._path(Path(source.path), name)
        except OSError as error:
            self._store.discard()
            raise Refused.one("source", _disk_problem(error)) from None
        except (Refused, GivenUp):
            self._store.discard()
            raise
        finally:
            self.progress = None

    # a file or a folder

    def _path(self, given: Path, name: str) -> Imported:
        try:
            real = given.resolve(strict=True)
            beside = given.parent.resolve(strict=True)
        except (FileNotFoundError, NotADirectoryError):
            raise Refused.one("source", f"{given} does not exist on the mirror's machine") from None
        except RuntimeError:
            raise Refused.one("source", f"{given} is a link that leads to itself") from None
        files = list(_folder(real)) if real.is_dir() else list(_set(beside, given.name))
        if not files:
            raise Refused.one("source", f"{given} holds no file to import")
        _check_all(files)
        problem = model_files.problem({file.path: file.size_bytes for file in files}, str(given))
        if problem:
            raise Refused.one("source", problem)
        return self._copy_all(files, name)

    def _copy_all(self, files: list[SourceFile], name: str) -> Imported:
        if len(files) > MAX_FILES:
            raise Refused.one("source", f"{len(files)} files, {MAX_FILES} at most: import the folder of one model")
        total = sum(file.size_bytes for file in files)
        free = self._store.free_bytes() - MARGIN_BYTES
        if total > free:
            raise Refused.one(
                "source", f"it needs {shown(total)} and {shown(max(0, free))} can be used on the mirror's disk"
            )
        progress = self.progress = Progress(name, total, self._given_up)
        copied = []
        licence = ""
        for file in files:
            head, sha256, size = self._copy_file(file, progress)
            copied.append(WeightFile(path=file.path, size_bytes=size, sha256=sha256))
            if file.path.lower() == "readme.md":
                licence = licence_in(head.decode("utf-8", "replace"))
        return Imported(in_order(copied), licence)

    def _copy_file(self, file: SourceFile, progress: Progress) -> tuple[bytes, str, int]:
        with _opened(file) as source:
            before = os.fstat(source.fileno())
            head = _head(file, source)
            sha256, size = self._store.add(source, progress.moved)
            after = os.fstat(source.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or size != before.st_size:
            raise Refused.one("source", f"{file.path} changed while it was read: import it when nothing writes to it")
        return head, sha256, size

    # a package

    def _package(self, module_name: str, name: str) -> Imported:
        module = _import(module_name)
        file_name = Path(str(getattr(module, "MODEL_NAME", "") or f"{name}.gguf")).name
        problem = path_problem(file_name) or unsafe_name(file_name)
        if problem:
            raise Refused.one("source", problem)
        expected = str(getattr(module, "EXPECTED_SHA256", "") or "").lower()
        log.info("import of %s: package %s puts %s together", name, module_name, file_name)
        assembled = self._store.incoming()
        try:
            module.assemble(assembled)
            with open(assembled, "rb") as written:
                problem = unsafe_content(file_name, written.read(HEAD_BYTES))
                if problem:
                    raise Refused.one("source", problem)
                _check_header(file_name, written, assembled.stat().st_size)
            progress = self.progress = Progress(name, assembled.stat().st_size, self._given_up)
            sha256, size = self._store.adopt(assembled, expected, progress.moved)
        except WrongSum as wrong:
            raise Refused.one(
                "source", f"{file_name}: {wrong} according to package {module_name}: install it again"
            ) from None
        except (Refused, GivenUp, OSError):
            raise
        except Exception as error:
            raise Refused.one("source", f"package {module_name} failed: {type(error).__name__}: {error}") from None
        finally:
            assembled.unlink(missing_ok=True)
        documents = _licence_files(module)
        _check_all(documents)
        copied = self._copy_all(documents, name) if documents else Imported((), "")
        model_cards = [file.real for file in documents if file.path.lower().startswith("readme")]
        licence = next(filter(None, (licence_in(card.read_text("utf-8", "replace")) for card in model_cards)), "")
        weights = WeightFile(path=file_name, size_bytes=size, sha256=sha256)
        return Imported(in_order((weights, *(f for f in copied.files if f.path != file_name))), licence)


class Progress:
    """How far an import is; logged every few seconds. Read from any thread."""

    def __init__(self, name: str, total_bytes: int, given_up: threading.Event) -> None:
        self.name = name
        self.total_bytes = total_bytes
        self.done_bytes = 0
        self._given_up = given_up
        self._started = self._logged_at = time.monotonic()

    @property
    def bytes_per_s(self) -> float:
        """Since its beginning."""
        return self.done_bytes / max(time.monotonic() - self._started, 1e-3)

    def moved(self, count: int) -> None:
        """So many more bytes are in. Raises GivenUp when it is not to go on."""
        if self._given_up.is_set():
            raise GivenUp
        self.done_bytes += count
        now = time.monotonic()
        if now - self._logged_at < REPORT_EVERY_S:
            return
        self._logged_at = now
        rate = self.bytes_per_s
        log.info(
            "import of %s: %s of %s, %s/s, %d s left",
            *(self.name, shown(self.done_bytes), shown(self.total_bytes), shown(int(rate))),
            max(0, self.total_bytes - self.done_bytes) / rate,
        )


def _check_all(files: Iterable[SourceFile]) -> None:
    """Look at the beginning of every file before any is copied. Raises Refused."""
    for file in files:
        with _opened(file) as source:
            _head(file, source)
            _check_header(file.path, source, file.size_bytes)


def _opened(file: SourceFile) -> BinaryIO:
    return open(os.open(file.real, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0)


def _head(file: SourceFile, source: BinaryIO) -> bytes:
    """The file's beginning. Raises Refused for what must not enter the library."""
    head = os.pread(source.fileno(), HEAD_BYTES, 0)
    problem = unsafe_content(file.path, head)
    if problem:
        raise Refused.one("source", problem)
    return head


class _Opened:
    """One open file, to read its header."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def names(self) -> list[str]:
        return []

    def head(self, name: str, size: int) -> bytes:
        if size > MAX_HEADER_BYTES:
            raise Unreadable(f"{name} states a header of more than {MAX_HEADER_BYTES >> 20} MiB: it is not a model")
        return os.pread(self._source.fileno(), size, 0)


def _check_header(path: str, source: BinaryIO, size: int) -> None:
    """Raises Refused for what is not the model file its name says, and for one that is cut short."""
    try:
        headers.check(_Opened(source), path, size)
    except Unreadable as why:
        raise Refused.one("source", str(why)) from None


def _set(folder: Path, name: str) -> Iterator[SourceFile]:
    """A file, or all parts there are of the model it is a part of."""
    for part in model_files.parts_of(name):
        real = folder / part
        if part == name or os.path.lexists(real):
            yield _file(part, _inside(real, part, folder))


def _folder(root: Path) -> Iterator[SourceFile]:
    """Files of a folder, by path. Links are followed as long as they stay within its reach."""
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names + [f for f in folders if os.path.islink(os.path.join(folder, f))]):
            real = Path(folder, name)
            path = real.relative_to(root).as_posix()
            if left_out(path):
                log.info("%s is left out", path)
                continue
            yield _file(path, _inside(real, path, root))


def _inside(real: Path, path: str, root: Path) -> Path:
    if not real.is_symlink():
        return real
    try:
        target = real.resolve(strict=True)
    except (OSError, RuntimeError):
        raise Refused.one("source", f"{path} is a link that leads nowhere") from None
    if not target.is_relative_to(reach(root)):
        raise Refused.one(
            "source",
            f"{path} is a link that leads out of the folder, to {target}: import it from there (path:{target}), or put "
            "the file itself where the link is",
        )
    if target.is_dir():
        raise Refused.one("source", f"{path} is a link to a folder: put the folder itself there")
    return target


def _file(path: str, real: Path) -> SourceFile:
    problem = path_problem(path) or unsafe_name(path)
    if problem:
        raise Refused.one("source", problem)
    status = real.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise Refused.one("source", f"{path} is not a regular file")
    return SourceFile(path, real, status.st_size)


def _import(module_name: str) -> Any:
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise Refused.one("source", f"{error}: install the package where the mirror runs") from None
    if not callable(getattr(module, "assemble", None)):
        raise Refused.one("source", f"{module_name} is not a model package: it has no assemble()")
    return module


def _licence_files(module: Any) -> list[SourceFile]:
    """Licence, terms and model card beside the module or in its data folder."""
    home = Path(str(module.__file__)).resolve().parent
    files: dict[str, SourceFile] = {}
    for folder in (home, home / "data"):
        for real in sorted(folder.iterdir()) if folder.is_dir() else ():
            if is_licence_file(real.name) and real.is_file() and not real.is_symlink() and not left_out(real.name):
                files.setdefault(real.name, _file(real.name, real))
    return list(files.values())


def _disk_problem(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the mirror's disk is full: {error}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"the mirror may not read it: {error}"
    return f"it could not be read or stored: {error}"


def shown(size: int) -> str:
    """A size for people: ``4.1 GB``."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
