"""What a profile may not pass to an engine: what the agent sets itself, and what opens a file or a door.

The node checks again, against what its engine takes; here it is said early, and with everything else that is
wrong with a definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

AGENT = "the agent sets it"
FILE = "it reads or writes a file"
FETCH = "it fetches from elsewhere"
SECRET = "it is a credential"
DOOR = "it opens what only the agent may open"
STATED = "it is stated in the definition"

_ANY: dict[str, str] = {
    "--host": AGENT,
    "--port": AGENT,
    "--api-key": SECRET,
    "--api-key-file": SECRET,
    "--log-file": FILE,
    "--trust-remote-code": "it runs code that comes with the weights",
}

_LLAMACPP: dict[str, str] = {
    "--model": AGENT, "-m": AGENT, "--alias": AGENT, "-a": AGENT, "--metrics": AGENT, "--slots": AGENT,
    "--ctx-size": f"{STATED} (context_length)", "-c": f"{STATED} (context_length)",
    "--parallel": f"{STATED} (parallel)", "-np": f"{STATED} (parallel)",
    "--threads": f"{STATED} (cores)", "-t": f"{STATED} (cores)",
    "--device": AGENT, "-dev": AGENT, "--main-gpu": AGENT, "-mg": AGENT,
    "--model-url": FETCH, "-mu": FETCH, "--hf-repo": FETCH, "-hf": FETCH, "-hfr": FETCH, "--hf-file": FETCH,
    "-hff": FETCH, "--hf-repo-draft": FETCH, "-hfd": FETCH, "-hfrd": FETCH, "--hf-repo-v": FETCH, "-hfv": FETCH,
    "-hfrv": FETCH, "--hf-file-v": FETCH, "-hffv": FETCH, "--mmproj-url": FETCH, "-mmu": FETCH,
    "--docker-repo": FETCH, "-dr": FETCH, "--hf-token": SECRET, "-hft": SECRET,
    "--model-draft": FILE, "-md": FILE, "--model-vocoder": FILE, "-mv": FILE, "--mmproj": FILE, "-mm": FILE,
    "--lora": FILE, "--lora-scaled": FILE, "--control-vector": FILE, "--control-vector-scaled": FILE,
    "--grammar-file": FILE, "--json-schema-file": FILE, "-jf": FILE, "--chat-template-file": FILE, "--file": FILE,
    "-f": FILE, "--binary-file": FILE, "-bf": FILE, "--prompt-cache": FILE, "--slot-save-path": FILE,
    "--logdir": FILE, "--path": FILE, "--models-dir": FILE, "--models-preset": FILE, "--media-path": FILE,
    "--lookup-cache-static": FILE, "-lcs": FILE, "--lookup-cache-dynamic": FILE, "-lcd": FILE,
    "--ssl-key-file": SECRET, "--ssl-cert-file": SECRET, "--rpc": DOOR, "--props": DOOR, "--tools": DOOR,
    "--api-prefix": DOOR,
}  # fmt: skip

_SIM: dict[str, str] = {"--model": AGENT, "--parallel": f"{STATED} (parallel)"}

_REFUSED: dict[str, dict[str, str]] = {"llamacpp": _LLAMACPP, "sim": _SIM}

_FAMILIES = ("CUDA_", "NCCL_", "VLLM_", "SGLANG_", "PYTORCH_", "TORCH_", "GGML_", "LLAMA_", "OMP_", "GOMP_", "KMP_",
             "MKL_", "OPENBLAS_", "SIM_")  # fmt: skip
_OPENS = frozenset({
    "PATH", "DIR", "DIRS", "FILE", "FILES", "HOME", "PLUGIN", "PLUGINS", "LIB", "LIBRARY", "LIBRARIES", "PRELOAD",
    "LOAD", "MODULE", "ADDR", "ADDRESS", "HOST", "URL", "URI", "ENDPOINT", "PORT", "SOCKET", "IFNAME", "KEY",
    "KEYS", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "CREDENTIALS", "CONFIG", "CACHE", "LOG", "DUMP", "ROOT",
    "DEVICES", "ORDER", "EXECUTABLE",
})  # fmt: skip


def argument_problem(engine: str, argument: str) -> str | None:
    """Why one argument is refused, or None. Spelt as the engine reads it: ``--a_b`` is ``--a-b``."""
    name = argument.partition("=")[0]
    if not name.startswith("-") or _is_number(name):
        return None
    if name.startswith("--"):
        name = "--" + name[2:].replace("_", "-")
    why = _REFUSED.get(engine, {}).get(name) or _ANY.get(name)
    return f"the option {name} may not be set in a profile: {why}; leave it out" if why else None


def _is_number(text: str) -> bool:
    return text[1:2].isdigit() or text[1:2] == "."


def argument_problems(engine: str, args: Sequence[str]) -> dict[int, str]:
    """Index of each refused argument to the reason."""
    return {i: why for i, argument in enumerate(args) if (why := argument_problem(engine, argument)) is not None}


def environment_problems(engine: str, env: Mapping[str, str]) -> dict[str, str]:
    """Name of each refused variable to the reason."""
    found = {}
    for name, value in env.items():
        opens = next((word for word in name.split("_") if word in _OPENS), None)
        if name.startswith("LLAMA_ARG_"):
            flag = "--" + name.removeprefix("LLAMA_ARG_").lower().replace("_", "-")
            found[name] = f"it is the option {flag} in another spelling; put it under args"
        elif not name.startswith(_FAMILIES):
            found[name] = f"only variables that tune an engine may be set: {', '.join(f'{f}*' for f in _FAMILIES)}"
        elif opens is not None:
            found[name] = f"it names a place, a device or a credential ({opens}), which a profile may not set"
        elif "\0" in value or "\n" in value:
            found[name] = "its value has a line break or a zero byte in it"
    return found
