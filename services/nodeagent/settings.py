"""Settings of the node agent."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from libs.engines import ENGINES, EngineName, ForeignEngineName
from libs.runtime.settings import CommonSettings
from libs.simulated_machines import SimulatedMachine


def _meaning(text: str) -> Meta:
    return Meta(description=text)


class NodeAgentSettings(CommonSettings, frozen=True, kw_only=True):
    """What one agent goes by."""

    machine_id: Annotated[str, Meta(min_length=1, description="What this machine is called in the cluster.")] = (
        msgspec.field(default_factory=socket.gethostname)
    )
    address: Annotated[
        str | None,
        _meaning("Where gateways reach the engines on this machine; none: the address on its route to the bus."),
    ] = None
    labels: Annotated[dict[str, str], _meaning("Labels that models' node selectors are compared with.")] = {}
    engines: Annotated[
        tuple[EngineName, ...],
        _meaning("Engines to look for. sim answers without a model: for tests and simulated machines."),
    ] = tuple(ENGINES)
    llama_server: Annotated[
        Path | None,
        _meaning("A llama-server program to run for llamacpp; none: the server in the xllamacpp package."),
    ] = None
    engine_programs: Annotated[
        dict[ForeignEngineName, Path],
        _meaning("Engines somebody installed: vllm: its command, trtllm: its trtllm-serve, sglang: the python it is "
                 "installed for, comfyui: its main.py (with its environment in venv or .venv beside it). They are not "
                 "run to ask their version."),
    ] = {}  # fmt: skip
    engines_dir: Annotated[
        Path | None,
        _meaning("Where engines' own environments are, ENGINE-VERSION each; none: engines in the data folder."),
    ] = None
    fabrics: Annotated[
        dict[str, tuple[str, ...]],
        _meaning("What the networks between machines are called, each with this machine's adapters on it: "
                 "{ib-a: [mlx5_0, mlx5_1]}. Which of them really are one network is measured."),
    ] = {}  # fmt: skip
    hf_endpoint: Annotated[
        str,
        _meaning("Where sources hf:ORG/NAME@COMMIT are fetched from: the Hugging Face hub, or a copy of it."),
    ] = "https://huggingface.co"
    hf_token_file: Annotated[
        Path | None,
        _meaning("File with the token for hf_endpoint, for repositories that need one; it goes to no other host."),
    ] = None
    dcgm_exporter: Annotated[
        str | None,
        _meaning("Where a dcgm-exporter answers, asked about cards that do not tell themselves how much of the chip "
                 "is used (before Hopper); null: none is asked."),
    ] = "http://127.0.0.1:9400/metrics"  # fmt: skip
    measure_memory: Annotated[
        bool,
        _meaning("Measure minutes after the start, and every hour, how fast memory is read: it takes every core for "
                 "some tenths of a second."),
    ] = True  # fmt: skip
    stop_grace_s: Annotated[
        float, Meta(ge=0, description="How long an engine may take to end after TERM before it is killed, in seconds.")
    ] = 10.0
    stuck_after_s: Annotated[
        float,
        Meta(
            gt=0, description="An engine that has requests and makes no progress for so long is given up, in seconds."
        ),
    ] = 100.0
    sample_every_s: Annotated[
        float, Meta(gt=0, description="Time between two measurements sent to the cluster, in seconds.")
    ] = 2.0
    simulated: Annotated[
        SimulatedMachine | None,
        _meaning("Invented hardware for this agent: cores, memory_mb, gpus (class, memory_mb, count …), fabrics and "
                 "faults on a timeline; only the sim engine runs on it. Several such agents run on one host, each with "
                 "a machine_id and a data_dir."),
    ] = None  # fmt: skip
    fleet: Annotated[
        Path | None,
        _meaning("File of invented machines: this process runs an agent for each of them, with files below data_dir. "
                 "Where the bus asks who is there, the credentials of each are beside this agent's own."),
    ] = None  # fmt: skip
