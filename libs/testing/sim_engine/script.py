"""Answers that are more than words: thinking, refusals, tool calls, JSON of a schema. One piece of them is a token."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from .behaviour import Behaviour
from .protocol import Asked, content_of

LEAD = ("I ", "look. ")
"""What is said before tools are called. An agent says nothing where a call is demanded."""
REFUSAL = ("I ", "will ", "not. ")
PIECES = 3
"""Of the arguments of a call."""
ORDER = re.compile(r"\[\[(\w+) (\{.*?\})\]\]", re.DOTALL)
"""What an agent is told to do, word for word: the name of a function and its arguments, or ``say`` and a ``text``."""
QUOTED = re.compile(r"""(?<!\w)(?:'([^']+)'|"([^"]+)")(?!\w)""")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?![\w.]*\d)")


class Script(msgspec.Struct):
    """``deltas``, one a token, and the whole message they add up to."""

    deltas: list[dict[str, Any]]
    finish: bytes = b'"stop"'
    thoughts: int = 0

    def message(self, given: int) -> dict[str, Any]:
        """The message of the first ``given`` tokens."""
        out: dict[str, Any] = {"role": "assistant", "content": None}
        calls: dict[int, dict[str, Any]] = {}
        for delta in self.deltas[:given]:
            for name, value in delta.items():
                if name != "tool_calls":
                    out[name] = (out.get(name) or "") + value
                    continue
                for piece in value:
                    call = calls.setdefault(piece["index"], {"id": piece.get("id"), "type": "function"})
                    function = call.setdefault("function", {"name": piece["function"].get("name"), "arguments": ""})
                    function["arguments"] += piece["function"]["arguments"]
        if calls:
            out["tool_calls"] = [calls[index] for index in sorted(calls)]
        return out


def is_scripted(asked: Asked, behaviour: Behaviour) -> bool:
    """Whether an answer may be more than words."""
    return bool(
        behaviour.thinking or behaviour.refuse or asked.tools or asked.response_format or _orders(asked, behaviour)
    )


def script_of(asked: Asked, behaviour: Behaviour, request_id: str, words: list[str]) -> Script | None:
    """What a request is answered with; None: plain words, ``words`` or as many as it asks for.

    A request that demands a tool gets a call of it, and one that gives a schema gets an instance of that.
    """
    deltas: list[dict[str, Any]] = [{"reasoning_content": f"thought{n} "} for n in range(behaviour.thinking)]
    if orders := _orders(asked, behaviour):
        step = _step(asked, orders, request_id)
        return Script(deltas + step, b'"tool_calls"' if "tool_calls" in step[-1] else b'"stop"', behaviour.thinking)
    calls = _calls(asked, behaviour, request_id)
    schema = _schema(asked, behaviour)
    finish = b'"stop"'
    if behaviour.refuse:
        deltas += [{"refusal": word} for word in REFUSAL]
    elif calls:
        finish = b'"tool_calls"'
        demanded = asked.tool_choice == "required" or isinstance(asked.tool_choice, dict)
        if not (behaviour.agent and demanded):
            deltas += [{"content": word} for word in LEAD]
        if behaviour.interleaved:
            deltas += [call[n] for n in range(PIECES + 1) for call in calls]
        else:
            deltas += [piece for call in calls for piece in call]
    elif schema is not None:
        text = msgspec.json.encode(
            instance_of(schema, material=Material(asked.last()) if behaviour.agent else NOTHING)
        ).decode()
        deltas += [{"content": part} for part in _cut(text, PIECES)]
    elif deltas:
        deltas += [{"content": word} for word in words]
    return Script(deltas, finish, behaviour.thinking) if deltas else None


class Orders(msgspec.Struct):
    """What the last message with such words tells an agent to do, and the results that came since."""

    steps: list[tuple[str, dict[str, Any]]]
    results: list[str]


def _orders(asked: Asked, behaviour: Behaviour) -> Orders | None:
    """None: it is told nothing, or nothing it can do."""
    results: list[str] = []
    for message in reversed(asked.messages or () if behaviour.agent else ()):
        text = content_of(message)
        if message.role == "tool":
            results.insert(0, text)
        elif message.role == "user" and (pairs := ORDER.findall(text)):
            try:
                steps = [(name, msgspec.json.decode(value, type=dict[str, Any])) for name, value in pairs]
            except msgspec.DecodeError:
                return None
            names = {tool["function"]["name"] for tool in asked.tools or () if "function" in tool} | {"say"}
            return Orders(steps, results) if steps[0][0] in names else None
    return None


def _step(asked: Asked, orders: Orders, request_id: str) -> list[dict[str, Any]]:
    """The next thing it is told to do, or the last result in its own words when that was all."""
    if len(orders.results) >= len(orders.steps):
        name, value = "say", {"text": orders.results[-1]}
    else:
        name, value = orders.steps[len(orders.results)]
    if name == "say":
        return [{"content": part} for part in _cut(value["text"] or " ", PIECES) if part]
    opener = {"name": name, "arguments": ""}
    first = {"index": 0, "id": f"call_{request_id}_0", "type": "function", "function": opener}
    parts = _cut(msgspec.json.encode(value).decode(), PIECES)
    return [{"tool_calls": [first]}, *({"tool_calls": [{"index": 0, "function": {"arguments": p}}]} for p in parts)]


def _schema(asked: Asked, behaviour: Behaviour) -> dict[str, Any] | None:
    """Of the JSON that is asked for. One that was told in words has the properties the words quote."""
    form = asked.response_format or {}
    if form.get("type") == "json_object" and behaviour.agent:
        return {"properties": {name: {"type": "string"} for name in Material(asked.last()).quoted}}
    schema: dict[str, Any] | None = (form.get("json_schema") or {}).get("schema")
    return schema


def _calls(asked: Asked, behaviour: Behaviour, request_id: str) -> list[list[dict[str, Any]]]:
    """The pieces of each call: an opener with id and name, then its arguments."""
    offered = [tool["function"] for tool in asked.tools or () if "function" in tool]
    choice = asked.tool_choice
    if isinstance(choice, dict):
        offered = [function for function in offered if function["name"] == choice["function"]["name"]]
    count = behaviour.tools or (1 if choice == "required" or isinstance(choice, dict) else 0)
    material = NOTHING
    if behaviour.agent and asked.messages:
        material = Material(asked.last())
        offered = [function for function in offered if function["name"] in asked.text()] or offered[:1]
        if asked.messages[-1].role != "tool":
            count = count or len(material.quoted) or 1
    if choice == "none":
        count = 0
    made = []
    for index in range(count if offered else 0):
        function = offered[index % len(offered)]
        value = instance_of(function.get("parameters") or {}, str(index), material)
        arguments = msgspec.json.encode(value).decode()
        opener = {"name": function["name"], "arguments": ""}
        pieces = [{"index": index, "id": f"call_{request_id}_{index}", "type": "function", "function": opener}]
        pieces += [{"index": index, "function": {"arguments": part}} for part in _cut(arguments, PIECES)]
        made.append([{"tool_calls": [piece]} for piece in pieces])
    return made


def _cut(text: str, pieces: int) -> list[str]:
    size = -(-len(text) // pieces)
    return [text[n * size : (n + 1) * size] for n in range(pieces)]


class Material:
    """What a text quotes and the whole numbers in it, for arguments to be made of."""

    def __init__(self, text: str) -> None:
        self.quoted = [single or double for single, double in QUOTED.findall(text)]
        self.numbers = [int(number) for number in NUMBER.findall(text)]


NOTHING = Material("")


def instance_of(schema: dict[str, Any], mark: str = "", material: Material = NOTHING) -> Any:
    """A value a JSON Schema allows: the first of an enumeration, every property of an object.

    ``mark`` is the number of the call it is for, and says which of what was ``found`` it takes.
    """
    if schema.get("enum"):
        return schema["enum"][0]
    for way in ("anyOf", "oneOf", "allOf"):
        if schema.get(way):
            return instance_of(schema[way][0], mark, material)
    at = int(mark or 0)
    match schema.get("type", "object"):
        case "object":
            return {
                name: instance_of(inner, mark, material) for name, inner in (schema.get("properties") or {}).items()
            }
        case "array":
            return [instance_of(schema.get("items") or {"type": "string"}, mark, material)]
        case "integer":
            return material.numbers[at % len(material.numbers)] if material.numbers else 7
        case "number":
            return 7.5
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return material.quoted[at % len(material.quoted)] if material.quoted else f"text{mark}"
