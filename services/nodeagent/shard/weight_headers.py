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
        """Paths of its files."""
        return self._names

    def head(self, name: str, size: int) -> bytes:
        """The first ``size`` bytes of a file. Raises MirrorFailed."""
        return self._repository.head(name, size)


async def answer(hub: Hub, question: AskHeaders) -> HeadersAnswer:
    """Raises Refused with what keeps the headers from being read here."""
    source = question.source
    wrong = source_problem(source) or ("the library keeps them" if of_library(source) else None)
    if wrong is not None:
        raise Refused.one("source", wrong)
    try:
        return HeadersAnswer(headers=await asyncio.to_thread(_read, hub, source))
    except (Rejected, MirrorFailed, Unreadable) as error:
        raise Refused.one("source", str(error)) from None


def _read(hub: Hub, source: str) -> ModelHeaders:
    name, files = _files(hub, source)
    models = read(name, files)
    if len(models) != 1:
        names = ", ".join(model.facts.name for model in models)
        raise Unreadable(f"{source} holds {len(models)} models: {names}")
    return models[0].facts


def _files(hub: Hub, source: str) -> tuple[str, Files]:
    if on_machines(source):
        path = Path(path_of(source))
        folder, files = local.look(path, pickles_allowed=True)
        return path.stem, Folder(folder / files[0].path if path.is_file() else folder)
    commit = hub_source(source)
    assert commit is not None
    return commit.repository, AtHub(Repository(hub, commit))
