"""What the parent hands to a worker process it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from services.gateway.adapters.shared_tables import HostTables
from services.gateway.settings import GatewaySettings

VARIABLE = "LLMGW_WORKER"
"""The variable an Inheritance is in, as JSON. Not on the command line: settings may name secrets."""


class Inheritance(msgspec.Struct):
    """One worker's settings, its place among the workers, and the descriptors it inherits."""

    settings: GatewaySettings
    index: int
    """Which of the workers it is, from 0."""
    host_tables: HostTables
    listening_fd: int
    balance_fd: int
    """Memory of ``http.connection_balance``."""
    control_fd: int
    """One end of a socket pair: the worker writes why it is not ready, and reads the parent's end."""


def encode(inheritance: Inheritance) -> str:
    """JSON, for the variable."""
    return msgspec.json.encode(inheritance, enc_hook=str).decode()


def decode(text: str) -> Inheritance:
    """Of what ``encode`` gave. Raises msgspec.DecodeError."""
    return msgspec.json.decode(text, type=Inheritance, dec_hook=_path)


def _path(kind: type, value: Any) -> Any:
    return kind(value) if issubclass(kind, Path) else value
