"""``llmgw library …``: weights, kept once and handed out."""

from __future__ import annotations

import asyncio

import click
import msgspec

from cli.cluster import Cluster, on_cluster
from cli.confirm import destroys
from cli.failure import Failed
from cli.names import version_name
from cli.progress import ProgressLine, words
from cli.say import say
from libs.bus import Delivery
from libs.events import encode_token, plane, tag_of
from libs.events.commands import CancelImport, ImportVersion, RemoveVersion
from libs.events.library import ImportEnded, ImportProgress, ImportStarted, ImportUnderWay, VersionAdded
from libs.events.questions import LibraryAnswer, ListLibrary
from libs.events.times import rfc3339


@click.group()
def library() -> None:
    """Weights the mirror keeps."""


@library.command("list")
@on_cluster
async def list_library(cluster: Cluster) -> None:
    """Every set of weights and its versions."""
    answer = await cluster.ask(ListLibrary(), LibraryAnswer)
    rows = [
        {
            "name": entry.name,
            "version": version,
            "latest": version == entry.latest,
            "files": len(files),
            "size_bytes": sum(file.size_bytes for file in files),
            "mirrors": entry.mirrors,
        }
        for entry in answer.entries
        for version, files in entry.versions.items()
    ]
    for under_way in answer.imports:
        say(import_line(under_way), err=True)
    columns = [("NAME", "name"), ("VERSION", "version"), ("LATEST", "latest"), ("FILES", "files")]
    columns += [("BYTES", "size_bytes"), ("SERVED BY", "mirrors")]
    cluster.out.rows(rows, columns, "the library is empty: `llmgw library import`")


def import_line(under_way: ImportUnderWay) -> str:
    """An import that goes on, for a person."""
    far = f", {words(under_way.done_bytes, under_way.total_bytes)}" if under_way.total_bytes else ""
    return f"import of {under_way.name} from {under_way.source}: since {rfc3339(under_way.since)}{far}"


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """How an import ended."""

    name: str
    status: str
    """``done``, ``unchanged`` (the library had it), ``failed``, or ``started`` when nobody waited for the end."""
    message: str = ""


async def bring(cluster: Cluster, command: ImportVersion) -> Imported:
    """Have weights imported and wait for the end, however long that takes. Raises Failed when it cannot begin."""
    outcome = await cluster.send(command)
    started = outcome.sequence if outcome.event == tag_of(ImportStarted) else await under_way(cluster, command.name)
    if started is None:
        return Imported(name=command.name, status="unchanged")
    ended: asyncio.Future[VersionAdded | ImportEnded] = asyncio.get_running_loop().create_future()
    line = ProgressLine(command.name)

    async def show(progress: ImportProgress) -> None:
        if progress.name == command.name:
            line.show(progress.done_bytes, progress.total_bytes, progress.bytes_per_s)

    async def look(delivery: Delivery) -> None:
        event = delivery.message
        if isinstance(event, VersionAdded | ImportEnded) and event.started == started and not ended.done():
            ended.set_result(event)

    stop = await cluster.bus.listen(ImportProgress, show)
    log = await cluster.bus.follow("EVENTS", [plane("evt", "library", encode_token(command.name))], look, start=started)
    try:
        end = await ended
        while await under_way(cluster, command.name) == started:  # noqa: ASYNC110 - it is another process
            # The mirror reads it on the log just as we do: what is asked next is answered with it.
            await asyncio.sleep(0.02)
    finally:
        await log.stop()
        await stop()
        line.end()
    if isinstance(end, VersionAdded):
        return Imported(name=command.name, status="done")
    return Imported(name=command.name, status="failed" if end.problem else "unchanged", message=end.problem)


async def under_way(cluster: Cluster, name: str) -> int | None:
    """The sequence that started the import of a name that goes on now."""
    answer = await cluster.ask(ListLibrary(), LibraryAnswer)
    return next((entry.started for entry in answer.imports if entry.name == name), None)


@library.command("import")
@click.argument("name")
@click.argument("source", metavar="path:/FILE-OR-FOLDER|package:PYTHON_MODULE")
@click.option("--licence", default="", help="Kept beside the weights.")
@click.option("--detach", is_flag=True, help="Do not wait for the end: `llmgw library list` shows how far it is.")
@on_cluster
async def import_version(cluster: Cluster, name: str, source: str, licence: str, detach: bool) -> None:
    """Import weights into the library, from where the mirror can read them. Whoever stops waiting does not stop it."""
    command = ImportVersion(name=name, source=source, licence=licence)
    if detach:
        await cluster.send(command)
        cluster.out.result(Imported(name=name, status="started"), [f"{name} is being imported"])
        return
    imported = await bring(cluster, command)
    if imported.status == "failed":
        raise Failed(f"source: {imported.message}")
    cluster.out.result(imported, [f"{name}: {'imported' if imported.status == 'done' else 'already there'}"])


@library.command("cancel")
@click.argument("name")
@click.option("--reason", default="", help="Kept in the log.")
@on_cluster
async def cancel(cluster: Cluster, name: str, reason: str) -> None:
    """Give up the import of a name."""
    outcome = await cluster.send(CancelImport(name=name, reason=reason))
    cluster.out.result(outcome, [outcome.message or f"the import of {name} is given up"])


@library.command("remove")
@version_name
@destroys("remove the weights {weights} from the library")
@on_cluster
async def remove(cluster: Cluster, weights: str) -> None:
    """Remove one version of weights."""
    name, at, version = weights.rpartition("@")
    if not (name and at and version):
        raise click.UsageError(f"{weights!r} names no version: write NAME@VERSION, as `llmgw library list` has them")
    outcome = await cluster.send(RemoveVersion(name=name, version=version))
    cluster.out.result(outcome, [outcome.message or f"{name} version {version} is removed"])
