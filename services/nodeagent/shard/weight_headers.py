"""What the headers of weights say that no mirror keeps: in a folder of this machine, or at the hub."""

from __future__ import annotations

import asyncio
from pathlib import Path

from libs.events.headers import ModelHeaders
from libs.events.questions import AskHeaders, HeadersAnswer
from libs.events.refusal import Refused
from libs.events.sources import (
    hub_source,
    of_library,
    on_machines,
    path_of,
    source_problem,
)
from libs.fit import Unreadable
from libs.fit.headers import Files, Folder, read
from services.nodeagent.adapters.weights import local
from services.nodeagent.adapters.weights.download import MirrorFailed
from services.nodeagent.adapters.weights.hub import Hub, Repository
from services.nodeagent.adapters.weights.store import Rejected


class AtHub:
    """The files of one commit, read from their beginning."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._names = repository.names()

    def names(self) -> list[str]:
        return self._names

    def head(self, name: str, size: int) -> bytes:
        return self._repository.head(name, size)


class Headers:
    """Answers questions about them."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def answer(self, question: AskHeaders) -> HeadersAnswer:
        """Raises Refused with what keeps them from being read here."""
        source = question.source
        wrong = source_problem(source) or ("the library keeps them" if of_library(source) else None)
        if wrong is not None:
            raise Refused.one("source", wrong)
        try:
            return HeadersAnswer(headers=await asyncio.to_thread(self._read, source))
        except (Rejected, MirrorFailed, Unreadable) as error:
            raise Refused.one("source", str(error)) from None

    def _read(self, source: str) -> ModelHeaders:
        name, files = self._files(source)
        models = read(name, files)
        if len(models) != 1:
            found = ", ".join(model.facts.name for model in models)
            raise Unreadable(f"{source} holds {len(models)} models: {found}")
        return models[0].facts

    def _files(self, source: str) -> tuple[str, Files]:
        if on_machines(source):
            path = Path(path_of(source))
            folder, files = local.look(path, pickles_allowed=True)
            return path.stem, Folder(folder / files[0].path if path.is_file() else folder)
        found = hub_source(source)
        assert found is not None
        return found.repository, AtHub(Repository(self._hub, found))
