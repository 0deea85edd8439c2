"""Files that run code when they are loaded, and archives that may hold such: neither enters the library."""

from __future__ import annotations

import pickletools
from pathlib import PurePosixPath

HEAD_BYTES = 64 * 1024
"""What is looked at of a file: its beginning."""

_BY_NAME: dict[str, str] = dict.fromkeys(
    (".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".bin"), "PyTorch's pickle format"
) | {
    ".joblib": "a pickle",
    ".dill": "a pickle",
    ".cloudpickle": "a pickle",
    ".npz": "an archive that may hold pickles",
    ".nemo": "an archive that holds pickles",
    ".mar": "an archive that holds code",
}

_BY_CONTENT: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip archive, as PyTorch writes its pickles"),
    (b"PK\x05\x06", "a zip archive"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
)
_TAR_MAGIC = slice(257, 262)
_PROTOCOLS = (b"\x02", b"\x03", b"\x04", b"\x05")
_CALLS = frozenset({"GLOBAL", "STACK_GLOBAL", "INST", "REDUCE", "OBJ", "NEWOBJ", "BUILD"})
"""Opcodes with which a pickle makes things other than plain values."""

ADVICE = "import the model as safetensors or GGUF"


def unsafe_name(path: str) -> str | None:
    """Why a file with this name is refused, or None."""
    kind = _BY_NAME.get(PurePosixPath(path).suffix.lower())
    return f"{path} is {kind}: {ADVICE}" if kind else None


def unsafe_content(path: str, head: bytes) -> str | None:
    """Why a file that begins like this is refused whatever its name says, or None. Nothing of it is run."""
    for magic, kind in _BY_CONTENT:
        if head.startswith(magic):
            return f"{path} is {kind}, whatever its name says: unpack it, or {ADVICE}"
    if head[_TAR_MAGIC] == b"ustar":
        return f"{path} is a tar archive, whatever its name says: unpack it, or {ADVICE}"
    if _is_pickle(head):
        return f"{path} is a Python pickle, which runs code when it is loaded: {ADVICE}"
    return None


def _is_pickle(head: bytes) -> bool:
    """Whether a pickle machine would get anywhere with it.

    The two bytes protocols 2 to 5 begin with are not enough: a safetensors file whose header is 640 bytes long begins
    with them too. Protocols 0 and 1 have no such bytes, so there it must read as opcodes to its end.
    """
    seen: set[str] = set()
    count = 0
    whole = False
    try:
        for opcode, _, _ in pickletools.genops(head):
            seen.add(opcode.name)
            count += 1
            whole = opcode.name == "STOP"
    except Exception:
        whole = whole or len(head) >= HEAD_BYTES
    if head[:1] == b"\x80" and head[1:2] in _PROTOCOLS:
        return count > 2 or whole or bool(seen & _CALLS)
    return whole and len(seen & _CALLS) > 0 and count > 2
