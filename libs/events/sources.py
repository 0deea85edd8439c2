"""Where a model's weights come from, as its definition says it.

``library:NAME[@VERSION]``: kept by the mirrors. ``file:/PATH``: a GGUF file or a model's folder that is on the machines
already (a shared filesystem, say). ``hf:ORG/NAME@COMMIT[:FILE]``: one commit of a repository of the Hugging Face hub,
all of its safetensors or the GGUF file that is named.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

LIBRARY = re.compile(r"^library:[a-z0-9][a-z0-9._-]{0,62}(@[A-Za-z0-9][A-Za-z0-9._-]{0,62})?\Z")

FILE = "file:"
HUB = "hf:"

FORMS = "library:NAME[@VERSION], file:/PATH or hf:ORG/NAME@COMMIT[:FILE]"

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_GGUF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)*\.gguf")


class HubSource(NamedTuple):
    repository: str
    """``ORG/NAME``."""
    commit: str
    file: str
    """The GGUF file of it that is wanted; empty: its safetensors."""


def of_library(source: str) -> bool:
    """Whether the library has it; else each machine finds it by itself."""
    return not source.startswith((FILE, HUB))


def on_machines(source: str) -> bool:
    """Whether somebody put it on the machines, who also removes it there."""
    return source.startswith(FILE)


def path_of(source: str) -> PurePosixPath:
    """The path of a ``file:`` source."""
    return PurePosixPath(source.removeprefix(FILE))


def hub_source(source: str) -> HubSource | None:
    """The parts of a right ``hf:`` source; None for any other text."""
    repository, _, rest = source.removeprefix(HUB).partition("@")
    commit, colon, file = rest.partition(":")
    right = source.startswith(HUB) and _REPOSITORY.fullmatch(repository) and "--" not in repository
    if not right or not _COMMIT.fullmatch(commit) or (colon and not _GGUF.fullmatch(file)):
        return None
    return HubSource(repository, commit, file)


def kept_as(source: str) -> str:
    """``NAME@VERSION`` under which a machine keeps what it fetched: no library's name has capital letters.

    Other sources, and names in the library, as they are.
    """
    hub = hub_source(source)
    if hub is None:
        return source
    file = f"-{hub.file.replace('/', '--')}" if hub.file else ""
    return f"HF--{hub.repository.replace('/', '--')}@{hub.commit}{file}"


def source_problem(source: str) -> str | None:
    """What is wrong with a source by its form, or None."""
    if source.startswith(HUB):
        return _hub_problem(source)
    if not source.startswith(FILE):
        return None if LIBRARY.match(source) else f"{source!r} is not {FORMS}"
    path = path_of(source)
    if not path.is_absolute() or ".." in path.parts or not path.name or source != f"{FILE}{path}":
        return f"{source!r} is not file: and an absolute path without '..', like file:/mnt/models/mistral-7b"
    if not source.isprintable():
        return f"{source!r} holds a control character: rename the file"
    return None


def _hub_problem(source: str) -> str | None:
    if hub_source(source) is not None:
        return None
    repository, _, rest = source.removeprefix(HUB).partition("@")
    commit = rest.partition(":")[0]
    if _REPOSITORY.fullmatch(repository) and not _COMMIT.fullmatch(commit):
        named = f"{commit!r}, which may mean other weights tomorrow," if commit else "no commit"
        return (
            f"{source!r} names {named}: state hf:{repository}@COMMIT with the 40 hex digits that "
            f"`git ls-remote https://huggingface.co/{repository}` shows"
        )
    return f"{source!r} is not hf:ORG/NAME@COMMIT, or hf:ORG/NAME@COMMIT:FILE.gguf"
