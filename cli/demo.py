"""What ``up`` declares in a cluster it started, and whether that cluster answers."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any

import msgspec

from cli.apply import carry_out
from cli.cluster import Cluster
from cli.declared import Item, read
from cli.failure import Failed
from cli.home import Home
from cli.keys import NewKey
from cli.owners import current
from cli.steps import steps_to
from libs.events.questions import ListModels, ListTenancy, ModelsAnswer, TenancyAnswer
from libs.events.tenancy import Role
from libs.events.views import ModelView
from libs.runtime.secrets import write_private

PROJECT = "demo/demo/demo"
ROLES: dict[str, tuple[Role, ...]] = {"client": ("client",), "admin": ("client", "admin")}
MODEL_KINDS = ("library", "model")
ANSWER_S = 600.0
"""How long the first answer may take: weights may have to be fetched and loaded on a slow machine."""
STUCK = ("unplaced", "parked")
STUCK_S = 10.0
"""A model that has no place for so long waits for a person; machines are heard again well within it."""
REQUEST_S = 120.0


def demo_items() -> list[Item]:
    """The demo's declarations."""
    text = resources.files("cli").joinpath("demo.yaml").read_text()
    return read([("demo.yaml", text)])


class Keys(msgspec.Struct, frozen=True):
    """The keys ``up`` prints, kept in the state directory (mode 0600)."""

    client: NewKey
    admin: NewKey

    @classmethod
    def of(cls, home: Home) -> Keys:
        """The keys of this state directory, made when there are none."""
        file = home.secret("keys.json")
        if file.exists():
            return msgspec.json.decode(file.read_bytes(), type=cls)
        keys = cls(NewKey.make(), NewKey.make())
        write_private(file, msgspec.json.encode(keys).decode())
        return keys


async def declare(cluster: Cluster, keys: Keys, extra: Sequence[Item], with_model: bool) -> None:
    """Add the demo to a cluster that does not have it: tenancy, keys, price and policy to a new one, the model where
    none is defined. What is there is never changed. ``extra``: declarations of a fleet file. Raises Failed.
    """
    own = ListTenancy(of=("key",), key_ids=(keys.client.key_id, keys.admin.key_id))
    known = {key.key_id for key in (await cluster.ask_all(own, TenancyAnswer)).keys}
    now = await current(cluster)
    items = list(extra)
    if keys.client.key_id not in known:
        items += [item for item in demo_items() if item.kind not in MODEL_KINDS]
    if with_model and not now.models:
        items += [item for item in demo_items() if item.kind in MODEL_KINDS]
    await carry_out(cluster, [step for step in steps_to(items, now) if step.action == "add"])
    for name, roles in ROLES.items():
        key: NewKey = getattr(keys, name)
        if key.key_id not in known:
            await cluster.send(key.command(PROJECT, f"{name} key of llmgw up", roles))


async def answered(cluster: Cluster, base_url: str, key: str, say: Callable[[str], None]) -> str | None:
    """Wait until a model answers a chat; its name, or None when none chats that is to run and comes up. Raises
    Failed.
    """
    since = time.monotonic()
    end = since + ANSWER_S
    shown = ""
    problem = "nothing was tried"
    while time.monotonic() < end:
        views = [view for view in (await cluster.ask(ListModels(), ModelsAnswer)).models if view.wanted]
        if not views:
            return None
        state = "; ".join(f"{view.model}: {view.state}{f' ({view.reason})' if view.reason else ''}" for view in views)
        if state != shown:
            shown, since = state, time.monotonic()
            say(f"waiting for the first answer: {state}")
        chatting = False
        if any(view.ready for view in views):
            try:
                return await asyncio.to_thread(_chat, base_url, key)
            except NoneChats as error:
                problem = str(error)
            except OSError as error:
                problem, chatting = _words(error), True
        coming = [view for view in views if not view.ready and view.state not in STUCK]
        if not coming and not chatting and stuck(views) and time.monotonic() > since + STUCK_S:
            return None
        await asyncio.sleep(0.2)
    raise Failed(f"no chat was answered within {ANSWER_S:g} s ({shown}; last: {problem}): see `llmgw explain MODEL`")


def stuck(views: Iterable[ModelView]) -> list[ModelView]:
    """Models that are to run, of which nothing does, and that nothing will start as things are."""
    return [view for view in views if view.wanted and view.state in STUCK]


class NoneChats(OSError):
    """No model that chats is ready."""


def _chat(base_url: str, key: str) -> str | None:
    """Ask the first model that is ready for a token; its name, or None when no model chats. Raises OSError."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    models = _call(urllib.request.Request(f"{base_url}/models", headers=headers))
    chats = [model for model in models["data"] if "chat" in model["capabilities"]]
    if models["data"] and not chats:
        return None
    name = next((str(model["id"]) for model in chats if model["ready"]), None)
    if name is None:
        raise NoneChats("the gateway reaches no model that chats yet")
    body = {"model": name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    _call(urllib.request.Request(f"{base_url}/chat/completions", json.dumps(body).encode(), headers))
    return name


def _call(request: urllib.request.Request) -> Any:
    with urllib.request.urlopen(request, timeout=REQUEST_S) as response:
        return json.load(response)


def _words(error: OSError) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}: {error.read(500).decode(errors='replace')}"
    return str(error)
