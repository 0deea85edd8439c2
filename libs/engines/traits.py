"""What llmgw must know of an engine to accept a profile for it, place it and start it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .refused import ANY

Format = Literal["gguf", "safetensors"]


@dataclass(frozen=True)
class Option:
    """An option that a program of ours takes from a profile."""

    names: tuple[str, ...]
    """Every spelling, the long one first; ``_`` in an argument is read as ``-``."""
    takes_value: bool = True
    parameter: str = ""
    """Of llama.cpp: the field of the server's parameters it sets."""
    kind: str = "int"


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Which options an engine has, and which of them a profile may set."""

    refused: Mapping[str, str] = field(default_factory=lambda: ANY)
    """Option to the reason why no profile sets it. An empty reason: harmless, whatever a word in it suggests."""
    refused_by_word: tuple[str, ...] = ()
    """Options that only a word in their name refuses, listed so that their beginnings are refused as well."""
    abbreviates: bool = False
    """It reads options with Python's argparse: any unambiguous beginning of a long option stands for it."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    """Beginnings of arguments that mean another option, to that option."""
    options: tuple[Option, ...] | None = None
    """Of a program of ours: all it takes from a profile."""
    other_programs: bool = False
    """Settings may name a program in place of ours, which knows more options."""
    recorded: tuple[str, ...] | None = None
    """Of others' programs: every option of ``version``."""
    version: str | None = None
    whole_inputs: frozenset[str] = frozenset()
    """Options with which it makes vectors, and reads each input in one physical batch."""
    of_memory: tuple[str, ...] = ()
    """Beginnings of options that change what it keeps in memory."""
    of_context: tuple[str, ...] = ()
    """Beginnings of options that change how long a context the model sees."""


@dataclass(frozen=True, kw_only=True)
class Variables:
    """Environment variables of an engine."""

    families: tuple[str, ...] = ()
    """Beginnings of those that tune it."""
    ours: tuple[str, ...] = ()
    """Those the agent sets, which a profile may not."""
    harmless: tuple[str, ...] = ()
    """Those a profile may set although a word in their name suggests a place, a door or a credential."""
    options_as: str | None = None
    """Beginning of variables that are options in another spelling."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """One engine. Adding one: a row with these in ``table.py``, and a folder in ``services/nodeagent/engines``."""

    called: str
    """Its name in sentences."""
    formats: tuple[Format, ...] = ()
    """Of weights it reads; empty: the definition's weights are not judged."""
    needs_gpu: bool = False
    simulated: bool = False
    """It computes nothing: it needs no weights, cores or GPU memory, and runs on simulated machines."""
    spans_nodes: bool = True
    """One replica may run on several machines."""
    loras: bool = False
    """It answers under the names of fine-tunings loaded beside the weights."""
    splits: Literal["tensors", "layers"] | None = None
    """What it divides among several GPUs: every tensor (then widths must fit the model's heads), or whole layers.
    None: not known."""
    memory: Literal["paged", "slots"] | None = None
    """What it keeps, as ``libs.fit.memory`` reckons it: a cache in pages, where requests wait that find no room, or
    one slot for each request, taken at the start. None: not known."""
    expert_parallel: tuple[str, ...] = ()
    """Arguments with which each GPU holds whole experts instead of a slice of every one."""
    key_variable: str | None = None
    """The environment variable that carries its API key: a command line can be read by everyone. None: it knows no
    keys, and who reaches its port may use it."""
    stop_field: str | None = None
    """The field of a request that must be true for it to say which stop sequence was met. None: it says so unasked."""
    arguments: Arguments = Arguments()
    variables: Variables = Variables()
