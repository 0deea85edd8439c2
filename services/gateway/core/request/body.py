"""A request's body: read once, and changed only where it must be.

Only the few fields the gateway acts on are decoded; what it does not know travels untouched. An edit replaces
the value of a top-level field and leaves the bytes of every other value as they came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from libs.events.policy import Segment, Span
from services.gateway.core.faults import Fault, bad_body, too_deep
from services.gateway.core.json.raw import ABSENT, present

from . import messages

_Answers = Annotated[int, msgspec.Meta(ge=1, le=128)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Object = dict[str, msgspec.Raw]


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
    logprobs: bool | int | None = None
    top_logprobs: _Count | None = None
    logit_bias: _Object | list[msgspec.Raw] | None = None
    tools: list[OfferedTool] | None = None
    tool_choice: str | _Object | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    user: str | None = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def limits(self) -> Iterable[tuple[str, int]]:
        """The bounds on the answer's length that were asked for, by field."""
        if self.max_tokens is not None:
            yield "max_tokens", self.max_tokens
        if self.max_completion_tokens is not None:
            yield "max_completion_tokens", self.max_completion_tokens
        if self.n_predict is not None:
            yield "n_predict", self.n_predict


_asked = msgspec.json.Decoder(ParsedRequest)
_fields = msgspec.json.Decoder(_Object)
_prompt = msgspec.json.Decoder(str | list[str | int | list[int]])
_AT = re.compile(r" - at `\$\.?(.*)`$")
_INDEX = re.compile(r"\[([0-9]+)\]")
_MISSING = re.compile(r"missing required field `(.+?)`")


def read(body: bytes, content: str | None, translated: bool = False) -> ParsedRequest:
    """The request in ``body``, whose text is in the field ``content`` (``messages``, ``prompt``, ...; None: in any).

    What was ``translated`` here has messages of our own, which are not looked at again. Raises Fault (400) naming
    the field that is wrong.
    """
    try:
        if not body.isascii():
            body.decode()  # what is only passed on is not looked at by the decoder
        parsed = _asked.decode(body)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
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
            if content == "messages":
                messages.check(value)
            elif content == "prompt":
                _prompt.decode(value)
        except msgspec.ValidationError as error:
            raise _named(str(error), content) from None
        except msgspec.DecodeError as error:
            raise _not_json(error) from None
        except RecursionError:
            raise too_deep() from None
    return parsed


def _not_json(error: Exception) -> Fault:
    said = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
    return bad_body(f"The body is not valid JSON: {said}. Send one JSON object.", code="invalid_json")


def _named(problem: str, inside: str = "") -> Fault:
    """msgspec's words about a wrong value, as OpenAI would put them; ``inside`` is the field it was found in."""
    where = _AT.search(problem)
    at = ".".join(filter(None, (inside, _INDEX.sub(r".\1", where.group(1)).strip(".") if where else "")))
    if missing := _MISSING.search(problem):
        name = f"{at}.{missing.group(1)}" if at else missing.group(1)
        return bad_body(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    said = _lower(_AT.sub("", problem))
    if at:
        return bad_body(f"Invalid value for '{at}': {said}.", param=at, code="invalid_type")
    return bad_body(f"The body must be one JSON object: {said}.", code="invalid_type")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def edited(body: bytes, changes: Mapping[str, bytes | None]) -> bytes:
    """The body with top-level fields replaced or added; values are JSON, None leaves a field out."""
    fields = _fields.decode(body)
    for name, value in changes.items():
        if value is None:
            fields.pop(name, None)
        else:
            fields[name] = msgspec.Raw(value)
    return msgspec.json.encode(fields)


def asking_usage(parsed: ParsedRequest, body: bytes) -> bytes:
    """The JSON of ``stream_options`` that asks for usage and keeps what the client put there."""
    if parsed.stream_options is None:
        return b'{"include_usage":true}'
    return edited(bytes(_fields.decode(body)["stream_options"]), {"include_usage": b"true"})


# what a policy reads


MEDIA = frozenset({"image_url", "image", "video_url", "video", "input_audio", "audio_url", "audio", "file"})
"""Parts of a message whose value is no text."""
WORDS = MEDIA | frozenset(
    {
        *("text", "function", "object", "string", "array", "number", "integer", "boolean", "null"),
        *("system", "developer", "user", "assistant", "tool"),
    }
)
"""What is said again and again where the protocol or JSON Schema wants a word: nothing to find in them."""
NAMES = WORDS | frozenset(
    {
        *("role", "content", "name", "type", "url", "detail", "tool_calls", "tool_call_id", "id", "index", "arguments"),
        *("function_call", "parameters", "properties", "required", "description", "enum", "items", "anyOf", "default"),
        *("additionalProperties", "title", "strict", "json_schema", "schema", "reasoning_content", "include_usage"),
    }
)
"""Names the protocol or JSON Schema gives to fields."""
MAX_SEGMENTS = 20_000
MAX_CHARACTERS = 8 * 1024 * 1024
"""In texts and their paths: more than one check may have. A path can be as long as the body, for every text in it."""
DIGITS = 7
"""Numbers with fewer are nobody's."""
_NOT_READ = frozenset(
    {
        *("model", "stream", "stream_options", "logit_bias", "service_tier", "reasoning_effort", "encoding_format"),
        # said to whoever runs the engine, for telling people apart
        *("user", "safety_identifier", "prompt_cache_key", "metadata"),
    }
)
"""Fields with nothing in them for a model to read. All others are looked through, known here or not: engines have
fields of their own, as grammars and templates, and a model reads what they make of them."""


class PolicyText(msgspec.Struct):
    """The parts of a body with text in them, decoded."""

    fields: dict[str, Any]

    @property
    def unreadable(self) -> str | None:
        """The field that holds something else than text, as token ids: no policy can read it."""
        for name in ("prompt", "input"):
            value = self.fields.get(name)
            parts = value if isinstance(value, list) else [] if value is None else [value]
            if any(not isinstance(part, str) for part in parts):
                return name
        return "tokens" if self.fields.get("tokens") else None

    def segments(self) -> tuple[Segment, ...]:
        """Every piece of text the model may read, with the JSON pointer to it; of more than ``MAX_SEGMENTS`` or
        ``MAX_CHARACTERS``, so many that they are more than those. The name of a field has the path ``#/NAME``,
        wherever and however often it stands.
        """
        found = []
        left = MAX_CHARACTERS
        for segment in _texts(self.fields):
            found.append(segment)
            left -= len(segment.path) + len(segment.text)
            if left < 0 or len(found) > MAX_SEGMENTS:
                break
        return tuple(found)

    def edit(self, edits: Iterable[Span]) -> dict[str, bytes | None]:
        """Replace the spans; all that was read, as JSON (None: no such field any more). Raises LookupError for a path
        not here.

        What did not change is among it: the engine gets what was judged, also where a name stands twice in the body.
        """
        by_path: dict[str, list[Span]] = {}
        for span in edits:
            by_path.setdefault(span.path, []).append(span)
        renamed: dict[str, str] = {}
        for path, spans in by_path.items():
            keys = [_unescaped(token) for token in path.split("/")[1:]]
            if not keys:
                raise LookupError(f"no such path in the body: {path!r}")
            if path.startswith("#/"):
                renamed[keys[0]] = _spliced(keys[0], spans)
                continue
            holder: Any = self.fields
            for key in keys[:-1]:
                holder = holder[int(key)] if isinstance(holder, list) else holder[key]
            last: Any = int(keys[-1]) if isinstance(holder, list) else keys[-1]
            text = _text_of(holder[last])
            if text is None:
                raise LookupError(f"no text at {path!r}")
            holder[last] = _spliced(text, spans)
        gone: dict[str, bytes | None] = {}
        if renamed:
            gone = {name: None for name in renamed if name in self.fields}
            _rename(self.fields, renamed)
        return gone | {name: msgspec.json.encode(value) for name, value in self.fields.items()}


_KNOWN = frozenset(ParsedRequest.__struct_fields__) | {"functions", "function_call", "suffix", "prediction"}
"""Fields whose names hold nothing."""
_read = msgspec.json.Decoder(float_hook=lambda number: msgspec.Raw(number.encode()))
"""Decimals keep their spelling."""


def readable(body: bytes) -> PolicyText:
    """Decode what a policy may read. Raises Fault (400)."""
    try:
        fields = _fields.decode(body)
        return PolicyText({name: _read.decode(value) for name, value in fields.items() if name not in _NOT_READ})
    except RecursionError:
        raise too_deep() from None
    except msgspec.DecodeError as error:
        raise _not_json(error) from None


def _texts(fields: dict[str, Any]) -> Iterator[Segment]:
    # No recursion: how deep a body is nested is the client's choice. The last is looked at first. A path is put
    # together where there is a text: a long name above very many numbers would take all memory.
    left: list[tuple[_Place, Any]] = [(_Place(None, name, _media(0, name)), fields[name]) for name in reversed(fields)]
    named = {name for name in fields if name not in _KNOWN}
    yield from (Segment(path=f"#/{_escaped(name)}", text=name) for name in named)
    while left:
        place, value = left.pop()
        step = place.media
        if isinstance(value, list):
            inside = _media(step, 0)
            left += [(_Place(place, index, inside), value[index]) for index in range(len(value) - 1, -1, -1)]
        elif isinstance(value, dict):
            if not NAMES.issuperset(value):
                new = [name for name in value if name not in NAMES and name not in named]
                named.update(new)
                yield from (Segment(path=f"#/{_escaped(name)}", text=name) for name in new)
            left += [(_Place(place, name, _media(step, name)), value[name]) for name in reversed(value)]
        elif isinstance(value, str):
            if value and value not in WORDS and not _is_payload(place, value):
                yield Segment(path=place.path, text=value)
        elif (text := _text_of(value)) is not None and place.above is not None:
            yield Segment(path=place.path, text=text)


class _Place(NamedTuple):
    """Where a value stands."""

    above: _Place | None
    key: str | int
    media: int
    """How much of ``_MEDIA_AT`` its path begins with; -1: it begins otherwise."""

    @property
    def path(self) -> str:
        keys: list[str] = []
        place: _Place | None = self
        while place is not None:
            keys.append(_escaped(place.key) if isinstance(place.key, str) else str(place.key))
            place = place.above
        return "/" + "/".join(reversed(keys))


_MEDIA_AT = (frozenset({"messages"}), None, frozenset({"content"}), None, MEDIA)
"""The keys above an image, a sound or a file; None: an index."""


def _media(step: int, key: str | int) -> int:
    """``_Place.media`` of what stands under a key, in what has ``step``."""
    if not 0 <= step < len(_MEDIA_AT):
        return step
    wanted = _MEDIA_AT[step]
    return step + 1 if (isinstance(key, int) if wanted is None else key in wanted) else -1


def _text_of(value: Any) -> str | None:
    """The text of a string, or of a number that may be somebody's."""
    if isinstance(value, str):
        return value
    number = bytes(value).decode() if isinstance(value, msgspec.Raw) else str(value) if isinstance(value, int) else ""
    return number if len(number.partition(".")[0].lstrip("-")) >= DIGITS else None


def _is_payload(place: _Place, value: str) -> bool:
    """Whether it is the image, the sound or the file itself, and not where it is to be had."""
    is_data = value.startswith("data:") or (isinstance(place.key, str) and place.key.endswith("data"))
    return is_data and place.media == len(_MEDIA_AT)


def _spliced(text: str, spans: list[Span]) -> str:
    parts: list[str] = []
    at = 0
    for span in sorted(spans, key=lambda span: span.start):
        parts += text[at : span.start], span.replacement
        at = max(at, span.end)
    return "".join([*parts, text[at:]])


def _rename(fields: dict[str, Any], renamed: Mapping[str, str]) -> None:
    """Rename fields wherever they stand, in their places; two that would be one are told apart."""
    left: list[Any] = [fields]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            left += value.values()
            if not renamed.keys().isdisjoint(value):
                held = list(value.items())
                value.clear()
                taken: dict[str, int] = {}
                for name, inner in held:
                    told = name = renamed.get(name, name)
                    while told in value:
                        taken[name] = taken.get(name, 1) + 1
                        told = f"{name}_{taken[name]}"
                    value[told] = inner


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1") if "~" in name or "/" in name else name


def _unescaped(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")
