"""``llmgw model …`` and ``llmgw explain``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import click
import msgspec

from cli.cluster import Cluster, on_cluster, problem_words
from cli.confirm import destroys
from cli.failure import Failed
from cli.headers import headers_of_models
from cli.log import events_until, last_sequence
from cli.logs import model_logs
from cli.model_fit import fit
from cli.names import model_name
from cli.numbers import Whole
from cli.steps import differences
from cli.times import PAST
from cli.watch import watch_option
from cli.without_place import without_place
from libs.engines import ENGINES
from libs.events.codec import encode
from libs.events.commands import (
    DefineModel,
    PromoteModel,
    RemoveModel,
    RestartModel,
    RollBackModel,
    ScaleModel,
    StartModel,
    StopModel,
    WakeModel,
)
from libs.events.explanation import Explanation
from libs.events.model import ModelDefined, ModelSpec, Profile, Scaling
from libs.events.questions import Examined, ExamineScheduler, ExplainModel, ListModels, ModelExplained, ModelsAnswer
from libs.events.refusal import Refused
from libs.events.sentences.words import count
from libs.events.times import rfc3339
from services.entry import fold_events


@click.group()
def model() -> None:
    """Models: what should be served."""


model.add_command(fit)
model.add_command(model_logs)


@model.command("list")
@watch_option
@on_cluster
async def list_models(cluster: Cluster) -> None:
    """Every model, and how many of its replicas serve."""
    answer = await cluster.ask(ListModels(), ModelsAnswer)
    cluster.out.rows(
        answer.models,
        [("MODEL", "model"), ("STATE", "state"), ("READY", "ready"), ("WANTED", "wanted"), ("WHY", "reason")],
        "no model is defined: `llmgw model define` or `llmgw apply -f FILE`",
    )


@model.command("show")
@model_name
@watch_option
@on_cluster
async def show(cluster: Cluster, name: str) -> None:
    """A model's definition and its replicas."""
    answer = await cluster.ask(ListModels(), ModelsAnswer)
    spec = next((spec for spec in answer.specs if spec.name == name), None)
    view = next((view for view in answer.models if view.model == name), None)
    if spec is None or view is None:
        raise Failed(unknown(name, [spec.name for spec in answer.specs]))
    lines = [f"{name}: {view.state}, {view.ready} of {view.wanted} replicas ready"]
    if view.reason:
        lines.append(f"  {view.reason}")
    lines += [f"  {change.path}: {change.after}" for change in differences(None, spec) if change.path != "name"]
    for replica in view.replicas:
        where = f"{', '.join(replica.machines)}{f' at {replica.url}' if replica.url else ''}"
        lines.append(f"  replica {replica.replica_id}: {replica.state} on {where}")
        if replica.progress:
            lines.append(f"    {replica.progress}")
        if replica.reason:
            lines.append(f"    {replica.reason}")
    cluster.out.result({"spec": spec, "state": view}, lines)


@model.command("define")
@click.argument("name", metavar="MODEL")
@click.option("--engine", required=True, type=click.Choice(list(ENGINES)), help="What runs it.")
@click.option(
    "--source", metavar="library:NAME[@VERSION]|file:/PATH|hf:ORG/NAME@COMMIT", help="Weights. Only `sim` needs none."
)
@click.option("--alias", "aliases", multiple=True, help="Another name clients may use; may be repeated.")
@click.option("--memory-mb", type=Whole(1), help="Main memory to reserve (a CPU profile needs it).")
@click.option("--cores", type=Whole(0), default=1, show_default=True, help="CPU cores to reserve.")
@click.option("--gpu-class", help="Run on GPUs of this class instead of the CPU.")
@click.option("--gpus", type=Whole(0), default=0, show_default=True, help="GPUs of one replica.")
@click.option("--parallel", type=Whole(1), default=4, show_default=True, help="Requests worked on at once.")
@click.option(
    "--context-length",
    type=Whole(1),
    default=4096,
    show_default=True,
    help="Tokens of a prompt and its answer.",
)
@click.option("--replicas", type=Whole(0), default=1, show_default=True, help="How many are to serve it.")
@click.option("--arg", "args", multiple=True, help="Argument for the engine; may be repeated.")
@on_cluster
async def define(
    cluster: Cluster,
    name: str,
    engine: str,
    source: str | None,
    aliases: tuple[str, ...],
    memory_mb: int | None,
    cores: int,
    gpu_class: str | None,
    gpus: int,
    parallel: int,
    context_length: int,
    replicas: int,
    args: tuple[str, ...],
) -> None:
    """Define a model with one profile, or replace its definition. For more than that use `llmgw apply`."""
    profile = Profile(
        name="gpu" if gpu_class else "cpu",
        engine=engine,
        gpu_class=gpu_class,
        gpus_per_node=gpus,
        memory_mb=memory_mb,
        cores=cores,
        parallel=parallel,
        args=args,
    )
    spec = ModelSpec(
        name=name,
        aliases=aliases,
        source=source,
        context_length=context_length,
        profiles=(profile,),
        scaling=Scaling(min=replicas),
    )
    command = DefineModel(spec=spec)
    headers = await headers_of_models(cluster, [spec])
    if name in headers:
        question = ExamineScheduler(command=encode(command).decode(), headers=headers[name])
        problems = (await cluster.ask(question, Examined)).problems
        if problems:
            raise Failed("\n  ".join(map(problem_words, problems)))
    outcome = await cluster.send(command)
    said = outcome.message or f"{name} is {'defined' if outcome.status == 'done' else 'as it was'}"
    cluster.out.result(outcome, [said, *await without_place(cluster, [name])])


@model.command("scale")
@model_name
@click.argument("replicas", type=Whole(0))
@click.option("--max", "most", type=Whole(0), help="Up to so many when requests wait.  [stays as it is]")
@click.option("--no-max", is_flag=True, help="No more than REPLICAS, whoever waits.")
@on_cluster
async def scale(cluster: Cluster, name: str, replicas: int, most: int | None, no_max: bool) -> None:
    """Change how many replicas a model has. A stopped model starts."""
    if no_max and most is not None:
        raise click.UsageError("--max and --no-max contradict each other: give one of them")
    answer = await cluster.ask(ListModels(), ModelsAnswer)
    before = next((spec.scaling for spec in answer.specs if spec.name == name), Scaling())
    ceiling = None if no_max else before.max if most is None else most
    scaling = msgspec.structs.replace(before, min=replicas, max=ceiling)
    outcome = await cluster.send(ScaleModel(model=name, scaling=scaling))
    said = outcome.message or f"{name}: {count(replicas, 'replica')} wanted"
    cluster.out.result(outcome, [said, *await without_place(cluster, [name])])


@model.command("restart")
@model_name
@click.option("--in-place", is_flag=True, help="Stop each replica before its successor starts: when there is no room.")
@click.option("--reason", default="", help="Kept in the log.")
@on_cluster
async def restart(cluster: Cluster, name: str, in_place: bool, reason: str) -> None:
    """Replace a model's replicas one by one, or try a parked model again."""
    outcome = await cluster.send(RestartModel(model=name, in_place=in_place, reason=reason))
    again = "is tried again" if outcome.event == "model.unparked.v1" else "is restarted, one replica after another"
    nothing = "has no replica to restart: nothing was done"
    cluster.out.result(outcome, [outcome.message or f"{name} {again if outcome.status == 'done' else nothing}"])


@model.command("stop")
@model_name
@click.option("--reason", default="", help="Told to those who ask the model.")
@on_cluster
async def stop(cluster: Cluster, name: str, reason: str) -> None:
    """Stop a model's replicas; its definition and its scaling are kept."""
    outcome = await cluster.send(StopModel(model=name, reason=reason))
    cluster.out.result(outcome, [outcome.message or f"{name} is stopped: start it with `llmgw model start {name}`"])


@model.command("start")
@model_name
@on_cluster
async def start(cluster: Cluster, name: str) -> None:
    """Start a model that was stopped."""
    outcome = await cluster.send(StartModel(model=name))
    said = outcome.message or f"{name} is {'started' if outcome.status == 'done' else 'not stopped'}"
    cluster.out.result(outcome, [said, *await without_place(cluster, [name])])


@model.command("wake")
@model_name
@on_cluster
async def wake(cluster: Cluster, name: str) -> None:
    """Load an on-demand model now, as a request for it would."""
    outcome = await cluster.send(WakeModel(model=name))
    cluster.out.result(outcome, [outcome.message or f"{name} is wanted now"])


@model.command("promote")
@model_name
@click.option("--reason", default="", help="Kept in the log.")
@on_cluster
async def promote(cluster: Cluster, name: str, reason: str) -> None:
    """Take the definition on trial for all of the model, without waiting for its judgement."""
    outcome = await cluster.send(PromoteModel(model=name, reason=reason))
    cluster.out.result(outcome, [outcome.message or f"{name}: the definition on trial is in force now"])


@model.command("rollback")
@model_name
@click.option("--reason", default="", help="Kept in the log.")
@on_cluster
async def rollback(cluster: Cluster, name: str, reason: str) -> None:
    """Drop the definition on trial; what ran before goes on."""
    outcome = await cluster.send(RollBackModel(model=name, reason=reason))
    cluster.out.result(outcome, [outcome.message or f"{name}: the definition on trial is dropped"])


@model.command("remove")
@model_name
@destroys("remove model {name} and stop its replicas")
@on_cluster
async def remove(cluster: Cluster, name: str) -> None:
    """Stop serving a model and forget its definition."""
    outcome = await cluster.send(RemoveModel(model=name))
    cluster.out.result(outcome, [outcome.message or f"{name} is removed; its replicas are stopped"])


@click.command()
@model_name
@click.option("--at", type=PAST, help="As of a time: worked out on the log up to then.")
@on_cluster
async def explain(cluster: Cluster, name: str, at: datetime | None) -> None:
    """Why a model runs where it runs, or nowhere, and what happened to it lately."""
    if at is not None:
        answer = await _explained_at(cluster, name, at)
        when = f"as of {rfc3339(at)}"
        cluster.out.result(answer, [when, *explained(answer)])
        return
    answer = await cluster.ask(ExplainModel(model=name), ModelExplained)
    cluster.out.result(answer, explained(answer))


async def _explained_at(cluster: Cluster, name: str, at: datetime) -> ModelExplained:
    events = await events_until(cluster, await last_sequence(cluster, "EVENTS"), at)
    try:
        return fold_events(events).explain(name)
    except Refused as refused:
        if not any(isinstance(event, ModelDefined) for _, event in events):
            raise Failed(f"no model was declared yet at {rfc3339(at)}") from None
        raise Failed(f"{refused.problems[0].message}, at {rfc3339(at)}") from None


def explained(answer: ModelExplained) -> Iterator[str]:
    """The answer as lines for a person."""
    view = answer.model
    yield f"{view.model}: {view.state}, {view.ready} of {view.wanted} replicas ready"
    if view.reason:
        yield f"  {view.reason}"
    for replica in view.replicas:
        yield ""
        machines = ", ".join(replica.machines)
        yield f"replica {replica.replica_id}: {replica.state} on {machines} (profile {replica.profile})"
        if replica.progress:
            yield f"  {replica.progress}"
        if replica.reason:
            yield f"  {replica.reason}"
        if replica.replica_id in answer.placements:
            yield from placement(answer.placements[replica.replica_id])
    if answer.unplaced is not None:
        yield ""
        yield "not placed:" if view.ready < view.wanted else "no place for what is to take over:"
        told = (view.reason, *(replica.reason for replica in view.replicas))
        repeated = any(answer.unplaced.summary in reason for reason in told)  # once is enough
        yield from placement(msgspec.structs.replace(answer.unplaced, summary="") if repeated else answer.unplaced)
    if answer.recent:
        yield ""
        yield "lately:"
        for happening in answer.recent:
            yield f"  {rfc3339(happening.at)} #{happening.sequence} {happening.sentence}"


def placement(explanation: Explanation) -> Iterator[str]:
    """Why there: every candidate with its scores or what spoke against it."""
    if explanation.summary:
        yield f"  {explanation.summary}"
    turned_away = ", ".join(f"{check} {count}" for check, count in explanation.rejected.items())
    machines = "1 machine" if explanation.considered == 1 else f"{explanation.considered} machines"
    if explanation.took_ms is not None:
        machines = f"{machines} in {explanation.took_ms:.1f} ms"
    yield f"  {machines} considered{f', turned away by: {turned_away}' if turned_away else ''}"
    for candidate in explanation.candidates:
        chosen = candidate.machine_id in explanation.chosen and not candidate.rejected
        scores = ", ".join(f"{part} {score:.2f}" for part, score in candidate.scores.items())
        why = "; ".join(candidate.rejected) or scores or "fits"
        yield f"  {'*' if chosen else ' '} {candidate.machine_id} ({candidate.profile}): {why}"


def unknown(name: str, known: list[str]) -> str:
    """What is said of a name that no model has."""
    return f"there is no model {name!r}: known are {', '.join(sorted(known)) or 'none'}"
