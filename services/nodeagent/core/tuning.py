"""What people may pass to an engine through a profile: tuning, and nothing that opens a file or a door.

The same rules hold in the catalog and here; a node checks again because a profile reaches it over the bus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

_FAMILIES = ("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "GGML_", "LLAMA_", "CUDA_", "NCCL_", "VLLM_", "SGLANG_",
             "PYTORCH_", "TORCH_", "SIM_")  # fmt: skip
_FORBIDDEN_WORDS = frozenset(
    (
        *("PATH", "DIR", "DIRS", "FILE", "FILES", "HOME", "ROOT", "CACHE", "CONFIG", "LOG", "DUMP"),
        *("PLUGIN", "PLUGINS", "LIB", "LIBRARY", "LIBRARIES", "PRELOAD", "LOAD", "MODULE", "PYTHON", "EXECUTABLE"),
        *("ADDR", "ADDRESS", "HOST", "HOSTNAME", "URL", "URI", "ENDPOINT", "PORT", "IP", "SOCKET", "IFNAME"),
        *("KEY", "KEYS", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "CREDENTIALS", "ARG", "DEVICES", "ORDER"),
    )
)


class Flag(msgspec.Struct, frozen=True):
    """A tuning flag an engine takes from a profile."""

    names: tuple[str, ...]
    """Every spelling, the long one first; ``_`` in an argument is read as ``-``."""
    takes_value: bool = True


def environment_refusal(env: Mapping[str, str]) -> str | None:
    """Why a profile's environment is refused, naming the variable, or None."""
    for name, value in env.items():
        if not name.startswith(_FAMILIES):
            return (
                f"the environment variable {name} is not one an engine may be tuned with "
                f"(allowed beginnings: {', '.join(_FAMILIES)})"
            )
        word = next((word for word in name.split("_") if word in _FORBIDDEN_WORDS), None)
        if word is not None:
            return (
                f"the environment variable {name} names a place, a device or a credential ({word}), "
                "which a profile may not set"
            )
        if "\0" in value or "\n" in value:
            return f"the value of the environment variable {name} has a line break or a zero byte in it"
    return None


def arguments_refusal(args: Sequence[str], flags: Sequence[Flag]) -> str | None:
    """Why a profile's arguments are refused, naming the argument, or None.

    ``flags`` is the allow-list: an engine has hundreds of options, new ones with each version, and those that
    read files, open ports or take keys cannot all be known.
    """
    known = {name: flag for flag in flags for name in flag.names}
    rest = list(args)
    while rest:
        argument = rest.pop(0)
        name, equals, _ = argument.partition("=")
        spelt = name.replace("_", "-") if name.startswith("--") else name
        if not argument.startswith("-"):
            return f"the argument {argument!r} belongs to no option"
        flag = known.get(spelt)
        if flag is None:
            return (
                f"the option {name} may not be set in a profile; these may: "
                f"{', '.join(sorted(flag.names[0] for flag in flags))}"
            )
        if flag.takes_value and not equals:
            if not rest:
                return f"the option {name} lacks its value"
            rest.pop(0)
        if not flag.takes_value and equals:
            return f"the option {name} takes no value"
    return None
