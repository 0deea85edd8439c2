"""A request's body: read once, and changed only where it must be.

Only the few fields the gateway acts on are decoded; what it does not know travels untouched. An edit replaces
the value of a top-level field and leaves the bytes of every other value as they came.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec

from libs.events.policy import Segment, Span

from . import messages
from .errors import Fault, bad_body, too_deep
from .raw import ABSENT, present

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


class ResponseFormat(msgspec.Struct):
    type: str


class Asked(msgspec.Struct):
    """What the gateway reads of a completion request, chat or not.

    Most fields are here for their types only: engines answer a wrong one with an exception of their own.
    """

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    messages: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    query: msgspec.Raw = ABSENT
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: _Share | None = None
    min_p: _Share | None = None
    top_k: int | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
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


_asked = msgspec.json.Decoder(Asked)
_fields = msgspec.json.Decoder(_Object)
_prompt = msgspec.json.Decoder(str | list[str | int | list[int]])
_AT = re.compile(r" - at `\$\.?(.*)`$")
_INDEX = re.compile(r"\[([0-9]+)\]")
_MISSING = re.compile(r"missing required field `(.+?)`")


def read(body: bytes, content: str | None, translated: bool = False) -> Asked:
    """The request in ``body``, whose text is in the field ``content`` (``messages``, ``prompt``, ...; None: in any).

    What was ``translated`` here has messages of our own, which are not looked at again. Raises Fault (400) naming
    the field that is wrong.
    """
    try:
        if not body.isascii():
            body.decode()  # what is only passed on is not looked at by the decoder
        asked = _asked.decode(body)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_json(error) from None
    except RecursionError:
        raise too_deep() from None
    if content is None:
        return asked
    value: msgspec.Raw = getattr(asked, content)
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
    return asked


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


def asking_usage(asked: Asked, body: bytes) -> bytes:
    """The JSON of ``stream_options`` that asks for usage and keeps what the client put there."""
    if asked.stream_options is None:
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
MOST_SEGMENTS = 20_000


class Readable(msgspec.Struct):
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
        """Every piece of text the model may read, with the JSON pointer to it; of more than ``MOST_SEGMENTS``, one
        more than those."""
        return tuple(itertools.islice(_texts(self.fields), MOST_SEGMENTS + 1))

    def edit(self, edits: Iterable[Span]) -> dict[str, bytes]:
        """Replace the spans; all that was read, as JSON. Raises LookupError for a path not here.

        What did not change is among it: the engine gets what was judged, also where a name stands twice in the body.
        """
        by_path: dict[str, list[Span]] = {}
        for span in edits:
            by_path.setdefault(span.path, []).append(span)
        for path, spans in by_path.items():
            keys = [_unescaped(token) for token in path.split("/")[1:]]
            if not keys:
                raise LookupError(f"no such path in the body: {path!r}")
            holder: Any = self.fields
            for key in keys[:-1]:
                holder = holder[int(key)] if isinstance(holder, list) else holder[key]
            last: Any = int(keys[-1]) if isinstance(holder, list) else keys[-1]
            text = holder[last]
            if not isinstance(text, str):
                raise LookupError(f"no text at {path!r}")
            # From the end, so that earlier positions stay right.
            for span in sorted(spans, key=lambda span: span.start, reverse=True):
                text = text[: span.start] + span.replacement + text[span.end :]
            holder[last] = text
        return {name: msgspec.json.encode(value) for name, value in self.fields.items()}


_READ = (
    *("messages", "prompt", "suffix", "tools", "functions", "response_format", "documents", "prediction"),
    *("chat_template", "chat_template_kwargs", "input", "query", "content", "tokens"),
)
"""Fields whose text engines put before the model."""


def readable(body: bytes) -> Readable:
    """Decode what a policy may read. Raises Fault (400)."""
    try:
        fields = _fields.decode(body)
        return Readable({name: msgspec.json.decode(fields[name]) for name in _READ if name in fields})
    except RecursionError:
        raise too_deep() from None
    except msgspec.DecodeError as error:
        raise _not_json(error) from None


def _texts(fields: dict[str, Any]) -> Iterator[Segment]:
    # No recursion: how deep a body is nested is the client's choice. The last is looked at first.
    left: list[tuple[str, Any]] = [(f"/{name}", fields[name]) for name in reversed(_READ) if name in fields]
    while left:
        path, value = left.pop()
        if isinstance(value, str):
            if value and value not in WORDS:
                yield Segment(path=path, text=value)
        elif isinstance(value, list):
            left += [(f"{path}/{index}", value[index]) for index in range(len(value) - 1, -1, -1)]
        elif isinstance(value, dict):
            skipped = MEDIA if _PART.match(path) else ()
            inside = [(f"{path}/{_escaped(name)}", inner) for name, inner in value.items() if name not in skipped]
            left += reversed(inside)


_PART = re.compile(r"^/messages/[0-9]+/content/[0-9]+$")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _unescaped(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")
