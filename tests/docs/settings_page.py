"""``docs/settings.md``: every setting of every service, from the structs that hold them."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import msgspec

from libs.events.document import field_notes
from libs.runtime.settings import CommonSettings, Described, Loaded, load
from services.entry import SERVICES, settings_type

from .table import cell, code, table

HEAD = """# Settings

Every setting of every service. This page is generated from the services' settings by `make docs`; a test fails when
it is out of date.

A setting is a line of the YAML file a service is started with (`llmgw run gateway --settings gateway.yaml`), or a
variable, which overrules the file:

```yaml
# gateway.yaml
nats_url: nats://bus-1:4222,nats://bus-2:4222,nats://bus-3:4222
host: 0.0.0.0
workers: 4
```

`LLMGW_GATEWAY_WORKERS=4` says the same as the last line. Lists and mappings are written in a variable as in YAML:
`LLMGW_GATEWAY_CORS_ORIGINS='["https://chat.example"]'`. A name nobody knows, and a value that cannot be, end the
start with the file, the line and what would be right. `llmgw settings gateway` shows each value and where it comes
from. Settings are read when a service starts; those of a running agent that can be changed are
[here](nodes.md#what-an-agent-is-asked-to-do-once).
"""


def service_settings() -> dict[str, type[CommonSettings]]:
    """Service to the struct of its settings."""
    return {service: settings_type(service) for service in SERVICES}


def described(service: str, kind: type[CommonSettings]) -> list[Described]:
    """Its settings as `llmgw settings` tells them, on no machine in particular."""
    with patch("socket.gethostname", lambda: "HOSTNAME"), patch.dict("os.environ", {"XDG_STATE_HOME": "/STATE"}):
        loaded: Loaded[Any] = load(kind, service, None, {})
        return loaded.describe()


def _inside(hint: Any) -> Iterator[type[msgspec.Struct]]:
    """The structs a type is made of."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
        for inner in typing.get_type_hints(hint).values():
            yield from _inside(inner)
    for argument in typing.get_args(hint):
        yield from _inside(argument)


def _row(one: Described) -> tuple[str, str, str, str]:
    default = one.default.replace("/STATE/llmgw", "~/.local/state/llmgw")
    return (
        f"`{one.name}`<br>`{one.variable}`",
        cell(one.type),
        code(default) if default != "none" else "",
        cell(one.meaning),
    )


def page() -> str:
    """The whole page."""
    common = {field.name for field in msgspec.structs.fields(CommonSettings)}
    kinds = service_settings()
    lines = [HEAD, "## All services", "", "`SERVICE` stands for the service's name.", ""]
    heading = ("name, variable", "is", "default", "meaning")
    lines += table(
        heading,
        [_row(one) for one in described("SERVICE", CommonSettings)],
    )
    parts: dict[str, type[msgspec.Struct]] = {}
    for service, kind in kinds.items():
        own = [one for one in described(service, kind) if one.name not in common]
        lines += [f"## {service}", "", *table(heading, [_row(one) for one in own])]
        for hint in typing.get_type_hints(kind).values():
            parts.update({part.__name__: part for part in _inside(hint)})
    for name, part in sorted(parts.items()):
        lines += [f"## {name}", "", " ".join((part.__doc__ or "").split()), "", *_fields(part)]
    return "\n".join(lines).rstrip() + "\n"


def _fields(part: type[msgspec.Struct]) -> list[str]:
    notes = field_notes(part)
    rows = []
    for field in msgspec.structs.fields(part):
        default: Any = "required" if field.required else field.default
        if default is msgspec.NODEFAULT:
            default = field.default_factory()
        shown = default if isinstance(default, str) else msgspec.json.encode(default, enc_hook=str).decode()
        rows.append(
            (
                f"`{field.encode_name}`",
                "" if default in (None, "", ()) else code(shown),
                cell(notes.get(field.name, "")),
            )
        )
    return table(("name", "default", "meaning"), rows)
