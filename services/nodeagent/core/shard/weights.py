"""Rules for weights, before a byte of them is fetched and after."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePosixPath

from libs.events.sources import on_machines
from libs.events.views import ShardWanted, WeightsWanted

_PICKLED = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})

_LONGEST_HEADER_BYTES = 100_000_000
"""Of a safetensors file, by its format."""

_HEX = frozenset("0123456789abcdef")


def refusal(weights: WeightsWanted, pickles_allowed: bool = False) -> str | None:
    """Why these weights are not fetched, or None."""
    for part in (weights.name, weights.version):
        if not _safe(part):
            return f"{part!r} cannot be the name of weights"
    if not weights.files:
        return f"{weights.name} {weights.version} lists no files"
    for file in weights.files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in file.path or "\\" in file.path:
            return f"the path {file.path!r} leads outside the model's folder"
        if len(file.sha256) != 64 or not set(file.sha256) <= _HEX:
            return f"{file.path}: {file.sha256!r} is not a SHA-256 in lower-case hex"
        if named_pickle(file.path) and not pickles_allowed:
            return (
                f"{file.path} is in a pickle format, which runs code when it is loaded; "
                "import the model as safetensors or GGUF, or say allow_pickle if you trust whoever made it"
            )
    return None


def named_pickle(path: str) -> bool:
    """Whether a file is in a pickle format by its name."""
    return PurePosixPath(path).suffix.lower() in _PICKLED


def used_by(wanted: ShardWanted) -> tuple[WeightsWanted, ...]:
    """All the weights of a shard, its fine-tunings' too."""
    own = (wanted.weights,) if wanted.weights is not None else ()
    return (*own, *(lora.weights for lora in wanted.loras))


def removal_refusal(
    name: str,
    version: str,
    *,
    running: Mapping[str, Collection[str]],
    wanted: Mapping[str, Collection[str]],
    fetching: Iterable[str],
) -> str | None:
    """Why a version's copy stays on the machine, or None.

    ``running``, ``wanted``: shard id to the weights it runs or is to run, ``NAME@VERSION``; ``fetching``: what is on
    its way here.
    """
    weights = f"{name}@{version}"
    if on_machines(name):
        return f"{weights.rstrip('@')} was not put on the machine by the agent: whoever did removes it there"
    for part in (name, version):
        if not _safe(part):
            return f"{part!r} cannot be the name of weights"
    for shard_id, used in running.items():
        if weights in used:
            return f"{shard_id} uses {weights}: stop its model first"
    for shard_id, used in wanted.items():
        if weights in used:
            return f"{shard_id} is to run {weights} here"
    if weights in fetching:
        return f"{weights} is being fetched"
    return None


def _safe(part: str) -> bool:
    return part not in ("", ".", "..") and "/" not in part and "\0" not in part


def pickled(beginning: bytes) -> bool:
    """Whether a file that begins like this is a pickle (or torch's zip of pickles), whatever its name says.

    Sixteen bytes are enough. A safetensors file begins with the length of its JSON header, which may look like a
    pickle's first two bytes: a header of 640 bytes does.
    """
    if beginning[:4] == b"PK\x03\x04":
        return True
    if beginning[8:9] == b"{" and int.from_bytes(beginning[:8], "little") <= _LONGEST_HEADER_BYTES:
        return False
    # The opcode PROTO and the protocol's number; protocols 0 and 1 have no beginning of their own.
    return len(beginning) > 1 and beginning[0] == 0x80 and 2 <= beginning[1] <= 5
