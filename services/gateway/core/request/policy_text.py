"""What a guard policy reads of a request, and what it changes there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from libs.events.policy import Segment, Span
from services.gateway.core.json.fields import Json
from services.gateway.core.json.lossless import Number, encoded

from .body import Body, ParsedRequest

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


class PolicyText:
    """The fields of a body with text in them. Raises Fault (400) where the body is no JSON object."""

    __slots__ = ("_body", "_fields")

    def __init__(self, body: Body) -> None:
        self._body = body
        self._fields = _read_by_models(body.tree)

    @property
    def unreadable(self) -> str | None:
        """The field that holds something else than text, as token ids: no policy can read it."""
        for name in ("prompt", "input"):
            value = self._fields.get(name)
            parts = value if isinstance(value, list) else [] if value is None else [value]
            if any(not isinstance(part, str) for part in parts):
                return name
        return "tokens" if self._fields.get("tokens") else None

    def segments(self) -> tuple[Segment, ...]:
        """Every piece of text the model may read, with the JSON pointer to it; of more than ``MAX_SEGMENTS`` or
        ``MAX_CHARACTERS``, so many that they are more than those. The name of a field has the path ``#/NAME``,
        wherever and however often it stands.
        """
        segments = []
        left = MAX_CHARACTERS
        for segment in _texts(self._fields):
            segments.append(segment)
            left -= len(segment.path) + len(segment.text)
            if left < 0 or len(segments) > MAX_SEGMENTS:
                break
        return tuple(segments)

    def edit(self, edits: Iterable[Span]) -> dict[str, bytes | None]:
        """Replace the spans; all that was read, as JSON (None: no such field any more). Raises LookupError for a path
        not here.

        What did not change is among it: the engine gets what was judged, also where a name stands twice in the body.
        """
        fields = self._fields
        by_path: dict[str, list[Span]] = {}
        for span in edits:
            by_path.setdefault(span.path, []).append(span)
        if by_path:
            # A decoded body is never changed.
            fields = _read_by_models(Body(self._body.data).tree)
        renamed: dict[str, str] = {}
        for path, spans in by_path.items():
            keys = [_unescaped(token) for token in path.split("/")[1:]]
            if not keys:
                raise LookupError(f"no such path in the body: {path!r}")
            if path.startswith("#/"):
                renamed[keys[0]] = _spliced(keys[0], spans)
                continue
            holder: Any = fields
            for key in keys[:-1]:
                holder = holder[int(key)] if isinstance(holder, list) else holder[key]
            last: Any = int(keys[-1]) if isinstance(holder, list) else keys[-1]
            text = _text_of(holder[last])
            if text is None:
                raise LookupError(f"no text at {path!r}")
            holder[last] = _spliced(text, spans)
        gone: dict[str, bytes | None] = {}
        if renamed:
            gone = {name: None for name in renamed if name in fields}
            _rename(fields, renamed)
        return gone | {name: encoded(value) for name, value in fields.items()}


_KNOWN = frozenset(ParsedRequest.__struct_fields__) | {"functions", "function_call", "suffix", "prediction"}
"""Fields whose names hold nothing."""


def _read_by_models(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if name not in _NOT_READ}


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
    number = value.text if isinstance(value, Number) else str(value) if isinstance(value, int) else ""
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
                    unique = name = renamed.get(name, name)
                    while unique in value:
                        taken[name] = taken.get(name, 1) + 1
                        unique = f"{name}_{taken[name]}"
                    value[unique] = inner


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1") if "~" in name or "/" in name else name


def _unescaped(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")
