"""What the headers of a model's weights say where the cluster's log does not have them: asked of its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from cli.cluster import Cluster
from cli.failure import Failed
from cli.say import say
from libs.events.headers import ModelHeaders
from libs.events.model import ModelSpec
from libs.events.questions import AskHeaders, HeadersAnswer, ListNodes, NodesAnswer
from libs.events.sources import of_library
from libs.events.views import NodeView

NODES_ASKED = 3
ASK_S = 15.0
"""A hub's answer takes a second, a share's that sleeps some more."""


async def headers_of_models(cluster: Cluster, specs: Iterable[ModelSpec]) -> dict[str, ModelHeaders]:
    """Model to its headers, of those of these that only nodes can see (``file:``, ``hf:``). What no node can read is
    said: such a model is declared without that check.
    """
    unseen = [spec for spec in specs if spec.source is not None and not of_library(spec.source)]
    if not unseen:
        return {}
    nodes = (await cluster.ask(ListNodes(), NodesAnswer)).nodes
    headers_of: dict[str, ModelHeaders] = {}
    answers = await asyncio.gather(*(_headers(cluster, spec, nodes) for spec in unseen))
    for spec, (headers, why) in zip(unseen, answers, strict=True):
        if headers is not None:
            headers_of[spec.name] = headers
        else:
            say(f"not checked: whether {spec.name} fits, because its headers could not be read ({why})", err=True)
    return headers_of


async def _headers(cluster: Cluster, spec: ModelSpec, nodes: Sequence[NodeView]) -> tuple[ModelHeaders | None, str]:
    """The headers, or why none of some nodes could read them; those a profile selects are asked first."""
    selectors = [profile.node_selector for profile in spec.profiles]

    def selected(node: NodeView) -> bool:
        return any(node.labels.items() >= selector.items() for selector in selectors)

    up = sorted((node for node in nodes if node.state != "lost"), key=lambda node: not selected(node))
    why = "no node is up"
    for node in up[:NODES_ASKED]:
        question = AskHeaders(machine_id=node.machine_id, source=spec.source or "")
        try:
            return (await cluster.ask(question, HeadersAnswer, timeout_s=ASK_S)).headers, ""
        except Failed as error:
            why = f"{node.machine_id}: {error.message}"
    return None, why
