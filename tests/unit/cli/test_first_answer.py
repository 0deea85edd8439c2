"""What ``up`` waits for before it says that a cluster is up."""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Callable
from typing import Any, cast

import pytest

from cli import demo
from cli.cluster import Cluster
from cli.demo import answered
from cli.failure import Failed
from libs.events.questions import ModelsAnswer
from libs.events.views import ModelView


class Views:
    def __init__(self, *views: ModelView) -> None:
        self.views = views

    async def ask(self, _question: object, _kind: object) -> ModelsAnswer:
        return ModelsAnswer(models=self.views, specs=())


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """A gateway that lists these models and answers every chat; returns whom it was asked for."""

    def listing(*models: dict[str, Any]) -> list[str]:
        asked: list[str] = []

        def urlopen(request: urllib.request.Request, timeout: float) -> io.BytesIO:
            if request.full_url.endswith("/models"):
                return io.BytesIO(json.dumps({"data": models}).encode())
            asked.append(json.loads(cast(bytes, request.data))["model"])
            return io.BytesIO(b"{}")

        monkeypatch.setattr(urllib.request, "urlopen", urlopen)
        return asked

    return listing


def view(model: str, wanted: int, ready: int, state: str) -> ModelView:
    return ModelView(model=model, wanted=wanted, ready=ready, state=state, fingerprint="f")


async def wait(*views: ModelView) -> str | None:
    return await answered(cast(Cluster, Views(*views)), "http://gateway/v1", "key", lambda _: None)


async def test_nothing_is_waited_for_where_every_model_is_stopped_or_asleep(gateway: Callable[..., list[str]]) -> None:
    asked = gateway()

    assert await wait(view("a", 0, 0, "stopped"), view("b", 0, 0, "asleep")) is None
    assert asked == []


async def test_models_that_nothing_will_start_are_not_waited_for(
    gateway: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "STUCK_S", 0.0)
    asked = gateway(
        {"id": "a", "ready": False, "capabilities": ["chat"]}, {"id": "b", "ready": True, "capabilities": ["rerank"]}
    )

    assert await wait(view("a", 1, 0, "unplaced"), view("c", 1, 0, "parked")) is None
    assert await wait(view("a", 1, 0, "unplaced"), view("b", 1, 1, "ready")) is None
    assert asked == []


async def test_a_model_that_is_coming_is_waited_for_beside_one_that_is_not(
    gateway: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "STUCK_S", 0.0)
    monkeypatch.setattr(demo, "ANSWER_S", 0.5)
    gateway()

    with pytest.raises(Failed, match="no chat was answered"):
        await wait(view("a", 1, 0, "unplaced"), view("c", 1, 0, "starting"))


async def test_a_model_that_is_ready_is_asked_rather_than_the_first(gateway: Callable[..., list[str]]) -> None:
    asked = gateway(
        {"id": "a", "ready": False, "capabilities": ["chat"]},
        {"id": "b", "ready": True, "capabilities": ["embeddings"]},
        {"id": "c", "ready": True, "capabilities": ["chat"]},
    )

    assert await wait(view("a", 1, 0, "unplaced"), view("b", 1, 1, "ready"), view("c", 1, 1, "ready")) == "c"
    assert asked == ["c"]


async def test_no_chat_is_asked_for_where_no_model_chats(gateway: Callable[..., list[str]]) -> None:
    asked = gateway({"id": "b", "ready": True, "capabilities": ["embeddings"]})

    assert await wait(view("b", 1, 1, "ready")) is None
    assert asked == []
