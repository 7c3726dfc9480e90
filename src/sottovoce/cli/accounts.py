"""``sottovoce identity`` and ``ledger``: certificates and privacy budgets of agents."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sottovoce.cli.console import console, picked, show_result
from sottovoce.cli.options import (
    REQUIRED,
    ProblemName,
    RunOptions,
    load,
    one_number,
    option,
    run_rounds,
    study,
    with_options,
)
from sottovoce.errors import InputError
from sottovoce.network import CERTIFICATE_DAYS
from sottovoce.tables import PlainTable, framed_table

if TYPE_CHECKING:
    from sottovoce.privacy.ledger import Ledger
    from sottovoce.privacy.standing import Account, AgentForecast

identity_group = typer.Typer(help="Keys and certificates for a cloud and its agents.")
ledger_group = typer.Typer(
    help="Privacy budgets of agents, for their lifetime and by period.", no_args_is_help=True
)

Folder = Annotated[Path, typer.Option("--dir", help="folder of the authority and the cloud")]
Days = Annotated[int, typer.Option(min=0, help="how long certificates last")]
LedgerName = Annotated[str, typer.Argument(metavar="LEDGER", help="its file, or postgresql://...")]

DIGITS = 5
_MOST_REFUSALS = 5  # that a table spells out


@identity_group.command("init")
@with_options
def init_command(
    folder: Folder,
    agents: Annotated[int, typer.Option(min=1, help="number of agents")],
    host: list[str] | None = option(None, "name or address of the cloud; may be repeated"),
    gateway: list[str] | None = option(None, "agents on one connection, e.g. 1-250; repeatable"),
    helper: bool = option(False, "keys for a cloud in two halves, and for masks"),
    helper_host: list[str] | None = option(None, "name or address of the helper; repeatable"),
    days: Days = CERTIFICATE_DAYS,
) -> None:
    """Make a private authority and certificates for the cloud, its operator and every agent.

    With --helper the folder is the authority's own, and belongs to neither half: give the cloud its
    cloud/, the helper its helper/, and each device its folder.

    Example: sottovoce identity init --dir cloud-keys --agents 7
    """
    from sottovoce.network.identity import authority
    from sottovoce.network.identity.tls import parse_range

    ranges = [parse_range(text) for text in gateway or ()]
    names = (helper_host or ()) if helper or helper_host else None
    authority.create_keys(
        folder, agents=agents, hosts=host or (), gateways=ranges, helper=names, days=days
    )
    halves = ""
    if names is not None:
        halves = f"the cloud {folder / 'cloud'}, the helper {folder / 'helper'}, which must not "
        halves += "collude, "
    console.print(
        f"wrote {folder}: give {halves}each device its folder under {folder / 'agents'}, the "
        f"operator {folder / 'operator'}, and move {folder / 'ca.key'} to a safe place",
        soft_wrap=True,
    )


@identity_group.command("issue")
@with_options
def issue_command(
    folder: Folder,
    agents: str | None = option(None, "a number, or a range for a gateway"),
    host: list[str] | None = option(None, "renew the cloud's certificate under these names"),
    operator: bool = option(False, "the operator's"),
    helper_host: list[str] | None = option(None, "renew the helper's under these names"),
    relay_host: list[str] | None = option(
        None, "issue a relay's certificate for --agents, valid for these names"
    ),
    days: Days = CERTIFICATE_DAYS,
) -> None:
    """Issue certificates anew, before they end or after a key has leaked.

    Example: sottovoce identity issue --dir cloud-keys --agents 3
    """
    from sottovoce.network.identity import authority
    from sottovoce.network.identity.tls import parse_range

    authority.issue_keys(
        folder,
        agents=None if agents is None else parse_range(agents),
        hosts=host,
        operator=operator,
        helper=helper_host,
        relay=relay_host,
        days=days,
    )
    console.print(f"issued in {folder}", soft_wrap=True)


@identity_group.command("revoke")
@with_options
def revoke_command(
    folder: Folder,
    certificate: Annotated[Path | None, typer.Argument(help="the certificate, cert.pem")] = None,
    serial: str | None = option(None, "its serial number in issued.txt, if the file is gone"),
) -> None:
    """Revoke a certificate; a running cloud drops its owner within seconds.

    Example: sottovoce identity revoke cloud-keys/agents/3/cert.pem --dir cloud-keys
    """
    from sottovoce.network.identity import authority

    if certificate is not None and serial is None:
        done = authority.revoke_certificate(folder, certificate)
    elif serial is not None and certificate is None:
        done = authority.revoke_serial(folder, serial)
    else:
        raise InputError("revoke needs a certificate or --serial, got none or both: name one")
    console.print(f"revoked {done}", soft_wrap=True)


@ledger_group.command("show")
@with_options
def show_command(ledger: LedgerName, json: bool = False) -> None:
    """Show what every agent protects, and has granted, spent and left for it.

    Figures are Gaussian-DP mu for two lifetimes that differ by no more than the radius within
    every run. What is spent is rounded up, what remains is rounded down.

    Example: sottovoce ledger show budget.db
    """
    opened, name = opened_ledger(ledger)
    accounts = opened.accounts()
    title = f"Budgets in {name}: granted as epsilon, delta; spent in Gaussian-DP mu"
    columns = ("agent", "protects", "radius", "granted as", "spent", "mu/radius", "remaining")
    tables = [framed_table(title, columns, map(_cells, accounts))]
    if any(account.periods for account in accounts):
        tables.append(_period_table(accounts))
    figures = ("epsilon", "delta", "budget", "spent", "remaining")
    data = [
        {
            "agent": a.agent,
            **picked(a.protected, "hide", "radius"),
            **picked(a, *figures, "spent_per_radius"),
            "periods": [picked(p, "per", *figures) for p in a.periods],
        }
        for a in accounts
    ]
    show_result(data, *tables, json=json)


@ledger_group.command("grant")
@with_options
def grant_command(
    ledger: LedgerName,
    agent: list[str] = option(REQUIRED, "agent's name; repeat for several"),
    epsilon: str = option(REQUIRED, "privacy loss, e.g. 'ln(3)'"),
    delta: str = option(REQUIRED, "failure probability"),
    hide: str | None = option(None, "what is protected: trajectory, offset or everything"),
    radius: str | None = option(None, "how far apart behaviours may be; not for everything"),
    per: Literal["hour", "day", "week", "30-days"] | None = option(
        None, "what all runs within any hour, day, week or 30 days may spend"
    ),
) -> None:
    """Grant agents a lifetime budget; it may be changed later, never below what is spent.

    With --per, what all runs that begin within any such period may spend together, beside the
    lifetime budget and in its terms: both must cover a run.

    Example: sottovoce ledger grant budget.db --agent x1 --agent x2 --epsilon 'ln(3)' --delta 0.05
    --hide trajectory --radius 1
    """
    from sottovoce.privacy.ledger import Ledger

    pair = one_number(epsilon, "epsilon"), one_number(delta, "delta")
    if per is not None:
        if hide is not None or radius is not None:
            raise InputError(
                "--hide and --radius must be left out with --per, got one: they are those of the "
                "lifetime budget"
            )
        Ledger(ledger).grant_period(agent, *pair, per=per)
    elif hide is None:
        raise InputError("--hide must be given for a lifetime budget, got none: say --hide offset")
    else:
        least = None if radius is None else one_number(radius, "radius")
        Ledger(ledger).grant(agent, *pair, hide=hide, radius=least)
    show_command(ledger)


@ledger_group.command("forecast")
@with_options
def forecast_command(
    ledger: LedgerName,
    problem: ProblemName,
    promise: RunOptions,
    rounds: int | None = None,
    method: str = "joint",
    split: bool = option(False, "a cloud and a helper that do not collude each add the noise"),
    json: bool = False,
) -> None:
    """Show how many runs of a plan the budgets still allow, and who ends first.

    The plan is that of the cloud with the same options. Figures hold if no other run spends from
    the same accounts; counts are rounded down. Exit code 1 if an agent cannot afford the next run
    now.

    Example: sottovoce ledger forecast budget.db examples/paper --hide offset --radius 0.1
    """
    opened, name = opened_ledger(ledger)
    with study(problem) as (report, _):
        stated = load(problem, agents=())
        plan = promise.plan(
            stated,
            public=True,
            rounds=run_rounds(stated, rounds),
            method=method,
            split=split,
            progress=report,
        )
    forecasts = opened.forecast(plan.charges())
    blocked = [forecast for forecast in forecasts if forecast.refusal]
    columns = ("agent", "now", "in all", "within a period", "next may begin")
    title = f"Runs of this plan that {name} allows, fewest first"
    notes = [forecast.refusal for forecast in blocked[:_MOST_REFUSALS]]
    table = framed_table(title, columns, map(_forecast_cells, forecasts), notes=notes)
    figures = ("agent", "runs", "in_all", "per", "next_at", "refusal")
    show_result([picked(forecast, *figures) for forecast in forecasts], table, json=json)
    if blocked:
        raise typer.Exit(1)


def opened_ledger(ledger: str) -> tuple[Ledger, str]:
    """Return a ledger that exists, and its name in messages."""
    from sottovoce.database import address_of, connect
    from sottovoce.privacy.fence import ledger_errors
    from sottovoce.privacy.ledger import Ledger

    address = address_of("ledger", ledger)
    if address.file is not None:
        exists = address.file.exists()
    else:
        with ledger_errors(address.name), closing(connect(address, mode="ro")) as database:
            exists = database.stamp("accounts") is not None
    if not exists:
        raise InputError(f"{address.name} must exist, got no such ledger: grant a budget first")
    return Ledger(ledger), address.file.name if address.file else address.name


def _period_table(accounts: Sequence[Account]) -> PlainTable:
    from sottovoce.privacy.statement import down, period_promise, up

    rows, promises = [], dict[str, None]()
    for account in accounts:
        for period in account.periods:
            granted = f"{up(period.epsilon, DIGITS)}, {up(period.delta, DIGITS)}"
            spent, left = up(period.spent, DIGITS), down(period.remaining, DIGITS)
            rows.append((account.agent, period.per, granted, spent, left))
            promises[period_promise(period, account.budget)] = None
    columns = ("agent", "per", "granted as", "spent", "remaining")
    title = "Budgets by period: the window that ends now"
    return framed_table(title, columns, rows, notes=promises)


def _forecast_cells(forecast: AgentForecast) -> tuple[str, ...]:
    def count(runs: int | None) -> str:
        return "any" if runs is None else f"{runs:,}"

    periods = ", ".join(f"{count(runs)} per {per}" for per, runs in forecast.per.items())
    when = forecast.next_at if forecast.refusal else "now"
    return (
        forecast.agent, count(forecast.runs), count(forecast.in_all), periods or "-",
        when or "never",
    )  # fmt: skip


def _cells(account: Account) -> tuple[str, ...]:
    from sottovoce.privacy.statement import down, up

    radius, per_radius = account.protected.radius, account.spent_per_radius
    return (
        account.agent,
        account.protected.hide,
        "any" if radius is None else down(radius, DIGITS),
        f"{up(account.epsilon, DIGITS)}, {up(account.delta, DIGITS)}",
        up(account.spent, DIGITS),
        "-" if per_radius is None else up(per_radius, DIGITS),
        down(account.remaining, DIGITS),
    )
