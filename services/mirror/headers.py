"""What the files of a version say of the model, read where they lie in the store."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from libs.events.headers import ModelHeaders
from libs.events.library import WeightFile
from libs.fit import Unreadable
from libs.fit.headers import read

from .adapters.store import Store

log = logging.getLogger("llmgw.mirror")

MAX_BYTES = 256 << 20
"""No header in use takes a tenth of it; what claims more is not read into memory to find out."""


class _Stored:
    """The files engines load from: those at the top of a version."""

    def __init__(self, store: Store, files: Iterable[WeightFile]) -> None:
        self._store = store
        self._files = {file.path: file for file in files if "/" not in file.path}

    def names(self) -> list[str]:
        return sorted(self._files)

    def head(self, name: str, size: int) -> bytes:
        if size > MAX_BYTES:
            raise Unreadable(f"{name}: its header takes more than {MAX_BYTES >> 20} MiB")
        try:
            with self._store.path(self._files[name].sha256).open("rb") as file:
                return file.read(size)
        except OSError as error:
            raise Unreadable(f"{name} cannot be read: {error.strerror}") from None


def headers_of(name: str, store: Store, files: Iterable[WeightFile]) -> ModelHeaders | None:
    """None when they say nothing, or hold several models: nothing is concluded from what is not known."""
    try:
        models = read(name, _Stored(store, files))
    except Unreadable as why:
        log.info("nothing is known of what %s needs: %s", name, why)
        return None
    return models[0].facts if len(models) == 1 else None
