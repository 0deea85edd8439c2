"""Runs llama.cpp's HTTP server from the ``xllamacpp`` package, with the options of ``llama-server``.

The API key comes in the environment (``LLAMA_API_KEY``), as for the program itself. ``--probe`` loads the library,
prints its version as JSON and ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

from libs.engines import Option
from libs.engines.llamacpp import OPTIONS


def parser() -> argparse.ArgumentParser:
    """The options of ``llama-server`` that this launcher takes."""
    options = argparse.ArgumentParser(prog="llamacpp_launcher", allow_abbrev=False)
    options.add_argument("--probe", action="store_true")
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=8080)
    options.add_argument("--model", default="")
    options.add_argument("--alias", default="model")
    options.add_argument("--ctx-size", type=int, default=4096)
    options.add_argument("--parallel", type=int, default=1)
    options.add_argument("--threads", type=int, default=1)
    for always in ("--metrics", "--no-slots", "--no-webui"):
        options.add_argument(always, action="store_true")
    for flag in OPTIONS:
        if flag.takes_value:
            options.add_argument(*flag.names, dest=flag.parameter, type=int if flag.kind == "int" else str)
        else:
            options.add_argument(*flag.names, dest=flag.parameter, action="store_true")
    return options


def value_of(flag: Option, given: Any, library: Any) -> Any:
    """What a flag's text is for the library. Raises ValueError."""
    if flag.kind in ("int", "str"):
        return given
    if flag.kind in ("on", "off"):
        return flag.kind == "on"
    if flag.kind == "flash":
        known = {"on": "ENABLED", "1": "ENABLED", "off": "DISABLED", "0": "DISABLED", "auto": "AUTO", "-1": "AUTO"}
        kind, prefix, name = library.llama_flash_attn_type, "LLAMA_FLASH_ATTN_TYPE_", known.get(given)
    elif flag.kind == "pooling":
        kind, prefix, name = library.llama_pooling_type, "LLAMA_POOLING_TYPE_", given.upper()
    else:
        kind, prefix, name = library.ggml_type, "GGML_TYPE_", given.upper()
    value = getattr(kind, f"{prefix}{name}", None)
    if value is None:
        raise ValueError(f"{flag.names[0]}: {given!r} is not known")
    return value


def parameters(options: argparse.Namespace, library: Any, key: str | None) -> Any:
    """The server's parameters."""
    params = library.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.ctx_size
    params.n_parallel = options.parallel
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.endpoint_metrics = True
    # Shows the prompts of others.
    params.endpoint_slots = False
    params.ui = False
    # Its download of models is no part of this: weights are here, and checked.
    params.offline = True
    # Where layers go is said at this level and above; what people ask is not.
    params.verbosity = 4
    if key:
        params.api_keys = [key]
    for flag in OPTIONS:
        given = getattr(options, flag.parameter)
        if given is not None and given is not False:
            setattr(params, flag.parameter, value_of(flag, given, library))
    return params


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal comes; the exit status when it cannot."""
    options = parser().parse_args(arguments)
    key = os.environ.pop("LLAMA_API_KEY", None)
    try:
        import xllamacpp
    except ImportError as error:
        print(f"xllamacpp cannot be loaded: {error}", file=sys.stderr)  # noqa: T201 - its output is an engine's output
        return 1
    if options.probe:
        xllamacpp.CommonParams()
        print(f'{{"version": "{xllamacpp.__version__}"}}')  # noqa: T201 - the answer to the probe
        return 0
    try:
        server = xllamacpp.Server(parameters(options, xllamacpp, key))
    except Exception as error:
        print(f"the server did not start: {error}", file=sys.stderr)  # noqa: T201 - as above
        return 1
    print(f"serving on {server.listening_address}", file=sys.stderr, flush=True)  # noqa: T201 - as above
    # The server works in threads of its own; TERM ends the process at once, as it ends llama-server.
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
