"""A request's body: decoded once, and changed only where it must be.

Only the few fields the gateway acts on are read into a struct; what it does not know travels untouched. An edit
replaces the value of a top-level field and leaves the bytes of every other value as they came.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, cast

import msgspec

from services.gateway.core.faults import Fault, bad_body, too_deep
from services.gateway.core.json.fields import Json, decoded, misfit, text
from services.gateway.core.json.lossless import ABSENT, encoded, present, repaired
from services.gateway.core.json.lossless import decoded as decoded_value

from . import inputs, messages

_Answers = Annotated[int, msgspec.Meta(ge=1, le=128)]
_Alternatives = Annotated[int, msgspec.Meta(ge=0, le=20)]
"""OpenAI's bound. An engine that is asked for all it knows writes its vocabulary with each token, and others wait."""
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Object = dict[str, msgspec.Raw]


class Body:
    """The bytes of a request, valid UTF-8, and what they decode to; neither is ever changed."""

    __slots__ = ("_tree", "data")

    def __init__(self, data: bytes, tree: Json | None = None) -> None:
        """``tree``: what ``data`` decodes to, where it is known already."""
        self.data = data
        self._tree = tree

    @property
    def tree(self) -> Json:
        """All fields, numbers as they were spelt. Raises Fault (400) where the body is no JSON object."""
        if self._tree is None:
            self._tree = decoded(self.data)
        return self._tree

    @property
    def media(self) -> tuple[str, str] | None:
        """Where the first part is that is no text, and what it is; None where there is none, or no JSON object."""
        return None if self._tree is None else messages.media(self._tree)

    def edited(self, changes: Mapping[str, bytes | None]) -> Body:
        """With top-level fields replaced or added; values are JSON, None leaves a field out. Raises Fault (400)."""
        if not changes:
            return self
        try:
            return Body(edited(self.data, changes))
        except RecursionError:
            raise too_deep() from None

    def __len__(self) -> int:
        """In bytes."""
        return len(self.data)


def received(data: bytes) -> Body:
    """A client's body; what is not UTF-8 in it becomes U+FFFD. Raises Fault (400) where a field stands twice in an
    object; whether it is what the operation takes is not looked at yet."""
    data = repaired(data)
    value: object = ABSENT
    try:
        value = decoded_value(data)
        _refuse_duplicates(data, value)
    except (msgspec.DecodeError, RecursionError):
        _refuse_duplicates(data, ABSENT)
    return Body(data, cast(Json, value) if isinstance(value, dict) else None)


def _refuse_duplicates(body: bytes, value: object) -> None:
    """Raises Fault (400) naming a field that an object of the body has twice: what a policy reads and what an engine
    reads could differ. ``value`` is what the body decodes to; ABSENT where it does not, which others tell.

    No fast decoder tells of such fields, so colons are counted: those in the body, and those in the bytes made of
    ``value``. A field that was dropped takes at least its own colon along, and nothing else removes one; only a colon
    that is written as an escape adds one. So where the counts are the same and there is no such escape, every field is
    there once; otherwise the names themselves are looked at, with a decoder that gives them all.
    """
    if value is not ABSENT and encoded(value).count(b":") == body.count(b":") and _ESCAPED_COLON not in body:
        return
    try:
        # Python makes no number of very many digits, and other decoders pass over them.
        json.loads(body, object_pairs_hook=_with_single_names, parse_int=len)
    except (ValueError, RecursionError):
        return


_ESCAPED_COLON = rb"\u003"
"""How the escape of a colon begins."""


def _with_single_names(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            named = name.encode("utf-8", "replace").decode()
            raise bad_body(
                f"The field '{named}' stands twice in one object of the body; send it once.",
                param=named,
                code="duplicate_field",
            )
        seen.add(name)


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ToolFunction(msgspec.Struct):
    name: str


class OfferedTool(msgspec.Struct):
    type: str = "function"
    function: ToolFunction | None = None


class JsonSchema(msgspec.Struct):
    schema: _Object | None = None


class ResponseFormat(msgspec.Struct):
    type: str
    json_schema: JsonSchema | None = None
    schema: _Object | None = None
    """llama.cpp takes it here too."""

    @property
    def missing(self) -> str | None:
        """The field that holds the schema, where one was promised and is not there."""
        if self.type != "json_schema" or self.schema is not None:
            return None
        if self.json_schema is None:
            return "response_format.json_schema"
        return "response_format.json_schema.schema" if self.json_schema.schema is None else None


class ParsedRequest(msgspec.Struct):
    """What the gateway reads of a completion request, chat or not.

    Most fields are here for their types only: engines answer a wrong one with an exception of their own.
    """

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    n_predict: _Count | None = None
    """llama.cpp's, which counts more than the other two."""
    messages: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    query: msgspec.Raw = ABSENT
    documents: msgspec.Raw = ABSENT
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: _Share | None = None
    min_p: _Share | None = None
    top_k: int | None = None
    n: _Answers | None = None
    n_cmpl: _Answers | None = None
    """llama.cpp's, in the same way."""
    stop: str | list[str] | None = None
    seed: _Seed | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logprobs: bool | _Alternatives | None = None
    top_logprobs: _Alternatives | None = None
    n_probs: _Alternatives | None = None
    """llama.cpp's, in the same way."""
    logit_bias: _Object | list[msgspec.Raw] | None = None
    tools: list[OfferedTool] | None = None
    tool_choice: str | _Object | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    user: str | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether the client asked for usage at the end of its stream."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def limits(self) -> Iterable[tuple[str, int]]:
        """The bounds on the answer's length that were asked for, by field."""
        if self.max_tokens is not None:
            yield "max_tokens", self.max_tokens
        if self.max_completion_tokens is not None:
            yield "max_completion_tokens", self.max_completion_tokens
        if self.n_predict is not None:
            yield "n_predict", self.n_predict


_parsed = msgspec.json.Decoder(ParsedRequest)
_fields = msgspec.json.Decoder(_Object)
_CHECKS: dict[str, Callable[[msgspec.Raw], object]] = {
    "messages": messages.check,
    "prompt": msgspec.json.Decoder(str | list[str | int | list[int]]).decode,
    "input": lambda value: inputs.check(decoded_value(value)),
    "query": lambda value: text(decoded_value(value), "query"),
}
"""What engines expect in each field that holds the text. Each raises Fault, or msgspec's errors about a value in it."""


def parse(body: Body, content: str | None, translated: bool = False) -> ParsedRequest:
    """The request in ``body``, whose text is in the field ``content`` (``messages``, ``prompt``, ...; None: in any).

    What was ``translated`` here was looked at there, and is not again. Raises Fault (400) naming
    the field that is wrong.
    """
    try:
        parsed = _parsed.decode(body.data)
    except msgspec.ValidationError as error:
        raise misfit(str(error)) from None
    except msgspec.DecodeError as error:
        raise _not_json(error) from None
    except RecursionError:
        raise too_deep() from None
    if parsed.response_format is not None and (name := parsed.response_format.missing) is not None:
        raise bad_body(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    if content is None:
        return parsed
    value: msgspec.Raw = getattr(parsed, content)
    if not present(value):
        raise bad_body(f"Missing required parameter: '{content}'.", param=content, code="missing_required_parameter")
    if not translated:
        try:
            _CHECKS[content](value)
        except msgspec.ValidationError as error:
            raise misfit(str(error), content) from None
        except msgspec.DecodeError as error:
            raise _not_json(error) from None
        except RecursionError:
            raise too_deep() from None
    return parsed


def _not_json(error: Exception) -> Fault:
    return bad_body(f"The body is not valid JSON: {error}. Send one JSON object.", code="invalid_json")


def edited(data: bytes, changes: Mapping[str, bytes | None]) -> bytes:
    """A JSON object with top-level fields replaced or added; values are JSON, None leaves a field out. Raises
    msgspec.DecodeError where it is none."""
    fields = _fields.decode(data)
    for name, value in changes.items():
        if value is None:
            fields.pop(name, None)
        else:
            fields[name] = msgspec.Raw(value)
    return msgspec.json.encode(fields)


def asking_usage(parsed: ParsedRequest, body: Body) -> bytes:
    """The JSON of ``stream_options`` that asks for usage and keeps what the client put there."""
    if parsed.stream_options is None:
        return b'{"include_usage":true}'
    return edited(bytes(_fields.decode(body.data)["stream_options"]), {"include_usage": b"true"})
