"""One commit of a repository of the Hugging Face hub, over the hub's HTTP API. Blocking: runs in a thread.

Facts: https://huggingface.co/docs/hub/api (``/api/models/REPO/revision/COMMIT?blobs=true``) and the addresses
``/REPO/resolve/COMMIT/PATH`` that every client of the hub downloads from. Large files are published with their SHA-256
and come from another host; small ones with git's sum.
"""

from __future__ import annotations

import hashlib
import http.client
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from libs.events.library import WeightFile
from libs.events.sources import HubSource

from .download import (
    Answer,
    MirrorFailed,
    content_of,
    ranged,
    request,
    sentence_of,
)
from .store import Rejected

_MAX_LISTING_BYTES = 64 * 2**20
_MAX_SMALL_BYTES = 32 * 2**20
"""Of a file git itself keeps; the hub takes no larger ones."""

_MAX_REDIRECTS = 5
_NAMED = 8

_WITH_WEIGHTS = frozenset({".json", ".jinja", ".model", ".tiktoken"})
_WITH_WEIGHTS_NAMED = frozenset({"merges.txt", "vocab.txt"})
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


class Hub(NamedTuple):
    """A hub, and the token it may ask for."""

    endpoint: str
    token_file: Path | None = None
    """Read at each request; the token goes to the endpoint's host and no other."""


HUGGING_FACE = Hub("https://huggingface.co")


class _Lfs(msgspec.Struct):
    sha256: str
    size: int


class _Listed(msgspec.Struct):
    rfilename: str
    size: int | None = None
    blobId: str = ""
    """Git's SHA-1 of the file, or of the pointer that stands for a large one."""
    lfs: _Lfs | None = None


class _Revision(msgspec.Struct):
    sha: str
    siblings: tuple[_Listed, ...] = ()


class Repository:
    """One commit of it."""

    def __init__(self, hub: Hub, source: HubSource) -> None:
        self._hub = hub
        self._source = source
        self._endpoint = hub.endpoint.rstrip("/")

    def __str__(self) -> str:
        return f"{self._endpoint}/{self._source.repository}"

    def listing(self, keep: Callable[[bytes], str]) -> list[WeightFile]:
        """What of the commit is wanted. Small files are read, held against git's sum and given to ``keep``, which
        answers with their SHA-256.

        Raises MirrorFailed, OSError (disk) and ``store.Rejected``.
        """
        listed = self._listed()
        return [self._file(listed[name], keep) for name in wanted_of(listed, self._source)]

    def names(self) -> list[str]:
        """The paths of what is wanted. Raises MirrorFailed and ``store.Rejected``."""
        return wanted_of(self._listed(), self._source)

    def head(self, path: str, size: int) -> bytes:
        """The first ``size`` bytes of a file, fewer when it ends before. Raises MirrorFailed."""
        headers = {"Range": f"bytes=0-{size - 1}", "Accept-Encoding": "identity"}
        connection, response = self._get(self._address(path), headers, path)
        try:
            if response.status not in (200, 206):
                raise MirrorFailed(f"{self} answered HTTP {response.status} for {path}")
            return response.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise MirrorFailed(f"{self} broke off: {sentence_of(error)}") from None
        finally:
            connection.close()

    def _listed(self) -> dict[str, _Listed]:
        source = self._source
        content = self._read(
            f"{self._endpoint}/api/models/{source.repository}/revision/{source.commit}?blobs=true",
            "the list of its files",
            _MAX_LISTING_BYTES,
        )
        try:
            revision = msgspec.json.decode(content, type=_Revision)
        except msgspec.DecodeError as error:
            raise MirrorFailed(f"{self} gave a list of files that cannot be read: {error}", lasting=True) from None
        if revision.sha != source.commit:
            raise Rejected(f"{self} answered with the commit {revision.sha} when asked for {source.commit}")
        return {file.rfilename: file for file in revision.siblings}

    def _file(self, listed: _Listed, keep: Callable[[bytes], str]) -> WeightFile:
        if listed.lfs is not None:
            return WeightFile(path=listed.rfilename, size_bytes=listed.lfs.size, sha256=listed.lfs.sha256)
        content = self._read(self._address(listed.rfilename), listed.rfilename, _MAX_SMALL_BYTES)
        git_sum = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        if git_sum != listed.blobId:
            raise Rejected(f"{listed.rfilename} of {self} has git's SHA-1 {git_sum} and should have {listed.blobId}")
        return WeightFile(path=listed.rfilename, size_bytes=len(content), sha256=keep(content))

    def open(self, file: WeightFile, offset: int) -> Answer:
        return content_of(self._get(self._address(file.path), ranged(offset), file.path), str(self), file, offset)

    def doubt(self, file: WeightFile) -> None:
        """A hub is told nothing."""

    def _address(self, path: str) -> str:
        return f"{self._endpoint}/{self._source.repository}/resolve/{self._source.commit}/{quote(path)}"

    def _read(self, url: str, what: str, most: int) -> bytes:
        connection, response = self._get(url, {}, what)
        try:
            if response.status != 200:
                raise MirrorFailed(f"{self} answered HTTP {response.status} for {what}")
            content = response.read(most + 1)
            left = response.length or 0
        except (OSError, http.client.HTTPException) as error:
            raise MirrorFailed(f"{self} broke off: {sentence_of(error)}") from None
        finally:
            connection.close()
        if len(content) > most:
            raise MirrorFailed(f"{self}: {what} is larger than {most // 2**20} MB", lasting=True)
        if left:
            raise MirrorFailed(f"{self} broke off {left} bytes before the end of {what}")
        return content

    def _get(self, url: str, headers: Mapping[str, str], what: str) -> Answer:
        """The answer at the end of the redirects."""
        for _ in range(_MAX_REDIRECTS):
            try:
                ours = _place(url) == _place(self._endpoint)
            except ValueError:
                raise MirrorFailed(
                    f"{self} leads to {url!r} for {what}, which is not an address", lasting=True
                ) from None
            connection, response = request(str(self), url, {**headers, **(self._token() if ours else {})})
            if response.status in (301, 302, 303, 307, 308):
                target = urljoin(url, response.headers.get("Location") or "")
                connection.close()
                if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
                    raise MirrorFailed(f"{self} leads to {_host(target)} without TLS for {what}", lasting=True)
                url = target
                continue
            if response.status in (401, 403, 404):
                connection.close()
                raise MirrorFailed(self._denied(response.status, what, url if ours else _host(url)), lasting=True)
            return connection, response
        raise MirrorFailed(f"{self} leads on and on for {what}", lasting=True)

    def _denied(self, status: int, what: str, where: str) -> str:
        if status == 404:
            return f"{self} has no {what} at the commit {self._source.commit} (HTTP 404 of {where})"
        remedy = (
            "does the owner of the token in hf_token_file have access to it?"
            if self._hub.token_file
            else "if it asks for a token, name a file with one in the agent's setting hf_token_file"
        )
        return f"{self} refuses {what} (HTTP {status} of {where}): {remedy}"

    def _token(self) -> dict[str, str]:
        if self._hub.token_file is None:
            return {}
        try:
            token = self._hub.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise MirrorFailed(f"hf_token_file {self._hub.token_file} cannot be read: {error}", lasting=True) from None
        if not token.isascii() or not token.isprintable() or not token:
            raise MirrorFailed(f"hf_token_file {self._hub.token_file} does not hold a token", lasting=True)
        return {"Authorization": f"Bearer {token}"}


def _place(url: str) -> tuple[str, str | None, int]:
    """What a token is for: scheme, host and port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _host(url: str) -> str:
    """Without the signature such addresses carry."""
    return urlsplit(url).hostname or "nowhere"


def wanted_of(names: Iterable[str], source: HubSource) -> list[str]:
    """The files of a commit that are fetched: the safetensors, or the GGUF file (all parts of it) that was chosen, and
    what describes the model and its tokenizer. Raises ``store.Rejected`` when there are none."""
    there = sorted(name for name in names if not any(part.startswith(".") for part in PurePosixPath(name).parts))
    ggufs = [name for name in there if name.endswith(".gguf")]
    if source.file:
        part = _PART.search(source.file)
        stem = source.file[: part.start()] if part else ""
        parts = [f"{stem}-{i:05}-of-{part[2]}.gguf" for i in range(1, int(part[2]) + 1)] if part else [source.file]
        missing = [name for name in parts if name not in ggufs]
        if missing:
            raise Rejected(f"{source.repository} has no {missing[0]} at that commit; {_some(ggufs, 'it has')}")
        return [*parts, *(name for name in there if "/" not in name and _describes(name))]
    tensors = [name for name in there if name.endswith(".safetensors")]
    if any(not PurePosixPath(name).name.startswith("consolidated") for name in tensors):
        # The same weights once more, as their maker's own programs read them.
        tensors = [name for name in tensors if not PurePosixPath(name).name.startswith("consolidated")]
    if not tensors:
        remedy = f"{_some(ggufs, 'choose one of its GGUF files with :FILE')}" if ggufs else "nor GGUF files"
        raise Rejected(f"{source.repository} has no safetensors at that commit: {remedy}")
    return [*tensors, *(name for name in there if _describes(name))]


def _describes(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix in _WITH_WEIGHTS or path.name in _WITH_WEIGHTS_NAMED


def _some(names: list[str], what: str) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{what}: {', '.join(names[:_NAMED]) or 'none'}{more}"
