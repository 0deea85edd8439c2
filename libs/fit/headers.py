"""Headers where they are: in a folder, behind a URL, in a repository or in the cluster's library.

The one module here that reads files and speaks HTTP. Nothing but headers is fetched.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import msgspec

from . import config, gguf
from .facts import Facts, Unreadable

MAX_JSON = 64 << 20
"""Bytes. The largest index in use takes 9 MiB."""
FIRST_BYTES = 1 << 20
"""Of a GGUF file, to begin with; four times as many each time the header goes on."""
TIMEOUT_S = 30.0

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
_PART = re.compile(r"^(.+)-(\d{5})-of-(\d{5})\.gguf$")
_WEIGHTS = (".gguf", ".safetensors")
"""A source that ends so is a file: the repository of such a name is asked for with ``hf:``."""
_REPOSITORY = re.compile(r"^(?:hf:)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?\Z")


class Files(Protocol):
    """A set of files that can be read from their beginning."""

    def names(self) -> list[str]:
        """Every file's name, in order; with the folders above it where there are any."""

    def head(self, name: str, size: int) -> bytes:
        """The first ``size`` bytes, fewer when the file ends before. Raises Unreadable."""


class Model(msgspec.Struct, frozen=True):
    """A model as one set of files holds it."""

    facts: Facts
    config: Mapping[str, Any] | None = None
    """Its config.json: other precisions are computed from it."""


class Folder:
    """Files on this machine; a single file is a folder of one. Raises Unreadable where the path leads nowhere."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.exists():
            raise _nothing_at(path)

    def names(self) -> list[str]:
        """Of the files at its top."""
        if self._path.is_file():
            return [self._path.name]
        return sorted(file.name for file in self._path.iterdir() if file.is_file())

    def head(self, name: str, size: int) -> bytes:
        """The first ``size`` bytes of a file. Raises Unreadable."""
        path = self._path if self._path.is_file() else self._path / name
        try:
            with path.open("rb") as file:
                return file.read(size)
        except OSError as error:
            raise Unreadable(f"{path} cannot be read: {error.strerror}") from None


def _nothing_at(path: object) -> Unreadable:
    return Unreadable(f"{path} does not exist: give a folder with config.json or GGUF files, or a GGUF file")


class Web:
    """Files behind URLs, read by range."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = dict(urls)

    def names(self) -> list[str]:
        """The names that were given, whether anything answers there or not."""
        return sorted(self._urls)

    def head(self, name: str, size: int) -> bytes:
        """The first ``size`` bytes of a file, over HTTP. Raises Unreadable, also where the server does not know it."""
        return _get(self._urls[name], size)


def open_source(source: str) -> tuple[str, Files]:
    """A name for what ``source`` means, and its files. Raises Unreadable.

    A path or ``path:PATH``; ``https://…/FILE.gguf`` or ``https://…/FOLDER/`` with a config.json;
    ``ORG/NAME[@REVISION]`` or ``hf:…``, a repository at Hugging Face or at ``HF_ENDPOINT``, with ``HF_TOKEN`` where it
    is set.
    """
    if source.startswith("path:") or Path(source).exists():
        path = Path(source.removeprefix("path:"))
        return path.stem if path.is_file() else path.resolve().name, Folder(path)
    if source.startswith(("http://", "https://")):
        return _address(source)
    if source.startswith((".", "/", "~")) or (source.endswith(_WEIGHTS) and not source.startswith("hf:")):
        raise _nothing_at(source)
    repository = _REPOSITORY.match(source)
    if repository:
        return _repository(*repository.groups())
    raise Unreadable(
        f"{source!r} is not a file, folder, URL or repository: give a path, https://…, ORG/NAME[@REVISION] "
        "or library:NAME"
    )


def _address(url: str) -> tuple[str, Files]:
    name = urlsplit(url).path.rstrip("/").rsplit("/", 1)[-1]
    if name.endswith(".gguf"):
        return name.removesuffix(".gguf"), Web({name: url})
    base = url.removesuffix(CONFIG).rstrip("/")
    return name, Web({file: f"{base}/{file}" for file in (CONFIG, INDEX)})


def _repository(name: str, revision: str | None) -> tuple[str, Files]:
    endpoint, revision = _endpoint(), revision or "main"
    listing = _json(f"{endpoint}/api/models/{name}/revision/{quote(revision, safe='')}")
    try:
        paths = [str(file["rfilename"]) for file in listing["siblings"]]
    except (KeyError, TypeError):
        raise Unreadable(f"the listing of {name} at {endpoint} names no files") from None
    return name, Web({path: f"{endpoint}/{name}/resolve/{quote(revision, safe='')}/{quote(path)}" for path in paths})


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _json(url: str) -> Any:
    try:
        return json.loads(_get(url, MAX_JSON))
    except ValueError:
        raise Unreadable(f"{url} is not JSON") from None


def _get(url: str, size: int) -> bytes:
    request = urllib.request.Request(url, headers={"Range": f"bytes=0-{size - 1}", "User-Agent": "llmgw"})
    token = os.environ.get("HF_TOKEN")
    if token and url.startswith(f"{_endpoint()}/"):
        # Large files are redirected to other hosts, which are not to see it.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            body: bytes = response.read(size)
            return body
    except urllib.error.HTTPError as error:
        with error:
            raise Unreadable(f"{url} answers {error.code}: {error.reason}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        remedy = ": set HF_ENDPOINT to a hub that can be reached from here, or give a path"
        of_hub = url.startswith(f"{_endpoint()}/")
        raise Unreadable(f"{url} cannot be reached ({reason}){remedy if of_hub else ''}") from None


def read(name: str, files: Files) -> list[Model]:
    """Every model among the files: a set of GGUF files each, or the one of config.json. Raises Unreadable."""
    names = files.names()
    ggufs = [file for file in names if file.endswith(".gguf") and "mmproj" not in file.lower()]
    if ggufs:
        sets = _sets(ggufs)
        # One model has the source's name, several have their files'.
        return [
            Model(gguf.facts_of(stem if len(sets) > 1 else name, [_gguf(files, part) for part in parts]))
            for stem, parts in sets
        ]
    if CONFIG not in names:
        raise Unreadable(f"{name} has neither a {CONFIG} nor a GGUF file: found {', '.join(names[:5]) or 'nothing'}")
    settings = _object(files, CONFIG)
    weights = sorted(file for file in names if file.endswith(".safetensors"))
    index = _object(files, INDEX) if INDEX in names else None
    parts = index.get("weight_map") if index is not None else None
    if index is not None and not (isinstance(parts, dict) and set(parts.values()) <= set(weights)):
        weights = []
    # An index sums up its files; over HTTP there is no need to ask each of them.
    headers = [_safetensors(files, file) for file in weights] if index is None or isinstance(files, Folder) else []
    tensors = config.sum_of(headers) if headers else None
    return [Model(config.facts_of(name, settings, index=index, tensors=tensors), settings)]


def check(files: Files, name: str, size: int) -> None:
    """Raises Unreadable where a file of ``size`` bytes is not the ``.gguf`` or ``.safetensors`` its name says, or ends
    before its tensors do. Files of other kinds are not looked at."""
    if name.endswith(".gguf"):
        try:
            header = _gguf(files, name)
        except gguf.Newer:
            return
        needed = sum(tensor.bytes for tensor in header.tensors)
    elif name.endswith(".safetensors"):
        tensors = [tensor for key, tensor in _safetensors(files, name).items() if key != "__metadata__"]
        try:
            ends = [int(tensor["data_offsets"][1]) for tensor in tensors]
        except (KeyError, IndexError, TypeError, ValueError):
            raise Unreadable(f"{name}: its header does not say where its tensors are") from None
        needed = 8 + int.from_bytes(files.head(name, 8), "little") + max(ends, default=0)
    else:
        return
    if size < needed:
        raise Unreadable(f"{name} has {size} bytes and its header speaks of {needed}: it is cut short, fetch it again")


def _sets(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Models by name, each with its parts in order."""
    sets: dict[str, list[str]] = {}
    for name in sorted(names):
        part = _PART.match(name)
        sets.setdefault(part.group(1) if part else name.removesuffix(".gguf"), []).append(name)
    return list(sets.items())


def _object(files: Files, name: str) -> dict[str, Any]:
    body = files.head(name, MAX_JSON)
    try:
        value = json.loads(body)
    except ValueError as error:
        raise Unreadable(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Unreadable(f"{name} is not a JSON object")
    return value


def _safetensors(files: Files, name: str) -> dict[str, Any]:
    """A safetensors file begins with the length of its header, eight bytes, and the header as JSON."""
    length = int.from_bytes(files.head(name, 8), "little")
    if not 2 <= length <= MAX_JSON:
        raise Unreadable(f"{name} states a header of {length} bytes: it is not a safetensors file")
    body = files.head(name, 8 + length)[8:]
    try:
        header = json.loads(body)
    except ValueError:
        raise Unreadable(f"{name}: its header is not JSON: it is not a safetensors file, or cut short") from None
    if not isinstance(header, dict):
        raise Unreadable(f"{name}: its header is not a JSON object")
    return header


def _gguf(files: Files, name: str) -> gguf.Header:
    size = FIRST_BYTES
    while True:
        data = files.head(name, size)
        try:
            return gguf.parse(data)
        except gguf.TooShort:
            if len(data) < size:
                raise Unreadable(f"{name} ends within its header, after {len(data)} bytes: it is cut short") from None
        except gguf.Newer as problem:
            raise gguf.Newer(f"{name}: {problem}") from None
        except Unreadable as problem:
            raise Unreadable(f"{name}: {problem}") from None
        size *= 4
