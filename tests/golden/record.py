"""Records what is new in the contracts: ``python -m tests.golden.record``.

It writes a sample for every tag that has none, the shape of every field that has none, and the values that were
added to an enumeration. What is recorded is what is stored in the logs of those who run llmgw: it is only ever added
to, never edited.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as shapes

from libs.events import contracts, encode, tag_of
from libs.events.document import type_name

FOLDER = Path(__file__).parent
SAMPLES = FOLDER / "samples"
SHAPES = FOLDER / "shapes.json"
VALUES = re.compile(r"`[^`]*`(?: or `[^`]*`)*")
"""The values of an enumeration, as ``type_name`` writes them."""

Shapes = dict[str, dict[str, list[Any]]]
"""Contract (its tag, or the name of a part) to its fields, each with its type and default."""


def sample(shape: Any, name: str) -> Any:
    """A value of a type: every field set to something other than its default."""
    match shape:
        case shapes.StrType():
            return f"{name}-1" if name else "text"
        case shapes.IntType():
            return 7
        case shapes.FloatType():
            return 1.5
        case shapes.BoolType():
            return True
        case shapes.DateTimeType():
            return datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)
        case shapes.LiteralType():
            return shape.values[-1]
        case shapes.UnionType():
            return sample(next(t for t in shape.types if not isinstance(t, shapes.NoneType)), name)
        case shapes.VarTupleType():
            return (sample(shape.item_type, name),)
        case shapes.DictType():
            return {sample(shape.key_type, ""): sample(shape.value_type, name)}
        case shapes.StructType():
            fields = {f.name: sample(f.type, f.encode_name) for f in shape.fields}
            return shape.cls(**fields)
    raise NotImplementedError(f"{name}: {shape}")


def shape_of(contract: type[Any]) -> dict[str, list[Any]]:
    """Field to its type and default, all that a stored message depends on."""
    out: dict[str, list[Any]] = {}
    hints = msgspec.structs.fields(contract)
    for field in hints:
        default: Any = "required"
        if not field.required:
            value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            default = json.loads(encode(value))
        out[field.encode_name] = [type_name(field.type), default]
    return out


def widens(recorded: str, current: str) -> bool:
    """Whether a type is the recorded one, but for values that were added to its enumerations."""
    if VALUES.sub("{}", recorded) != VALUES.sub("{}", current):
        return False
    before, after = (VALUES.findall(text) for text in (recorded, current))
    return all(set(a.split(" or ")) <= set(b.split(" or ")) for a, b in zip(before, after, strict=True))


def with_additions(recorded: Shapes, current: Shapes) -> Shapes:
    """What is recorded, and what may be added to it: contracts, fields, values of enumerations.

    Where something else changed the record stays, and differs from what is current.
    """
    together = {name: dict(fields) for name, fields in recorded.items()}
    for name, fields in current.items():
        known = together.setdefault(name, {})
        for field, (kind, default) in fields.items():
            before = known.get(field)
            if before is None or (widens(before[0], kind) and before[1] == default):
                known[field] = [kind, default]
    return together


def every_shape() -> Shapes:
    """Every contract and every value it is made of."""
    from typing import get_type_hints

    from libs.events import views
    from libs.events.contract import Value
    from libs.events.document import values_in

    found: dict[str, Any] = {}
    starts = [*contracts(), *(v for v in vars(views).values() if isinstance(v, type) and issubclass(v, Value))]
    for contract in starts:
        tag = tag_of(contract) if hasattr(contract, "plane") else contract.__name__
        found[tag] = contract
        for hint in get_type_hints(contract).values():
            found.update({value.__name__: value for value in values_in(hint)})
    return {name: shape_of(kind) for name, kind in sorted(found.items()) if kind is not Value}


def main() -> None:
    SAMPLES.mkdir(exist_ok=True)
    for contract in contracts():
        path = SAMPLES / f"{tag_of(contract)}.json"
        if not path.exists():
            path.write_bytes(encode(sample(shapes.type_info(contract), "")) + b"\n")
    known = json.loads(SHAPES.read_text()) if SHAPES.exists() else {}
    known = with_additions(known, every_shape())
    lines = [f" {json.dumps(name)}: {json.dumps(fields)}" for name, fields in sorted(known.items())]
    SHAPES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
