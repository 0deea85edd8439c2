"""``llmgw library …``: weights, kept once and handed out."""

from __future__ import annotations

import click

from cli.cluster import Cluster, on_cluster
from cli.progress import ProgressLine
from libs.events.commands import ImportVersion, RemoveVersion
from libs.events.library import ImportProgress
from libs.events.questions import LibraryAnswer, ListLibrary

IMPORT_S = 3600.0
"""The command of an import waits as long: hundreds of gigabytes are read and hashed."""


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
    columns = [("NAME", "name"), ("VERSION", "version"), ("LATEST", "latest"), ("FILES", "files")]
    columns += [("BYTES", "size_bytes"), ("SERVED BY", "mirrors")]
    cluster.out.rows(rows, columns, "the library is empty: `llmgw library import`")


@library.command("import")
@click.argument("name")
@click.argument("source", metavar="path:/FILE-OR-FOLDER|package:PYTHON_MODULE")
@click.option("--licence", default="", help="Kept beside the weights.")
@on_cluster
async def import_version(cluster: Cluster, name: str, source: str, licence: str) -> None:
    """Import weights into the library, from where the mirror can read them."""
    line = ProgressLine(name)

    async def show(progress: ImportProgress) -> None:
        if progress.name == name:
            line.show(progress.done_bytes, progress.total_bytes, progress.bytes_per_s)

    stop = await cluster.bus.listen(ImportProgress, show)
    try:
        outcome = await cluster.send(ImportVersion(name=name, source=source, licence=licence), IMPORT_S)
    finally:
        await stop()
        line.end()
    cluster.out.one(outcome, [outcome.message or f"{name}: {'imported' if outcome.event else 'already there'}"])


@library.command("remove")
@click.argument("name")
@click.argument("version")
@on_cluster
async def remove(cluster: Cluster, name: str, version: str) -> None:
    """Remove one version."""
    outcome = await cluster.send(RemoveVersion(name=name, version=version))
    cluster.out.one(outcome, [outcome.message or f"{name} version {version} is removed"])
