"""The header of a GGUF file: its metadata and the shape and type of every tensor, never the tensors.

The format is documented in ggml's ``docs/gguf.md``; versions 2 and 3 differ in nothing that is read here.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import msgspec

from .facts import MAX_LAYERS, Experts, Facts, Layers, Unreadable, Weights
from .quantisation import FILE_TYPES, GGML, REPACKED, Type

MAX_HEADER = 256 << 20
"""Bytes. Vocabularies of 260,000 words take about 8 MiB; what is longer is not a header."""
_KEPT_ITEMS = 4096
"""Longer arrays (vocabularies) are counted, not kept."""
_MAX_TENSORS = 1 << 20
_MAX_STRING = 64 << 20
_MAX_DIMENSIONS = 8

_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9

_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "exaone4": 4, "olmo2": 4}
"""One layer in so many sees everything, the others slide: llama.cpp knows it by architecture where files are silent."""

_EXPERT = re.compile(r"^blk\.\d+\.ffn_(gate|up|down|gate_up)_exps\.")


class Newer(Unreadable):
    """The file is sound as far as it can be read, and holds something that is not known here."""


class TooShort(Exception):
    """The header goes on after the bytes that were given."""


class Counted(msgspec.Struct, frozen=True):
    """A long array of the metadata: only how long."""

    length: int


class Tensor(msgspec.Struct, frozen=True):
    """A tensor's entry in the header. ``shape`` is as ggml counts: the length of a row first."""

    name: str
    shape: tuple[int, ...]
    type: Type

    @property
    def elements(self) -> int:
        """How many weights are in it."""
        product = 1
        for size in self.shape:
            product *= size
        return product

    @property
    def bytes(self) -> int:
        """Bytes of it in the file: blocks of its type, as many as its elements fill."""
        return self.elements // self.type.block * self.type.size


class Header(msgspec.Struct, frozen=True):
    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]


class _Cursor:
    """Reads the little-endian values of a buffer in order."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data)
        self.at = 0

    def read(self, size: int) -> memoryview:
        end = self.at + size
        if end > MAX_HEADER:
            raise Unreadable(f"the header is longer than {MAX_HEADER >> 20} MiB: this is not a sound GGUF file")
        if end > len(self.data):
            raise TooShort
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def number(self, kind: str) -> Any:
        return struct.unpack(kind, self.read(struct.calcsize(kind)))[0]

    def count(self, most: int, what: str) -> int:
        value: int = self.number("<Q")
        if value > most:
            raise Unreadable(f"the header states {value} {what}, more than {most}: this is not a sound GGUF file")
        return value

    def text(self) -> str:
        return str(self.read(self.count(_MAX_STRING, "bytes of one text")), "utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth > 4:
            raise Unreadable(f"the header has a value of kind {kind}, which GGUF does not know")
        inner, length = self.number("<I"), self.count(MAX_HEADER, "values in one array")
        if inner in _NUMBERS:
            size = struct.calcsize(_NUMBERS[inner])
            piece = self.read(size * length)
            if length > _KEPT_ITEMS:
                return Counted(length)
            return [item for (item,) in struct.iter_unpack(_NUMBERS[inner], piece)]
        if inner == _STRING and length > _KEPT_ITEMS:
            for _ in range(length):
                self.read(self.count(_MAX_STRING, "bytes of one text"))
            return Counted(length)
        return [self.value(inner, depth + 1) for _ in range(length)]


def parse(data: bytes | memoryview) -> Header:
    """The header ``data`` begins with. Raises TooShort when it goes on behind it, Unreadable when it is none."""
    cursor = _Cursor(data)
    magic = bytes(cursor.read(4))
    if magic != b"GGUF":
        raise Unreadable(f"this is not a GGUF file: it begins with {magic!r}")
    version = cursor.number("<I")
    if version not in (2, 3):
        raise Unreadable(
            f"this is a GGUF file of version {version if version < 256 else 'unknown (big-endian)'}: 2 and 3 are read"
        )
    tensors = cursor.count(_MAX_TENSORS, "tensors")
    values = cursor.count(_MAX_TENSORS, "metadata values")
    metadata: dict[str, Any] = {}
    for _ in range(values):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.number("<I"))
    return Header(metadata, tuple(_tensor(cursor) for _ in range(tensors)))


def _tensor(cursor: _Cursor) -> Tensor:
    name = cursor.text()
    dimensions = cursor.number("<I")
    if dimensions > _MAX_DIMENSIONS:
        raise Unreadable(f"the tensor {name!r} states {dimensions} dimensions: this is not a sound GGUF file")
    shape = struct.unpack(f"<{dimensions}Q", cursor.read(8 * dimensions))
    number = cursor.number("<I")
    cursor.number("<Q")
    kind = GGML.get(number)
    if kind is None:
        raise Newer(f"the tensor {name!r} is of type {number}, which is not known here: the file is newer")
    if shape and shape[0] % kind.block:
        raise Unreadable(f"the tensor {name!r} has rows of {shape[0]}, which {kind.name} cannot hold")
    return Tensor(name, shape, kind)


def facts_of(name: str, headers: list[Header]) -> Facts:
    """A model's facts; a split model has a header a part, the first first. Raises Unreadable."""
    metadata = headers[0].metadata
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise Unreadable("the GGUF header does not name its architecture (general.architecture)")
    parts = metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1 and parts != len(headers):
        raise Unreadable(f"the model is split into {parts} files and {len(headers)} are there: plan with all of them")
    return _Reading(name, architecture, metadata, [t for header in headers for t in header.tensors]).facts()


class _Reading:
    """A header, understood."""

    def __init__(self, name: str, architecture: str, metadata: dict[str, Any], tensors: list[Tensor]) -> None:
        self.name = name
        self.architecture = architecture
        self.metadata = metadata
        self.tensors = tensors
        self.layers = self._int("block_count") - (self._whole("nextn_predict_layers") or 0)
        if not 0 < self.layers <= MAX_LAYERS:
            raise Unreadable(f"the GGUF header states {self.layers} layers: 1 to {MAX_LAYERS} are expected")
        self.hidden = self._int("embedding_length")
        self.heads = max(self._each("attention.head_count"))
        if not 0 < self.heads <= self.hidden:
            raise Unreadable(f"the GGUF header states {self.heads} attention heads for a hidden size of {self.hidden}")
        self.kv_heads = self._each("attention.head_count_kv", self.heads)
        self.encoder = self._find("attention.causal") is False

    def _find(self, key: str) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}")

    def _whole(self, key: str) -> int | None:
        """A figure that may be missing."""
        value = self._find(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise Unreadable(f"the GGUF header's {self.architecture}.{key} is {value!r}: a whole number is expected")
        return value

    def _int(self, key: str) -> int:
        value = self._whole(key)
        if not value:
            raise Unreadable(f"the GGUF header's {self.architecture}.{key} is {value!r}: a number above 0 is expected")
        return value

    def _each(self, key: str, otherwise: int | None = None) -> list[int]:
        """A figure of every layer: files state one for all, or a list."""
        value = self._find(key)
        if isinstance(value, list) and len(value) >= self.layers and all(isinstance(figure, int) for figure in value):
            return value[: self.layers]
        if isinstance(value, int):
            return [value] * self.layers
        if otherwise is not None:
            return [otherwise] * self.layers
        raise Unreadable(f"the GGUF header has no {self.architecture}.{key}")

    def _windows(self) -> list[int]:
        window = self._whole("attention.sliding_window")
        if not window:
            return [0] * self.layers
        pattern = self._find("attention.sliding_window_pattern")
        if isinstance(pattern, list) and len(pattern) >= self.layers:
            return [window if slides else 0 for slides in pattern[: self.layers]]
        every = pattern if isinstance(pattern, int) and pattern else _PATTERNS.get(self.architecture)
        if every is None:
            return [0] * self.layers
        return [0 if (i + 1) % every == 0 else window for i in range(self.layers)]

    def _attention(self) -> tuple[Layers, ...]:
        if self.encoder:
            return ()
        windows = self._windows()
        key = self._whole("attention.key_length") or self.hidden // self.heads
        value = self._whole("attention.value_length") or self.hidden // self.heads
        near = (self._whole("attention.key_length_swa") or key, self._whole("attention.value_length_swa") or value)
        every = self._whole("full_attention_interval")
        keeping = self.layers - (self._whole("attention.shared_kv_layers") or 0)
        groups: dict[tuple[int, int, int, int], int] = {}
        for i in range(keeping):
            if self.kv_heads[i] == 0 or (every and (i + 1) % every):
                continue
            kept = (1, key, 0) if self._latent() else (self.kv_heads[i], *(near if windows[i] else (key, value)))
            group = (windows[i], *kept)
            groups[group] = groups.get(group, 0) + 1
        return tuple(
            Layers(count=number, kv_heads=heads, key_dim=k, value_dim=v, window=window or None)
            for (window, heads, k, v), number in sorted(groups.items())
        )

    def _latent(self) -> bool:
        # Older files of such models lack this key; of them llama.cpp keeps full heads.
        return bool(self._find("attention.kv_lora_rank") and self._find("attention.key_length_mla"))

    def _experts(self) -> Experts | None:
        total = self._whole("expert_count")
        if total is None or total < 2:
            return None
        return Experts(
            total=total, active=self._whole("expert_used_count") or 1, shared=self._whole("expert_shared_count") or 0
        )

    def facts(self) -> Facts:
        experts = self._experts()
        total = sum(tensor.bytes for tensor in self.tensors)
        parameters = sum(tensor.elements for tensor in self.tensors)
        if not total:
            raise Unreadable("the GGUF header names no tensors: it is a vocabulary, not a model")
        table = next((t for t in self.tensors if t.name == "token_embd.weight"), None)
        head = any(t.name == "output.weight" for t in self.tensors)
        number = self.metadata.get("general.file_type")
        file_type = FILE_TYPES.get(number) if isinstance(number, int) else None
        feed_forward = max(self._each("feed_forward_length", 4 * self.hidden))
        if experts:
            shared = self._whole("expert_shared_feed_forward_length") or 0
            feed_forward = (self._whole("expert_feed_forward_length") or feed_forward) * experts.active + shared
        attention = self._attention()
        return Facts(
            name=self.name,
            format="gguf",
            architecture=self.architecture,
            precision=file_type or _most(self.tensors),
            bits=8 * total / parameters,
            layers=self.layers,
            hidden=self.hidden,
            feed_forward=feed_forward,
            heads=self.heads,
            kv_heads=max(self.kv_heads),
            head_dim=self._whole("attention.key_length") or self.hidden // self.heads,
            attention=attention,
            latent=self._latent(),
            experts=experts,
            vocabulary=self._vocabulary(table),
            context=self._int("context_length"),
            parameters=parameters,
            encoder=self.encoder,
            weights=Weights(
                total=total,
                experts=sum(t.bytes for t in self.tensors if _EXPERT.match(t.name)),
                unread=table.bytes if table and head else 0,
                repacked=sum(t.bytes for t in self.tensors if _repacked(t)),
            ),
        )

    def _vocabulary(self, table: Tensor | None) -> int:
        words = self.metadata.get("tokenizer.ggml.tokens")
        if isinstance(words, Counted):
            return words.length
        if isinstance(words, list):
            return len(words)
        return table.shape[-1] if table and table.shape else 0


def _repacked(tensor: Tensor) -> bool:
    return tensor.type.name in REPACKED and len(tensor.shape) > 1 and tensor.name != "token_embd.weight"


def _most(tensors: list[Tensor]) -> str:
    """The type most bytes are in."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.bytes
    return max(sizes, key=lambda name: sizes[name])
