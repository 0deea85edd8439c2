"""What a version must hold so that an engine can load it: one model, with all its parts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from .manifest import MAX_FILES

_PART = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<kind>\.gguf|\.safetensors)$")
NAMED = 8
"""Models listed of a folder that holds many."""


def parts_of(path: str) -> list[str]:
    """The paths of all parts of a model of which ``path`` is one; itself where it is not a part."""
    part = _PART.match(path)
    if part is None or not 1 <= int(part["count"]) <= MAX_FILES:
        return [path]
    numbers = range(1, int(part["count"]) + 1)
    return [f"{part['stem']}-{number:05}-of-{part['count']}{part['kind']}" for number in numbers]


def is_projector(path: str) -> bool:
    """A GGUF file with what turns images into tokens: it goes beside a model."""
    return "mmproj" in PurePosixPath(path).name.lower()


def problem(sizes: Mapping[str, int], source: str) -> str | None:
    """Why no engine could load these files (path to size), and what to do, or None. ``source``: the path that was
    given, for the advice."""
    models: dict[str, int] = {}
    """Of GGUF, by their first part: how long all parts are."""
    seen: set[str] = set()
    projector = ""
    for path in sorted(sizes):
        if path in seen:
            continue
        every = parts_of(path)
        seen.update(every)
        if missing := [part for part in every if part not in sizes]:
            lacks = f"{missing[0]} is missing" if len(missing) == 1 else f"{missing[0]} and {len(missing) - 1} more are"
            end = "" if len(missing) == 1 else " missing"
            return f"{lacks}{end} of {len(every)} parts: put what is missing beside them, or fetch the model again"
        if not path.endswith(".gguf"):
            continue
        if is_projector(path):
            projector = path
        else:
            models[every[0]] = sum(sizes[part] for part in every)
    if projector and not models:
        return f"{projector} is a projector and its model is not there: put the model's GGUF file beside it"
    if len(models) > 1:
        return _several(models, source)
    return None


def _several(models: Mapping[str, int], source: str) -> str:
    listed = ", ".join(f"{path} ({size / 1e9:.1f} GB)" for path, size in list(models.items())[:NAMED])
    more = ", …" if len(models) > NAMED else ""
    example = f"path:{source.rstrip('/')}/{next(iter(models))}"
    return (
        f"it holds {len(models)} models: {listed}{more}: import one by its file, as {example} (of parts, any of them)"
    )
