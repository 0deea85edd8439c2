"""What an engine's last output means, in a sentence a person can act on.

Only fixed sentences and figures leave this module, never a line of output: it may hold prompts, and the
reason of a failure goes to the lasting log.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

_KNOWN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), sentence)
    for pattern, sentence in (
        (r"cuda(?:malloc)?[^\n]*out of memory|CUDA_ERROR_OUT_OF_MEMORY", "its GPU had too little free memory"),
        (r"no available memory for the cache blocks", "no GPU memory was left for its cache: lower the context length"),
        (
            r"kv cache[^\n]*larger than the available",
            "its context does not fit the GPU memory: lower the context length",
        ),
        (
            r"failed to allocate|unable to allocate|std::bad_alloc|cannot allocate memory|MemoryError",
            "it could not get the memory it asked for",
        ),
        (
            r"unknown model architecture: '(?P<what>[A-Za-z0-9_.-]{1,40})'",
            "this version does not know the architecture {what}",
        ),
        (r"invalid magic|not a gguf|failed to read magic|bad magic", "its weights are not a GGUF file"),
        (
            r"tensor '[^']{1,80}' data is not within|file bounds|unexpectedly reached end of file",
            "its weights are cut short",
        ),
        (
            r"address already in use|couldn't bind|could not bind|failed to bind",
            "its port was taken by another program",
        ),
        (r"failed to load model|error loading model|unable to load model", "it could not load its weights"),
        (r"no such file or directory|cannot open shared object", "a file it needs is missing"),
        (r"no module named '(?P<what>[A-Za-z0-9_.]{1,60})'", "the Python module {what} is not installed"),
        (r"illegal instruction", "it was built for a newer CPU than this machine has"),
        (r"nccl error|ncclSystemError|ncclInternalError", "its GPUs could not talk to each other (NCCL)"),
        (
            r"unrecognized arguments|error: argument|invalid argument|unknown option",
            "it does not know one of its options",
        ),
    )
)

PORT_TAKEN = "its port was taken by another program"


def recognised(lines: Iterable[str]) -> str | None:
    """The first known trouble in ``lines`` as a sentence part, or None. Earlier troubles cause the later ones."""
    text = "\n".join(lines)
    matches: list[tuple[int, str]] = []
    for pattern, sentence in _KNOWN:
        match = pattern.search(text)
        if match is not None:
            matches.append((match.start(), sentence.format(**match.groupdict())))
    # The general sentence for a failed load follows its particular cause and says less.
    particular = [entry for entry in matches if entry[1] != "it could not load its weights"]
    return min(particular or matches)[1] if matches else None


def ended(exit_code: int | None) -> str:
    """How a process ended. ``exit_code`` below zero is a signal, None when it was not ours to wait for."""
    if exit_code is None:
        return "the engine is gone"
    if exit_code >= 0:
        return f"the engine ended by itself with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    if name == "SIGKILL":
        return "the engine was killed (SIGKILL), by hand or by the kernel for want of memory"
    if name == "SIGILL":
        return "the engine was stopped by an illegal instruction (SIGILL): it was built for a newer CPU"
    return f"the engine was ended by {name}"


def death(exit_code: int | None, lines: Iterable[str], when: str) -> str:
    """The reason of a failure: how it ended, when, and what its output says about why."""
    why = recognised(lines)
    sentence = f"{ended(exit_code)} {when}"
    return f"{sentence}: {why}" if why else f"{sentence}; its last output lines are on the node (llmgw shard logs)"
