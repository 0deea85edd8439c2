"""``llmgw replica …``: the running copies of models."""

from __future__ import annotations

from collections.abc import Iterator

import click
import msgspec

from cli.cluster import Cluster, on_cluster
from cli.failure import Failed
from cli.logs import replica_logs
from cli.models import placement
from cli.names import completed, models, replica_name
from cli.watch import watch_option
from libs.events.explanation import Explanation
from libs.events.questions import ExplainModel, Happening, ListModels, ModelExplained, ModelsAnswer
from libs.events.times import rfc3339
from libs.events.views import ReplicaView


class ReplicaLine(msgspec.Struct, frozen=True, kw_only=True):
    """A replica and the model it is of."""

    model: str
    replica_id: str
    state: str
    profile: str
    machines: tuple[str, ...]
    url: str | None
    progress: str
    reason: str


class ReplicaShown(msgspec.Struct, frozen=True):
    """All that is known of a replica."""

    model: str
    replica: ReplicaView
    placement: Explanation | None
    recent: tuple[Happening, ...]


@click.group()
def replica() -> None:
    """Replicas: copies of a model that serve, or are on their way to it."""


replica.add_command(replica_logs)


@replica.command("list")
@click.option("--model", "of_model", metavar="MODEL", shell_complete=completed(models), help="Only this model's.")
@watch_option
@on_cluster
async def list_replicas(cluster: Cluster, of_model: str | None) -> None:
    """Every replica, its state and where it runs."""
    answer = await cluster.ask(ListModels(), ModelsAnswer)
    if of_model is not None and of_model not in {view.model for view in answer.models}:
        names = ", ".join(sorted(view.model for view in answer.models)) or "none"
        raise Failed(f"there is no model {of_model!r}: there is {names}")
    rows = [
        ReplicaLine(
            model=view.model,
            replica_id=replica.replica_id,
            state=replica.state,
            profile=replica.profile,
            machines=replica.machines,
            url=replica.url,
            progress=replica.progress,
            reason=replica.reason,
        )
        for view in answer.models
        if of_model in (None, view.model)
        for replica in view.replicas
    ]
    columns = [("REPLICA", "replica_id"), ("MODEL", "model"), ("STATE", "state"), ("NODES", "machines")]
    columns += [("PROFILE", "profile"), ("PROGRESS", "progress"), ("WHY", "reason")]
    cluster.out.rows(rows, columns, "there is no replica: `llmgw model list` says what is wanted")


@replica.command("show")
@replica_name
@watch_option
@on_cluster
async def show(cluster: Cluster, name: str) -> None:
    """One replica: where it runs and why there, and what happened to it lately."""
    views = (await cluster.ask(ListModels(), ModelsAnswer)).models
    of = {replica.replica_id: view.model for view in views for replica in view.replicas}
    if name not in of:
        raise Failed(f"there is no replica {name!r}: there is {', '.join(sorted(of)) or 'none'}")
    answer = await cluster.ask(ExplainModel(model=of[name]), ModelExplained)
    view = next((replica for replica in answer.model.replicas if replica.replica_id == name), None)
    if view is None:
        raise Failed(f"the replica {name} has just ended: `llmgw explain {of[name]}` says why")
    recent = tuple(happening for happening in answer.recent if name in happening.sentence)
    shown = ReplicaShown(of[name], view, answer.placements.get(name), recent)
    cluster.out.result(shown, lines(shown))


def lines(shown: ReplicaShown) -> Iterator[str]:
    """For a person."""
    view = shown.replica
    where = f" on {', '.join(view.machines)}" if view.machines else ""
    yield f"replica {view.replica_id} of {shown.model}: {view.state}{where} (profile {view.profile})"
    yield from (f"  {text}" for text in (view.url, view.progress, view.reason) if text)
    if shown.placement is not None:
        yield "why there:"
        yield from placement(shown.placement)
    if shown.recent:
        yield "lately:"
        yield from (f"  {rfc3339(event.at)} #{event.sequence} {event.sentence}" for event in shown.recent)
