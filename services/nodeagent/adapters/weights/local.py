"""Weights an operator put on the machine: looked at before an engine gets them, never copied, changed or removed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from libs.events.library import WeightFile
from libs.runtime.hub_cache import reach
from services.nodeagent.core.shard.weights import named_pickle, pickled

from .store import Rejected

_MAX_FILES = 10_000
"""More are no model's folder."""


def look(path: Path, pickles_allowed: bool) -> tuple[Path, tuple[WeightFile, ...]]:
    """The folder, and the files of it that belong to the weights: one GGUF file, or all there are. No sums are taken.

    Blocks on the disk. Raises Rejected with a sentence.
    """
    try:
        return _look(path, pickles_allowed)
    except (FileNotFoundError, NotADirectoryError):
        raise Rejected(
            f"{path} is not on this machine: put or mount it there, or name the machines that have it in the profile's "
            "node_selector"
        ) from None
    except OSError as error:
        raise Rejected(f"{error.filename or path} cannot be read by the agent: {error.strerror}") from None


def _look(path: Path, pickles_allowed: bool) -> tuple[Path, tuple[WeightFile, ...]]:
    kind = path.lstat().st_mode
    if stat.S_ISLNK(kind):
        if not path.resolve().is_relative_to(reach(path.parent.resolve())) or path.is_dir():
            raise Rejected(f"{path} is a link to {os.readlink(path)}: state the path of the file or folder itself")
        kind = path.stat().st_mode
    if stat.S_ISDIR(kind):
        names = _names(path)
        files = tuple(_file(path, name, pickles_allowed) for name in names)
        if not files:
            raise Rejected(f"{path} is an empty folder: is it mounted?")
        return path, files
    if path.suffix != ".gguf":
        raise Rejected(f"{path} is no .gguf file: of weights in other formats state the model's folder")
    file = _file(path.parent, path.name, pickles_allowed)
    if _beginning(path)[0][:4] != b"GGUF":
        raise Rejected(f"{path} is not a GGUF file inside")
    return path.parent, (file,)


def _names(root: Path) -> list[str]:
    """Every file below a folder, relative to it."""
    found: list[str] = []
    for path in _below(root):
        found.append(str(path.relative_to(root)))
        if len(found) > _MAX_FILES:
            raise Rejected(f"{root} holds more than {_MAX_FILES} files: state the folder of one model")
    return sorted(found)


def _below(root: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=fail):
        for name in (*folders, *names):
            path = Path(folder, name)
            if path.is_symlink():
                _stays_inside(root, path)
            if name in names:
                yield path


def _stays_inside(root: Path, link: Path) -> None:
    target = link.resolve()
    if not target.is_relative_to(reach(root.resolve())):
        raise Rejected(f"{link} is a link out of the folder, to {target}: put the file itself there")
    if not target.exists():
        raise Rejected(f"{link} is a link to {target}, which is not there")


def _file(root: Path, name: str, pickles_allowed: bool) -> WeightFile:
    path = root / name
    beginning, size = _beginning(path)
    if not pickles_allowed and (named_pickle(name) or pickled(beginning)):
        what = "in a pickle format" if named_pickle(name) else "a pickle inside"
        raise Rejected(
            f"{path} is {what}, which runs code when it is loaded; "
            "use safetensors or GGUF, or say allow_pickle if you trust whoever made it"
        )
    return WeightFile(path=name, size_bytes=size, sha256="")


def _beginning(path: Path) -> tuple[bytes, int]:
    """Of a regular file, and its size. Anything else (a pipe, a device) is not opened for long enough to wait."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise Rejected(f"{path} is neither a file nor a folder")
        return os.read(descriptor, 16), about.st_size
    finally:
        os.close(descriptor)
