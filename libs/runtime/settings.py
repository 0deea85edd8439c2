"""Settings of a service: defaults, then a YAML file, then ``LLMGW_<SERVICE>_<FIELD>`` variables.

Each value remembers where it came from. Everything wrong is reported at once, each with the file and line (or the
variable), the value found and what would be right.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import yaml
from msgspec import Meta

from .yaml_values import expected, scalars, two_readings

URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)")


def _meaning(text: str) -> Meta:
    return Meta(description=text)


class CommonSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every service can be told. A service's own settings extend it, each field with a description."""

    nats_url: Annotated[str, _meaning("The bus: nats://host:port, several separated by commas.")] = (
        "nats://127.0.0.1:4222"
    )
    credentials: Annotated[
        Path | None, _meaning("File with the nkey seed of this service's bus identity; none: no authentication.")
    ] = None
    data_dir: Annotated[Path, _meaning("Where this service keeps its files.")]
    status_host: Annotated[str, _meaning("Address of /health, /ready and /metrics.")] = "127.0.0.1"
    status_port: Annotated[int, Meta(ge=0, le=65535, description="Port of /health, /ready and /metrics; 0: none.")] = 0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _meaning("The least severe log lines that are written.")
    ] = "info"
    log_format: Annotated[
        Literal["auto", "json", "console"], _meaning("Form of log lines; auto: console on a terminal, else json.")
    ] = "auto"
    otlp_endpoint: Annotated[
        str | None, _meaning("OpenTelemetry collector for traces, http://host:4318; none: no traces are recorded.")
    ] = None
    instance: Annotated[str, _meaning("Name of this process among others of its service.")] = msgspec.field(
        default_factory=socket.gethostname
    )
    stop_timeout_s: Annotated[
        float, Meta(gt=0, description="Longest time an orderly stop may take before it is cut short, in seconds.")
    ] = 20.0


S = TypeVar("S", bound=CommonSettings)


class SettingsError(Exception):
    """Settings cannot be used. ``problems``: one sentence each."""

    def __init__(self, service: str, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"settings of {service}: " + "\n".join(problems))


@dataclass(frozen=True)
class Described:
    """One setting, for people."""

    name: str
    variable: str
    type: str
    """With what a number may be: ``whole number, from 1 to 64``."""
    default: str
    meaning: str
    value: str
    source: str
    """``default``, ``FILE:LINE`` or the variable's name."""


@dataclass(frozen=True)
class Loaded(Generic[S]):
    service: str
    value: S
    provenance: Mapping[str, str]
    """Field name to where its value came from."""

    def describe(self) -> list[Described]:
        """Every setting with its default, meaning, value and source. Passwords inside URLs are blanked."""
        computed = _computed(self.service)
        described = []
        for field in msgspec.structs.fields(type(self.value)):
            kind, meaning = _split(_hints(type(self.value))[field.name])
            default = computed.get(field.name, "required" if field.required else field.default)
            if default is msgspec.NODEFAULT:
                default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else "required"
            described.append(
                Described(
                    name=field.name,
                    variable=variable(self.service, field.name),
                    type=", ".join(filter(None, (_type_name(kind), _bounds(_hints(type(self.value))[field.name])))),
                    default=_shown(default),
                    meaning=meaning,
                    value=_shown(getattr(self.value, field.name)),
                    source=self.provenance[field.name],
                )
            )
        return described


def variable(service: str, field: str) -> str:
    """Name of the environment variable of a setting."""
    return f"LLMGW_{service}_{field}".upper().replace("-", "_")


def default_state_dir() -> Path:
    """``~/.local/state/llmgw`` (or below ``XDG_STATE_HOME``)."""
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "llmgw"


def load(kind: type[S], service: str, file: Path | None = None, environ: Mapping[str, str] = os.environ) -> Loaded[S]:
    """Settings of ``service`` as ``kind``. Raises SettingsError with everything that is wrong."""
    problems: list[str] = []
    hints = _hints(kind)
    values: dict[str, Any] = {name: value for name, value in _computed(service).items() if name in hints}
    provenance = dict.fromkeys(hints, "default")
    for name, where, raw, parse in (*_from_file(file, problems), *_from_environment(service, hints, environ)):
        if name not in hints:
            problems.append(f"{where}: unknown setting {name!r}{nearest(name, hints)}")
            continue
        try:
            values[name] = parse(raw, hints[name])
        except msgspec.ValidationError as error:
            problems.append(f"{where}: {name} is {_shown(raw)!r}: {_complaint(error, name, hints[name])}")
        provenance[name] = where
    problems += [
        f"{field.name} is not set: write it into the file or set {variable(service, field.name)}"
        for field in msgspec.structs.fields(kind)
        if field.required and field.name not in values and provenance[field.name] == "default"
    ]
    if problems:
        raise SettingsError(service, problems)
    try:
        return Loaded(service, kind(**values), provenance)
    except ValueError as error:  # from a __post_init__: settings that do not go together
        raise SettingsError(service, [str(error)]) from None


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """The end of an error about an unknown name: which known one was probably meant, or which there are."""
    known = sorted(known)
    match = difflib.get_close_matches(name, known, 1, 0.6)
    return f"; did you mean {match[0]!r}?" if match else f"; known are: {', '.join(known)}"


Entry = tuple[str, str, Any, typing.Callable[[Any, Any], Any]]


def _from_file(file: Path | None, problems: list[str]) -> Iterator[Entry]:
    if file is None:
        return
    try:
        node = yaml.compose(file.read_text(), Loader=yaml.SafeLoader)
    except OSError as error:
        problems.append(f"{file} cannot be read: {error.strerror}")
        return
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problems.append(f"{file}{line}: not YAML: {getattr(error, 'problem', error)}")
        return
    if node is None:
        return
    if not isinstance(node, yaml.MappingNode):
        problems.append(f"{file}:1: expected `name: value` lines")
        return
    constructor = yaml.SafeLoader("")
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        name = str(key.value)
        if name in seen:
            problems.append(f"{file}:{line}: {name} was already set in line {seen[name]}; keep one")
            continue
        seen[name] = line
        differs = [(scalar, words) for scalar in scalars(value) if (words := two_readings(scalar))]
        if differs and not (differs[0][0] is value and value.tag.endswith(":bool")):
            problems += [f"{file}:{scalar.start_mark.line + 1}: {name}: {words}" for scalar, words in differs]
            continue
        yield name, f"{file}:{line}", constructor.construct_object(value, deep=True), _convert


def _from_environment(service: str, hints: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[Entry]:
    prefix = variable(service, "")
    for name in sorted(environ):
        if name.startswith(prefix):
            yield name.removeprefix(prefix).lower(), name, environ[name], _convert_text


def _convert(value: Any, kind: Any) -> Any:
    return msgspec.convert(value, kind, dec_hook=_hook)


def _convert_text(text: str, kind: Any) -> Any:
    """A variable's text: as it is where text is wanted, as YAML where a list or a mapping is."""
    if text == "" and type(None) in typing.get_args(_split(kind)[0]):
        return None
    try:
        return msgspec.convert(text, kind, dec_hook=_hook, strict=False)
    except msgspec.ValidationError:
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        if isinstance(value, str):
            raise
        return msgspec.convert(value, kind, dec_hook=_hook, strict=False)


def _hook(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str | Path):
        return Path(value).expanduser()
    raise msgspec.ValidationError(f"Expected `path`, got `{type(value).__name__}`")


def _computed(service: str) -> dict[str, Any]:
    """Defaults that depend on the service or the machine."""
    return {
        "instance": f"{service}-{socket.gethostname()}",
        "data_dir": default_state_dir() / "data" / service,
    }


def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


def _split(hint: Any) -> tuple[Any, str]:
    """Type and description of an annotation."""
    if typing.get_origin(hint) is not Annotated:
        return hint, ""
    kind, *extras = typing.get_args(hint)
    return kind, next((meta.description for meta in extras if isinstance(meta, Meta) and meta.description), "")


def _bounds(hint: Any) -> str:
    """What a number may be, ``from 1 to 64``; empty where anything may be."""
    least = most = ""
    for meta in typing.get_args(hint):
        if isinstance(meta, Meta):
            least = f"from {meta.ge}" if meta.ge is not None else f"over {meta.gt}" if meta.gt is not None else least
            most = f"to {meta.le}" if meta.le is not None else f"under {meta.lt}" if meta.lt is not None else most
    return " ".join(filter(None, (least, most)))


def _type_name(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return " | ".join("none" if part is type(None) else _type_name(part) for part in arguments)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is not None:
        return f"{origin.__name__} of {', '.join(_type_name(part) for part in arguments if part is not ...)}"
    return {str: "text", int: "whole number", float: "number", bool: "true | false", Path: "path"}.get(
        kind, getattr(kind, "__name__", str(kind))
    )


def _complaint(error: msgspec.ValidationError, name: str, hint: Any) -> str:
    """msgspec's message in plain words: what was expected, and the values allowed where they are few."""
    text = str(error).replace("`", "")
    kind, _ = _split(hint)
    unknown = re.search(r"contains unknown field (\S+)", text)
    if unknown:
        return f"{text}{nearest(unknown[1], sorted(_nested_fields(kind)))}"
    few = f" (expected {_type_name(kind)})" if typing.get_origin(kind) is Literal else ""
    return f"{expected(str(error), name)}{few}"


def _nested_fields(kind: Any) -> Iterator[str]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield from kind.__struct_encode_fields__
        for hint in typing.get_type_hints(kind).values():
            yield from _nested_fields(hint)
    for part in typing.get_args(kind):
        yield from _nested_fields(part)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, msgspec.Struct | dict | list | tuple):
        value = msgspec.json.encode(value, enc_hook=str).decode()
    return URL_PASSWORD.sub(r"\1***", str(value))
