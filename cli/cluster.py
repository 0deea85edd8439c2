"""How a command reaches its cluster, and the options every command takes for that."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from cli.failure import Failed
from cli.home import Home, default
from cli.output import Output, json_option
from cli.watch import watch
from libs.bus import AskFailed, Bus, BusAway, BusError, BusSettings, Unanswered, connect
from libs.events.commands import Outcome, Problem
from libs.events.contract import Command, Question
from libs.events.questions import AskUsage, BudgetsAnswer, ListBudgets, ListTenancy, TenancyAnswer, UsageAnswer
from libs.events.refusal import Refused
from libs.tasks import end

T = TypeVar("T")
Paged = ListTenancy | ListBudgets | AskUsage
P = TypeVar("P", TenancyAnswer, BudgetsAnswer, UsageAnswer)
COMMANDLINE = click.core.ParameterSource.COMMANDLINE
CONNECT_S = 5.0
ASK_S = 5.0
PAGE_S = 20.0
"""For a page of a long answer: sums over years of requests take their time."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A connected cluster and where to print to."""

    bus: Bus
    out: Output
    home: Home | None
    """Its state directory, when it was found by one."""

    async def ask(self, question: Question, kind: type[T], timeout_s: float = ASK_S) -> T:
        """Ask an owner. Raises Failed."""
        try:
            return await self.bus.ask(question, kind, timeout_s)
        except AskFailed as error:
            raise Failed(refusal_words(str(error))) from None

    async def ask_all(self, question: Paged, kind: type[P], timeout_s: float = PAGE_S) -> P:
        """Ask an owner for every page of an answer; all of them as one. Raises Failed."""
        pages = [await self.ask(question, kind, timeout_s)]
        while pages[-1].next:
            further = msgspec.structs.replace(question, after=pages[-1].next)
            pages.append(await self.ask(further, kind, timeout_s))
        lists = [name for name in kind.__struct_fields__ if isinstance(getattr(pages[0], name), tuple)]
        whole = {name: tuple(chain.from_iterable(getattr(page, name) for page in pages)) for name in lists}
        return msgspec.structs.replace(pages[-1], **whole)

    async def send(self, command: Command, timeout_s: float = 30.0) -> Outcome:
        """Send a command; the outcome when it was done or changed nothing. Raises Failed when it was not."""
        outcome = await self.try_to(command, timeout_s)
        if outcome.status in ("refused", "failed"):
            raise Failed(outcome_words(outcome))
        return outcome

    async def try_to(self, command: Command, timeout_s: float = 30.0) -> Outcome:
        """Send a command; its outcome, whatever it is. Raises Failed when there is none."""
        try:
            return await self.bus.command(command, timeout_s=timeout_s)
        except Unanswered as error:
            raise Failed(str(error)) from None
        except BusAway as error:
            raise Failed(
                f"the bus did not take the command: {error}. It may have been logged all the same, and is carried out "
                "then: look before it is sent again"
            ) from None


def problem_words(problem: Problem) -> str:
    """What is wrong with a field, named by its path, or with the whole."""
    return refusal_words(f"{problem.path}: {problem.message}") if problem.path else problem.message


def refusal_words(text: str) -> str:
    """A refusal as the wire has it, ``FIELD: what is wrong``. What there is not is named by the words themselves, and
    its field on the wire is no business of whoever typed a command."""
    return re.sub(r"^[\w.]+: (?=there is no )", "", text)


def outcome_words(outcome: Outcome) -> str:
    """Why a command was not carried out."""
    problems = list(map(problem_words, outcome.problems))
    repeated = outcome.message in (*problems, "; ".join(problems), str(Refused(outcome.problems)))
    words = [*([outcome.message] if outcome.message and not repeated else []), *problems]
    return "\n  ".join(words) or outcome.status


@asynccontextmanager
async def reached(url: str, credentials: Path | None, identity: str) -> AsyncIterator[Bus]:
    """A bus, connected within seconds or not at all. Raises Failed."""
    if credentials is not None and not credentials.exists():
        raise Failed(f"the credentials file {credentials} does not exist: it holds an nkey seed")
    troubles: list[str] = []
    settings = BusSettings(url=url, credentials=credentials, identity=identity, name="llmgw")
    try:
        async with asyncio.timeout(CONNECT_S):
            bus = await connect(settings, troubles.append)
    except TimeoutError:
        if any("authorization" in trouble.lower() for trouble in troubles):
            raise Failed(
                f"the bus at {url} did not let {identity} in within {CONNECT_S:g} s: are these its credentials?"
            ) from None
        why = troubles[-1] if troubles else f"nothing answered within {CONNECT_S:g} s"
        raise Failed(f"the bus at {url} cannot be reached: {why}: does nats-server run there?") from None
    except (BusError, OSError, ValueError) as error:
        raise Failed(f"the bus at {url} cannot be reached: {error}") from None
    try:
        yield bus
    finally:
        await bus.close()


async def unbroken(bus: Bus, work: Awaitable[None]) -> None:
    """Carry out ``work`` as long as what it waits for can come.

    Raises Failed when the log went back meanwhile, or when reading it or the connection broke for good.
    """
    working = asyncio.ensure_future(work)
    breaking = [asyncio.create_task(event.wait()) for event in (bus.void, bus.failed)]
    try:
        await asyncio.wait({working, *breaking}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Failed(f"{bus.void_because or bus.failure}: run it again to see how things stand now")
    finally:
        for task in breaking:
            task.cancel()
        await end(working)
    await working


def location_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--state-dir``, or ``--nats`` with ``--credentials``."""
    for option in (
        click.option(
            "--credentials",
            type=click.Path(path_type=Path, dir_okay=False),
            envvar="LLMGW_CREDENTIALS",
            help="File with an nkey seed, named after its identity (operator.nk).",
        ),
        click.option(
            "--nats", metavar="URL", envvar="LLMGW_NATS", help="The cluster's bus, instead of a state directory."
        ),
        click.option(
            "--state-dir",
            type=click.Path(path_type=Path, file_okay=False),
            envvar="LLMGW_STATE_DIR",
            help="State directory of the cluster on this machine.  [default: ~/.local/state/llmgw]",
        ),
    ):
        function = option(function)
    return function


def on_cluster(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Decorator: a command whose first argument is the Cluster its options point to.

    Its option ``watch``, where it has one, repeats it until Ctrl-C.
    """

    @location_options
    @json_option
    @functools.wraps(function)
    def command(
        state_dir: Path | None, nats: str | None, credentials: Path | None, out: Output, **arguments: Any
    ) -> None:
        watched = arguments.pop("watch", False)

        async def within() -> None:
            home, url, seed = locate(state_dir, nats, credentials)
            identity = seed.stem if seed else "operator"
            async with reached(url, seed, identity) as bus:
                cluster = Cluster(bus=bus, out=out, home=home)
                work = watch(cluster, function, **arguments) if watched else function(cluster, **arguments)
                await unbroken(bus, work)

        quiet()
        with suppress(KeyboardInterrupt) if watched else nullcontext():
            asyncio.run(within())

    return command


def until_interrupted(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator: a command that goes on until Ctrl-C, which is its proper end."""

    @functools.wraps(function)
    def command(**arguments: Any) -> None:
        with suppress(KeyboardInterrupt):
            function(**arguments)

    return command


def locate(state_dir: Path | None, nats: str | None, credentials: Path | None) -> tuple[Home | None, str, Path | None]:
    """State directory, bus address and seed file that the options mean. Raises Failed or UsageError."""
    if nats is not None and state_dir is not None:
        # What is said at the command line overrules the environment.
        context = click.get_current_context()
        given = [name for name in ("nats", "state_dir") if context.get_parameter_source(name) is COMMANDLINE]
        if len(given) != 1:
            raise click.UsageError("--nats and --state-dir name two clusters: give one of them")
        state_dir, nats = (None, nats) if given == ["nats"] else (state_dir, None)
    if nats is not None:
        return None, nats, credentials
    home = Home(state_dir or default())
    return home, home.nats_url(), credentials or home.identity("operator")


def quiet() -> None:
    """Warnings of the libraries become plain lines on stderr; a command's own words are on stdout."""
    logging.basicConfig(level=logging.ERROR, format="llmgw: %(message)s")
    logging.getLogger("nats").setLevel(logging.CRITICAL)
