"""A chat answer as a row of blocks: thinking, text, refusal, tool calls.

Chat sends pieces of several things at once; Messages and Responses send one thing after the other. Here the
pieces are put in that order: one block is open at a time and its pieces go on at once, those of later blocks
wait. A tool call ends when its arguments are a whole JSON object and something else began, or with the answer.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

import msgspec

from services.gateway.core.json.lossless import ABSENT, SurrogateHalves, decoded, present, with_marks
from services.gateway.core.sse.events import BadStream, Events
from services.gateway.core.usage.engine_usage import EngineUsage, TokenUsage

from .stop_reasons import Stop

Sort = Literal["thinking", "text", "refusal", "tool"]


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: msgspec.Raw = ABSENT

    @property
    def text(self) -> str:
        """The arguments as JSON, whether they came as text or as the object itself."""
        if not present(self.arguments):
            return ""
        if bytes(memoryview(self.arguments)[:1]) == b'"':
            return msgspec.json.decode(self.arguments, type=str)
        return bytes(self.arguments).decode()


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class Delta(msgspec.Struct):
    """What an answer consists of: a delta of a stream, or a whole message."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class Choice(msgspec.Struct):
    index: int = 0
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    """vLLM and TensorRT-LLM: the stop sequence that was met."""
    matched_stop: Any = None
    """SGLang's name for it."""


class _Verbose(msgspec.Struct):
    stopping_word: Any = None


class Chunk(msgspec.Struct):
    """A chat completion, or a chunk of one."""

    id: str | None = None
    model: str | None = None
    created: int | float | None = None
    choices: list[Choice] | None = None
    usage: EngineUsage | None = None
    error: msgspec.Raw = ABSENT
    verbose: _Verbose | None = msgspec.field(default=None, name="__verbose")
    """llama.cpp's: the stop sequence that was met."""


_chunk = msgspec.json.Decoder(Chunk)


class Block:
    """One thing of an answer."""

    __slots__ = ("call_id", "halves", "index", "key", "name", "opened", "parts", "sent", "sort")

    def __init__(self, sort: Sort, key: int = 0, call_id: str = "", name: str = "") -> None:
        self.sort: Sort = sort
        self.key = key
        """Of a tool call: its index in the chat answer."""
        self.call_id = call_id
        self.name = name
        self.index = 0
        """Its place among all blocks of the answer, known once it is open."""
        self.parts: list[str] = []
        self.halves = SurrogateHalves()
        self.sent = 0
        """Parts that were passed on."""
        self.opened = False

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self.parts)

    @property
    def whole(self) -> bool:
        """Whether nothing more can belong to it once something else began."""
        if self.sort != "tool":
            return True
        text = self.text.rstrip()
        if not text.endswith("}"):
            return False
        try:
            decoded(text)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True


class Blocks:
    """Pieces in, blocks out in order. ``opened``, ``added`` and ``closed`` are a subclass's matter.

    ``without``: sorts that are left out, pieces and all.
    """

    def __init__(self, without: frozenset[Sort] = frozenset()) -> None:
        self._without = without
        self._queue: deque[Block] = deque()
        self._tools: list[Block] = []
        self._marked = False
        """Whether marks of half characters may stand in the piece that was read last."""
        self.stop = Stop()
        self.count = 0

    def opened(self, block: Block) -> None:
        """A block begins; the one before has ended."""

    def added(self, block: Block, text: str) -> None:
        """A piece of the open block."""

    def closed(self, block: Block, last: bool) -> None:
        """The open block ends; ``last``: and with it the answer."""

    def read(self, data: bytes) -> Chunk:
        """A chunk, or a whole answer. Raises BadStream."""
        legible = with_marks(data)
        self._marked = legible is not data
        try:
            return _chunk.decode(legible)
        except (msgspec.DecodeError, RecursionError) as problem:
            raise BadStream(f"the engine's answer cannot be read: {problem}") from None

    def add_chunk(self, chunk: Chunk) -> None:
        """What the first choice of a chunk, or of a whole answer, brings."""
        word = chunk.verbose.stopping_word if chunk.verbose is not None else None
        for choice in chunk.choices or ():
            if choice.index == 0:
                self._add_choice(choice, word or None)

    def _add_choice(self, choice: Choice, stopping_word: Any) -> None:
        delta = choice.delta or choice.message
        if delta is not None:
            for thought in (delta.reasoning_content, delta.reasoning):
                if isinstance(thought, str) and thought:
                    self._text("thinking", thought)
                    break
            if isinstance(delta.content, str):
                self._text("text", delta.content)
            elif isinstance(delta.content, list):
                self._parts(delta.content)
            if delta.refusal:
                self.stop.refused = True
                self._text("refusal", delta.refusal)
            for place, call in enumerate(delta.tool_calls or ()):
                if call.index is None and choice.message is not None:
                    call.index = place
                self._call(call)
            if delta.function_call is not None:
                self._call(_ToolCall(index=0, function=delta.function_call))
        self.stop.note(choice.finish_reason, choice.stop_reason, choice.matched_stop, stopping_word)

    def end(self) -> None:
        """Nothing more comes."""
        while self._queue:
            block = self._whole(self._queue[0])
            self._queue.popleft()
            self.closed(block, not self._queue)

    def _parts(self, parts: list[Any]) -> None:
        for part in parts:
            if isinstance(part, dict):
                for name, sort in (("thinking", "thinking"), ("text", "text"), ("refusal", "refusal")):
                    if isinstance(part.get(name), str):
                        self._text(sort, part[name])  # type: ignore[arg-type]

    def _text(self, sort: Sort, text: str) -> None:
        if not text or sort in self._without:
            return
        last = self._queue[-1] if self._queue else None
        if last is None or last.sort != sort:
            last = self._begin(Block(sort))
        self._add(last, text)

    def _call(self, call: _ToolCall) -> None:
        self.stop.tools = True
        function = call.function or _Function()
        block = self._known(call)
        if block is None:
            key = len(self._tools) if call.index is None else call.index
            block = Block("tool", key, call.id or "", function.name or "")
            self._tools.append(block)
            self._begin(block)
        elif not block.opened:
            block.call_id = block.call_id or call.id or ""
            block.name = block.name or function.name or ""
        self._add(block, function.text)

    def _known(self, call: _ToolCall) -> Block | None:
        """The block a piece of a tool call belongs to.

        Some engines give every call index 0, others none at all: an id that was not seen before is another call.
        """
        if call.index is None and not call.id and call.function is not None and call.function.name:
            return None
        for block in reversed(self._tools):
            if call.index is not None and block.key != call.index:
                continue
            if call.id and block.call_id and call.id != block.call_id:
                continue
            return block
        return None

    def _begin(self, block: Block) -> Block:
        self._queue.append(block)
        self._advance()
        return block

    def _add(self, block: Block, text: str) -> None:
        if self._marked or block.halves.waiting:
            text = block.halves.joined(text)
        if text:
            block.parts.append(text)
        self._advance()

    def _advance(self) -> None:
        while self._queue:
            head = self._queue[0]
            if head.sort == "tool" and not head.name:
                return
            self._open(head)
            if len(self._queue) == 1 or not head.whole:
                return
            self._whole(head)
            self.closed(self._queue.popleft(), False)

    def _whole(self, block: Block) -> Block:
        """All of it is out."""
        if rest := block.halves.rest():
            block.parts.append(rest)
        self._open(block)
        return block

    def _open(self, block: Block) -> None:
        if not block.opened:
            block.opened = True
            block.index = self.count
            self.count += 1
            self.opened(block)
        while block.sent < len(block.parts):
            block.sent += 1
            self.added(block, block.parts[block.sent - 1])


class _Row(Blocks):
    """All blocks of an answer that came in one piece."""

    def __init__(self, without: frozenset[Sort]) -> None:
        super().__init__(without)
        self.blocks: list[Block] = []

    def opened(self, block: Block) -> None:
        self.blocks.append(block)


class Answer(msgspec.Struct):
    """A whole chat completion."""

    chunk: Chunk
    blocks: list[Block]
    stop: Stop

    @property
    def used(self) -> TokenUsage:
        """What the engine said it used; zeros where it did not say."""
        return self.chunk.usage.used() if self.chunk.usage is not None else TokenUsage()


def answer_of(payload: bytes, without: frozenset[Sort] = frozenset()) -> Answer:
    """The first choice of a chat completion. Raises BadStream when it is none."""
    row = _Row(without)
    chunk = row.read(payload)
    if not chunk.choices:
        raise BadStream("the answer has no choices")
    chunk.choices[0].index = 0
    row.add_chunk(chunk)
    row.end()
    return Answer(chunk, row.blocks, row.stop)


class ChatStream(Blocks):
    """The chunks of a streamed chat completion, as bytes cut anywhere; the events of another protocol out of them.

    A subclass writes events to ``out``: ``begun`` at the first chunk, then blocks, then ``ended``.
    """

    def __init__(self, without: frozenset[Sort] = frozenset()) -> None:
        super().__init__(without)
        self._events = Events()
        self._begun = False
        self.finished = False
        self.used = TokenUsage()
        self.out: list[bytes] = []

    def begun(self, chunk: Chunk) -> None:
        """The first chunk is here."""

    def begin(self, chunk: Chunk) -> None:
        """Say ``begun`` where it was not said yet."""
        if not self._begun:
            self._begun = True
            self.begun(chunk)

    def ended(self) -> None:
        """All blocks are closed; ``stop`` and ``used`` are what they will be."""

    def feed(self, data: bytes) -> bytes:
        """The events that may go out now. Raises BadStream, Overlong."""
        for event in self._events.feed(data):
            if self.finished:
                break
            if event.data == b"[DONE]":
                self._finish()
            elif not _says_nothing(event.data):
                self._add_event(self.read(event.data))
        out = b"".join(self.out)
        self.out.clear()
        return out

    def _add_event(self, chunk: Chunk) -> None:
        if present(chunk.error):
            raise BadStream("an error in the stream")
        if chunk.usage is not None:
            self.used = chunk.usage.used()
        self.begin(chunk)
        self.add_chunk(chunk)

    def _finish(self) -> None:
        self.begin(Chunk())
        self.end()
        self.finished = True
        self.ended()


def _says_nothing(data: bytes) -> bool:
    """Whether it is a value that is no object: JSON, and nothing of an answer."""
    if data.lstrip()[:1] == b"{":
        return False
    try:
        decoded(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
