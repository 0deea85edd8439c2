"""Settings of the agent that an operator changed over the bus: checked, kept beside its data, laid over its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from libs.runtime.yaml_values import expected
from services.nodeagent.adapters.disk import durable
from services.nodeagent.settings import NodeAgentSettings

log = logging.getLogger(__name__)

CHANGEABLE = (
    "labels",
    "fabrics",
    "dcgm_exporter",
    "measure_memory",
    "stop_grace_s",
    "stuck_after_s",
    "sample_every_s",
)
"""What takes effect at once. Nothing that names a program, a file or an identity: who may speak on the bus must not
choose what runs as root here."""

_BOUNDS: dict[str, tuple[float, float, str]] = {
    "sample_every_s": (0.1, 4.0, "a node is lost after 8 s of silence, and each sample costs everybody"),
    "stuck_after_s": (5.0, 3600.0, "an engine is busy for seconds now and then, and a hung one must be found"),
    "stop_grace_s": (0.0, 3600.0, "an engine that does not end by itself must be killed some time"),
}
"""Least and most of what an operator may change it to, and why."""

_MAX_BYTES = 16 * 1024
"""Of all changed settings together: they are part of what the machine says of itself."""

_FIELDS = {field.name: field for field in msgspec.structs.fields(NodeAgentSettings)}


class InvalidOverride(Exception):
    """The sentence says which setting cannot be what, and why."""


class Overrides:
    """The file ``changed-settings.json`` of a data folder: setting to its value as JSON."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "changed-settings.json"
        self.kept: dict[str, str] = self._read()

    def _read(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            log.error("%s cannot be read, the agent's own settings hold: %s", self._path, error)
            return {}

    def over(self, settings: NodeAgentSettings) -> NodeAgentSettings:
        """The agent's own settings with what was changed. What this version does not take any more is said and left
        out."""
        for name, text in self.kept.items():
            try:
                settings = msgspec.structs.replace(settings, **{name: _value(name, text)})
            except InvalidOverride as why:
                log.error("a changed setting is left out: %s", why)
        return settings

    def keep(self, changes: Mapping[str, str]) -> None:
        """Check and keep changes, all or none. An empty text takes a change back. Raises InvalidOverride, OSError."""
        for name, text in changes.items():
            if name not in CHANGEABLE:
                known = "it is set where the agent is started" if name in _FIELDS else "there is no such setting"
                raise InvalidOverride(f"{name}: {known}; can be changed: {', '.join(CHANGEABLE)}")
            if text:
                _value(name, text)
        merged = {name: text for name, text in (self.kept | dict(changes)).items() if text}
        content = msgspec.json.encode(merged)
        if len(content) > _MAX_BYTES:
            raise InvalidOverride(f"with this the changed settings take {len(content)} bytes; at most {_MAX_BYTES}")
        durable.write(self._path, content)
        self.kept = merged


def _value(name: str, text: str) -> Any:
    field = _FIELDS.get(name)
    if field is None or name not in CHANGEABLE:
        raise InvalidOverride(f"{name}: there is no such setting")
    try:
        value = msgspec.json.decode(text.encode(), type=field.type)
    except msgspec.DecodeError as error:
        raise InvalidOverride(f"{name}: {text} cannot be it: {expected(str(error), name)}") from None
    if name == "dcgm_exporter" and value is not None and not value.startswith(("http://", "https://")):
        raise InvalidOverride(f"{name}: {value} is not the address of an exporter (http://host:port/metrics)")
    if name in _BOUNDS:
        least, most, why = _BOUNDS[name]
        if not least <= value <= most:
            raise InvalidOverride(f"{name}: {value:g} is not between {least:g} and {most:g}: {why}")
    return value
