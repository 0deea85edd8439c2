"""``llmgw price …``, ``llmgw usage`` and ``llmgw budget …``."""

from __future__ import annotations

from datetime import datetime

import click
import msgspec

from cli.cluster import Cluster, on_cluster
from cli.numbers import Whole
from cli.times import PAST
from cli.watch import watch_option
from libs.events.budget import money
from libs.events.commands import DefinePrice
from libs.events.questions import AskUsage, BudgetsAnswer, ListBudgets, ListTenancy, TenancyAnswer, UsageAnswer
from libs.events.tenancy import Price


class BudgetLine(msgspec.Struct, frozen=True):
    """A budget as it is shown: in micro-units for programs, in units of currency for people."""

    level: str
    period: str
    amount_micros: int
    spent_micros: int
    budget: str
    spent: str
    left: str


@click.group()
def price() -> None:
    """Prices, in micro-units of the cluster's currency per 1,000 tokens."""


@price.command("list")
@on_cluster
async def list_prices(cluster: Cluster) -> None:
    """Every price."""
    answer = await cluster.ask_all(ListTenancy(of=("price",)), TenancyAnswer)
    # A cached price of 0 is none of its own: such tokens cost what others do.
    prices = [
        msgspec.structs.replace(price, cached_micros=price.cached_micros or price.prompt_micros)
        for price in answer.prices
    ]
    columns = [("MODEL", "model"), ("PROMPT", "prompt_micros"), ("CACHED", "cached_micros")]
    columns.append(("COMPLETION", "completion_micros"))
    cluster.out.rows(prices, columns, "no price is set: every request costs nothing")


@price.command("set")
@click.argument("model")
@click.option("--prompt", type=Whole(0), help="Micros per 1,000 prompt tokens.")
@click.option("--completion", type=Whole(0), help="Micros per 1,000 completion tokens.")
@click.option("--cached", type=Whole(0), help="Per 1,000 cached prompt tokens; 0: as others.")
@on_cluster
async def set_price(
    cluster: Cluster, model: str, prompt: int | None, completion: int | None, cached: int | None
) -> None:
    """Set the price of a model, or of `*`: every model without a price of its own. What is not named stays; a first
    price needs --prompt and --completion."""
    prices = (await cluster.ask_all(ListTenancy(of=("price",)), TenancyAnswer)).prices
    before = next((price for price in prices if price.model == model), None)
    if before is None and (prompt is None or completion is None):
        raise click.UsageError(f"{model} has no price yet: give --prompt and --completion")
    given = {"prompt_micros": prompt, "completion_micros": completion, "cached_micros": cached}
    new = msgspec.structs.replace(
        before or Price(model=model), **{field: micros for field, micros in given.items() if micros is not None}
    )
    outcome = await cluster.send(DefinePrice(price=new))
    cluster.out.result(outcome, [outcome.message or f"price of {model}: {outcome.status}"])


@click.command()
@click.option(
    "--by",
    type=click.Choice(["org", "team", "project", "key", "model"]),
    default="model",
    show_default=True,
    help="What each line is about.",
)
@click.option("--since", type=PAST, help="From this time on.  [default: everything]")
@click.option("--until", type=PAST, help="Up to before this time.")
@on_cluster
async def usage(cluster: Cluster, by: str, since: datetime | None, until: datetime | None) -> None:
    """Requests, tokens and cost."""
    question = AskUsage(
        by=by,
        since=since,
        until=until,
    )
    answer = await cluster.ask_all(question, UsageAnswer)
    columns = [(by.upper(), "name"), ("REQUESTS", "requests"), ("PROMPT", "prompt_tokens")]
    columns += [("CACHED", "cached_tokens"), ("COMPLETION", "completion_tokens"), ("WAITED MS", "waited_ms")]
    columns.append(("COST MICROS", "cost_micros"))
    rows = sorted(answer.rows, key=lambda row: (-row.cost_micros, -row.requests, row.name))
    cluster.out.rows(rows, columns, "nothing has been used in that time")


@click.group()
def budget() -> None:
    """Budgets: what may be spent at each level, and what is."""


@budget.command("list")
@watch_option
@on_cluster
async def list_budgets(cluster: Cluster) -> None:
    """Every budget and what is spent of it, in units of the cluster's currency."""
    answer = await cluster.ask_all(ListBudgets(), BudgetsAnswer)
    rows = [
        BudgetLine(
            level=row.level,
            period=row.period,
            amount_micros=row.amount_micros,
            spent_micros=row.spent_micros,
            budget=money(row.amount_micros),
            spent=money(row.spent_micros),
            left=money(max(0, row.amount_micros - row.spent_micros)),
        )
        for row in sorted(answer.rows, key=lambda row: row.spent_micros / row.amount_micros, reverse=True)
    ]
    columns = [("LEVEL", "level"), ("PERIOD", "period"), ("BUDGET", "budget"), ("SPENT", "spent"), ("LEFT", "left")]
    cluster.out.rows(rows, columns, "there is no budget: `llmgw project create ORG/TEAM/PROJECT --budget 25/month`")
