"""``llmgw model fit``: how the cluster, or an imagined fleet, could hold a model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from cli import fleet as fleets
from cli.cluster import ASK_S, Cluster, locate, location_options, quiet, reached
from cli.failure import Failed
from cli.numbers import Whole
from cli.output import Output, json_option
from libs.bus import Delivery
from libs.engines import traits_of
from libs.events.machine import MachineRegistered, MachineSample
from libs.events.questions import LibraryAnswer, ListLibrary, ListNodes, NodesAnswer
from libs.events.sentences.words import count
from libs.events.subjects import pattern_of
from libs.fit import Facts, Host, Layout, Load, Plan, Unreadable, hosts_of, plan, profile_of
from libs.fit.config import in_precision
from libs.fit.headers import Files, Model, Web, open_source, read
from libs.fit.memory import GIB
from libs.fit.quantisation import SMALLER

CONTEXT = 8192
"""Tokens planned for where none are asked for, or the model's own when it has fewer."""
LIBRARY = "library:"


@click.command("fit")
@click.argument("source", metavar="SOURCE")
@click.option(
    "--context-length",
    "context",
    type=Whole(1),
    help=f"Tokens of one request.  [default: {CONTEXT}, or the model's]",
)
@click.option("--parallel", type=Whole(1), default=4, show_default=True, help="Requests worked on at once.")
@click.option(
    "--precision",
    "precisions",
    metavar="LIST",
    default="",
    help=f"Also as a repository in these would be: {', '.join(SMALLER)}, separated by commas.",
)
@click.option("--nodes-from-cluster", is_flag=True, help="On the cluster's machines as they are.  [default]")
@click.option(
    "--fleet",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="On the machines a fleet file describes (examples/fleets).",
)
@location_options
@json_option
def fit(
    source: str,
    context: int | None,
    parallel: int,
    precisions: str,
    nodes_from_cluster: bool,
    fleet: Path | None,
    state_dir: Path | None,
    nats: str | None,
    credentials: Path | None,
    out: Output,
) -> None:
    """How a model could run, before anything of it is fetched but headers.

    SOURCE is a GGUF file, a folder with config.json or GGUF files, a URL of either, a repository ORG/NAME[@REVISION],
    or library:NAME[@VERSION] of the cluster.
    """
    if nodes_from_cluster and fleet is not None:
        raise click.UsageError("--nodes-from-cluster and --fleet are two answers to one question: give one of them")
    wanted = [precision.strip() for precision in precisions.split(",") if precision.strip()]

    async def on_cluster() -> tuple[list[Model], tuple[Host, ...]]:
        home, url, seed = locate(state_dir, nats, credentials)
        async with reached(url, seed, seed.stem if seed else "operator") as bus:
            cluster = Cluster(bus=bus, out=out, home=home)
            name, files = await library(cluster, source) if source.startswith(LIBRARY) else open_source(source)
            models = await asyncio.to_thread(read, name, files)
            return models, await machines(cluster) if fleet is None else of_fleet(fleet)

    try:
        if fleet is None or source.startswith(LIBRARY):
            quiet()
            models, hosts = asyncio.run(on_cluster())
        else:
            hosts, models = of_fleet(fleet), read(*open_source(source))
        facts = [model.facts for model in models]
        for model in models:
            facts += [smaller(model, precision) for precision in wanted]
        load = Load(context=context or min(CONTEXT, *(model.context for model in facts)), parallel=parallel)
        made = plan(facts, hosts, load)
    except Unreadable as problem:
        raise Failed(str(problem)) from None
    out.result(as_json(made), table(made))


def smaller(model: Model, precision: str) -> Facts:
    """A model in another precision. Raises Unreadable."""
    if model.config is None:
        raise Unreadable(f"{model.facts.name} is a GGUF file, which is in the precision it is in: name another file")
    return in_precision(model.facts, model.config, precision)


def of_fleet(file: Path) -> tuple[Host, ...]:
    """The machines a fleet file describes. Raises Failed."""
    described = fleets.load(file).machines
    if not described:
        raise Failed(f"{file} describes no machines: list them under `machines`")
    return hosts_of(map(fleets.registered, described), {machine.id: fleets.sample(machine) for machine in described})


async def machines(cluster: Cluster) -> tuple[Host, ...]:
    """The cluster's machines: what their agents reported, what is held now, and which of them take no work. Raises
    Failed.
    """
    registered: dict[str, MachineRegistered] = {}
    samples: dict[str, MachineSample] = {}

    async def hear(delivery: Delivery) -> None:
        if isinstance(delivery.message, MachineRegistered):
            registered[delivery.message.machine_id] = delivery.message
        elif isinstance(delivery.message, MachineSample):
            samples[delivery.message.machine_id] = delivery.message

    for stream, kind in (("EVENTS", MachineRegistered), ("TELEMETRY", MachineSample)):
        follower = await cluster.bus.follow(stream, [pattern_of(kind)], hear, start="last")
        try:
            async with asyncio.timeout(ASK_S):
                await follower.caught_up.wait()
        except TimeoutError:
            raise Failed(f"the stream {stream} was not read within {ASK_S:g} s: is the cluster busy?") from None
        finally:
            await follower.stop()
    answer = await cluster.ask(ListNodes(), NodesAnswer)
    states = {node.machine_id: node.state for node in answer.nodes}
    away = {machine_id: f"it is {state}" for machine_id, state in states.items() if state != "ready"}
    return hosts_of((machine for machine in registered.values() if machine.machine_id in states), samples, away)


async def library(cluster: Cluster, source: str) -> tuple[str, Files]:
    """The files of ``library:NAME[@VERSION]``, from a mirror. Raises Failed."""
    name, _, version = source.removeprefix(LIBRARY).partition("@")
    answer = await cluster.ask(ListLibrary(), LibraryAnswer)
    entry = next((entry for entry in answer.entries if entry.name == name), None)
    if entry is None:
        known = ", ".join(sorted(entry.name for entry in answer.entries)) or "nothing"
        raise Failed(f"the library has no {name!r}: it has {known}")
    files = entry.versions.get(version or entry.latest)
    if files is None:
        raise Failed(f"the library's {name} has no version {version!r}: it has {', '.join(sorted(entry.versions))}")
    if not entry.mirrors:
        raise Failed(f"no mirror serves the library's {name} now: is one running?")
    base = entry.mirrors[0].rstrip("/")
    return name, Web({file.path: f"{base}/v1/files/{file.sha256}" for file in files})


def as_json(made: Plan) -> dict[str, Any]:
    """The plan for programs: every layout, with what properties add."""
    return {
        "models": made.models,
        "load": made.load,
        "ways": [
            {name: getattr(layout, name) for name in layout.__struct_fields__}
            | {
                "devices": layout.devices,
                "fits": layout.fits,
                "needed_bytes": layout.need.total,
                "total_bytes": layout.total_bytes,
            }
            for layout in made.layouts
        ],
        "profile": profile_of(made.best, made.load) if made.best else None,
        "left_out": made.left_out,
    }


def table(made: Plan) -> Iterator[str]:
    """The plan for people."""
    for facts in made.models:
        yield sentence(facts)
    yield f"For {count(made.load.parallel, 'request')} of {made.load.context:,} tokens each. All sizes in GiB."
    yield ""
    # Several files of one precision are told apart by their names.
    several = len({facts.name for facts in made.models}) > 1
    rows = [HEADINGS, *(cells(layout, layout.model if several else layout.precision) for layout in made.layouts)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    last = len(HEADINGS) - 1
    for row in rows:
        padded = (
            text.ljust(width) if i in LEFT else text.rjust(width) if i < last else text
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(padded).rstrip()
    yield ""
    yield from conclusion(made)


HEADINGS = ("FILES", "WAY", "WEIGHTS", "CONTEXT", "ENGINE", "A CARD", "USABLE", "IN ALL", "FREE NOW", "TOK/S", "")
LEFT = frozenset({0, 1, 8})


def cells(layout: Layout, files: str) -> tuple[str, ...]:
    """A layout as a row."""
    kind = "machine" if layout.gpu_class is None else "card"
    free = f"{gib(layout.free_bytes)} on {some(layout.units, kind)}" if layout.units else "-"
    parts = (
        layout.need.weights,
        layout.need.context,
        layout.need.engine,
        layout.need.total,
        layout.usable_bytes,
        layout.total_bytes,
    )
    pace = f"~{layout.tokens_per_s:.0f}" if layout.tokens_per_s and layout.fits else "-"
    return (files, parallelism(layout), *map(gib, parts), free, pace, verdict(layout))


def parallelism(layout: Layout) -> str:
    """``2 nodes x 8 x h100-80g, ib-a``"""
    if layout.gpu_class is None:
        return "CPU"
    cards = f"{layout.cards} x {layout.gpu_class}"
    if layout.nodes > 1:
        cards = f"{layout.nodes} nodes x {cards}"
    if layout.pipeline > 1 and traits_of(layout.engine).splits == "tensors":
        cards += f", pipeline {layout.pipeline}"
    if layout.expert_parallel:
        cards += ", expert parallel"
    return f"{cards}, {layout.link}" if layout.link else cards


def verdict(layout: Layout) -> str:
    """What is to be said of it."""
    if layout.rejected:
        return "no: " + "; ".join(reason.text for reason in layout.rejected)
    mark = "BEST" if layout.best else "fits"
    if layout.note:
        mark = f"{mark}, weights only"
    if layout.now:
        return mark
    what = "machines have" if layout.gpu_class is None else "cards have"
    return f"{mark}, not now: {layout.free_units} of {layout.units} {what} {gib(layout.need.total)} free"


def sentence(facts: Facts) -> str:
    """What the headers say."""
    parts = [f"{facts.parameters / 1e9:.1f} billion weights" if facts.parameters >= 1e9 else
             f"{facts.parameters / 1e6:.0f} million weights"]  # fmt: skip
    parts.append(f"{gib(facts.weights.total)} GiB in {facts.precision}")
    heads = "latent attention" if facts.latent else f"{some(facts.kv_heads, 'KV head')} of {facts.head_dim}"
    if facts.encoder:
        heads = f"an encoder of {some(facts.heads, 'head')}"
    parts.append(f"{facts.layers} layers, {heads}")
    windows = sorted({group.window for group in facts.attention if group.window})
    if windows:
        sliding = sum(group.count for group in facts.attention if group.window)
        parts.append(f"{sliding} layers see {' or '.join(f'{window:,}' for window in windows)} tokens back")
    if facts.experts:
        parts.append(f"{facts.experts.active} of {facts.experts.total} experts a token")
    parts.append(f"trained for {facts.context:,} tokens")
    origin = "" if facts.published else " (computed, not published)"
    left = "".join(f"; not counted: {note}" for note in facts.notes)
    return f"{facts.name}{origin}: {', '.join(parts)}{left}."


def conclusion(made: Plan) -> Iterator[str]:
    """The choice in words, and what the context costs."""
    best = made.best
    if best is not None:
        whole = "of main memory" if best.gpu_class is None else f"a card of {gib(best.usable_bytes)} usable"
        yield (
            f"Best: {best.precision} on {parallelism(best)}: {gib(best.need.total)} GiB {whole} (weights "
            f"{gib(best.need.weights)} + context {gib(best.need.context)} + engine {gib(best.need.engine)})."
        )
        declared = msgspec.to_builtins(profile_of(best, made.load))
        yield f"Its profile: {yaml.safe_dump(declared, default_flow_style=True, sort_keys=False, width=1000).strip()}"
        if best.note:
            yield f"{best.note[0].upper()}{best.note[1:]}."
        if best.pace and not made.models[0].encoder:
            yield f"Its speed is not estimated: {best.pace}."
    elif made.layouts:
        yield f"Nothing here holds it.{remedy(made)}"
    else:
        yield "There are no machines to hold it."
    facts = made.models[0]
    if facts.encoder:
        yield "It is an encoder: it keeps no context between tokens and generates none."
    near, far = facts.token_bytes * 1000 / GIB, facts.far_token_bytes * 1000 / GIB
    beyond = f", {far:.3f} past its windows" if far != near else ""
    if not facts.encoder:
        yield f"1,000 tokens of a request cost {near:.3f} GiB of context{beyond} ({facts.token_bytes:,} bytes a token)."
    for reason in made.left_out:
        yield f"Left out: {reason}."


def remedy(made: Plan) -> str:
    """What could be tried where nothing fits."""
    facts = made.models[0]
    if facts.format == "gguf":
        return " A smaller quantisation, a shorter --context-length or fewer --parallel requests need less."
    untried = [name for name, precision in SMALLER.items() if precision.bits < min(model.bits for model in made.models)]
    smaller_ones = f" A smaller precision needs less (--precision {','.join(untried)})." if untried else ""
    return f"{smaller_ones} A shorter --context-length or fewer --parallel requests need less of the context's share."


def some(number: int, what: str) -> str:
    """``1 card``, ``2 cards``"""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def gib(size: float) -> str:
    """Bytes in GiB: ``4.1``."""
    return f"{size / GIB:.1f}"
