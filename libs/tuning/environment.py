"""Variables a profile may set for an engine: families of tuning, less what names a place, a door or a credential."""

from __future__ import annotations

import re
from collections.abc import Mapping

from libs.engines import ENGINES

from .arguments import argument_problem

_ENGINES = tuple(traits.variables for traits in ENGINES.values())

FAMILIES = (
    *("CUDA_", "NCCL_", "NVTE_", "GLOO_", "UCX_", "TORCH_", "PYTORCH_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
    *("TRITON_", "FLASHINFER_"),
    *(family for variables in _ENGINES for family in variables.families),
)

_EXACT = frozenset({"TOKENIZERS_PARALLELISM", "NVIDIA_TF32_OVERRIDE", "PYTHONHASHSEED", "TZ", "MALLOC_ARENA_MAX"})

_AGENTS = frozenset({
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX",
    "NCCL_MNNVL_ENABLE", "GLOO_SOCKET_IFNAME", "NCCL_COMM_ID",
    *(name for variables in _ENGINES for name in variables.ours),
    *(traits.key_variable for traits in ENGINES.values() if traits.key_variable),
})  # fmt: skip

_OPENS = frozenset({
    "PATH", "PATHS", "DIR", "DIRS", "DIRECTORY", "FILE", "FILES", "FOLDER", "HOME", "ROOT", "CACHE", "CONFIG",
    "CONF", "PLUGIN", "PLUGINS", "LIB", "LIBS", "LIBRARY", "LIBRARIES", "PRELOAD", "LOAD", "MODULE", "MODULES",
    "PACKAGE", "PACKAGES", "EXTERNAL", "PYTHON", "EXECUTABLE", "EXEC", "SCRIPT", "COMMAND", "CMD", "INJECTION",
    "INJECTION64", "OVERRIDE", "ADDR", "ADDRESS", "HOST", "HOSTNAME", "URL", "URI", "ENDPOINT", "PORT", "PORTS", "IP",
    "SOCKET", "PIPE", "IFNAME", "HCA", "REMOTE", "MODELSCOPE", "HUB", "KEY", "KEYS", "TOKEN", "SECRET", "PASSWORD",
    "CREDENTIAL", "CREDENTIALS", "ARG", "DEVICES", "DEVICE", "ORDER", "LOG", "LOGS", "DUMP", "DUMPER", "TRACE",
    "PROFILER", "DEV", "ALLOW", "INSECURE", "UNSAFE", "TRUST", "SERIALIZATION", "PICKLE", "SERVER", "TOOL", "SO",
    "REPO", "REPOS", "RESOLVER",
})  # fmt: skip
"""Words of a name, between underscores."""

_ENDINGS = ("PATH", "DIR", "FILE", "URL", "TOKEN", "SECRET", "PLUGIN")
"""Of a word, for names written without the underscore."""

_HARMLESS = frozenset({
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "NCCL_DEBUG_SUBSYS", "CUDA_DEVICE_MAX_CONNECTIONS",
    "NCCL_IB_TC", "NCCL_IB_TIMEOUT", "TRITON_CACHE_AUTOTUNING",
    *(name for variables in _ENGINES for name in variables.harmless),
})  # fmt: skip
"""Looked at, whatever a word in them suggests."""

_NAME = re.compile(r"^[A-Z][A-Z0-9_]*\Z")


def environment_problem(engine: str, name: str, value: str) -> str | None:
    """Why one variable is refused, or None."""
    prefix = next((row.options_as for row in _ENGINES if row.options_as and name.startswith(row.options_as)), None)
    if prefix is not None:
        flag = "--" + name.removeprefix(prefix).lower().replace("_", "-")
        why = argument_problem(engine, flag)
        return f"it is the option {flag} in another spelling" + (f" ({why})" if why else "") + "; put it under args"
    if _NAME.match(name) is None:
        return "it is not the name of a variable engines are tuned with (A-Z, 0-9 and _)"
    if "\0" in value or "\n" in value or "\r" in value:
        return "its value has a line break or a zero byte in it"
    if name in _HARMLESS or name in _EXACT:
        return None
    if name in _AGENTS:
        return "the agent sets it"
    if not name.startswith(FAMILIES):
        return f"only variables that tune an engine may be set: {', '.join(f'{family}*' for family in FAMILIES)}"
    for word in name.split("_"):
        if word in _OPENS or (len(word) > 4 and word.endswith(_ENDINGS)):
            return f"it names a place, a device, a credential or code ({word}), which a profile may not set"
    return None


def environment_problems(engine: str, env: Mapping[str, str]) -> dict[str, str]:
    """Name of each refused variable to the reason."""
    return {name: why for name, value in env.items() if (why := environment_problem(engine, name, value)) is not None}
