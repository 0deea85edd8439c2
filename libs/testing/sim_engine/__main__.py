"""``python -m libs.testing.sim_engine``: options, and the process's start and end."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

import msgspec
import uvloop

from .behaviour import Behaviour
from .engine import Engine
from .http import Connection, Site

KEY_VARIABLE = "LLMGW_ENGINE_KEY"
VERSION = "sim-1"


def options() -> argparse.ArgumentParser:
    """Its command line. Every field of Behaviour is an option too."""
    parser = argparse.ArgumentParser(
        prog="sim_engine", description="A simulated engine.", epilog=f"API key: environment variable {KEY_VARIABLE}."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="sim", help="the model name it answers to")
    parser.add_argument("--lora", action="append", default=[], help="another name it answers to, as of an adapter")
    parser.add_argument("--parallel", type=int, default=256, help="answers generated at once; more wait")
    parser.add_argument("--context-length", type=int, default=32768, help="tokens of prompt and answer together")
    parser.add_argument("--kv-tokens", type=int, default=131072, help="what vllm:kv_cache_usage_perc is a part of")
    parser.add_argument("--load-s", type=float, default=0.0, help="time until it is healthy; 503 until then")
    for field in msgspec.structs.fields(Behaviour):
        flag = "--" + field.name.replace("_", "-")
        if field.type is bool:
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=float if field.type is float else int, default=field.default)
    return parser


async def serve(chosen: argparse.Namespace, key: str | None) -> None:
    """Serve until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    behaviour = Behaviour(**{name: getattr(chosen, name) for name in Behaviour.__struct_fields__})
    engine = Engine(behaviour, chosen.parallel, chosen.kv_tokens)
    site = Site(engine, chosen.model, key, chosen.context_length, VERSION, chosen.load_s <= 0, tuple(chosen.lora))
    if not site.loaded:
        loop.call_later(chosen.load_s, setattr, site, "loaded", True)
    server = await loop.create_server(lambda: Connection(site), chosen.host, chosen.port, backlog=1024)
    asked_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop.set)
    sys.stderr.write(f"sim engine serves {chosen.model} on {chosen.host}:{chosen.port}\n")
    sys.stderr.flush()
    await asked_to_stop.wait()
    server.close()


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    uvloop.run(serve(options().parse_args(), os.environ.get(KEY_VARIABLE) or None))


if __name__ == "__main__":
    main()
