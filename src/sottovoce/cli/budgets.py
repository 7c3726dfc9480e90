"""``sottovoce ledger``: what agents have granted, spent and have left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box

from sottovoce.cli.console import show_result, table_of
from sottovoce.cli.options import Json, one_number
from sottovoce.errors import InputError

if TYPE_CHECKING:
    from sottovoce.privacy.ledger import Account

ledger_group = typer.Typer(help="Lifetime privacy budgets of agents.", no_args_is_help=True)

LedgerFile = Annotated[Path, typer.Argument(help="the ledger's file")]

DIGITS = 5


@ledger_group.command("show")
def show_command(file: LedgerFile, json: Json = False) -> None:
    """Show what every agent protects, and has granted, spent and left for it.

    Figures are Gaussian-DP mu for two lifetimes that differ by no more than the radius within
    every run. What is spent is rounded up, what remains is rounded down.

    Example: sottovoce ledger show budget.db
    """
    from sottovoce.privacy.ledger import Ledger

    if not file.exists():
        raise InputError(f"{file} must exist, got no such file: grant a budget first")
    accounts = Ledger(file).accounts()
    title = f"Budgets in {file.name}: granted as epsilon, delta; spent in Gaussian-DP mu"
    columns = ("agent", "protects", "radius", "granted as", "spent", "mu/radius", "remaining")
    table = table_of(title, *columns, box=box.SIMPLE_HEAD)
    for account in accounts:
        table.add_row(*_cells(account))
    show_result([_fields(account) for account in accounts], table, json=json)


@ledger_group.command("grant")
def grant_command(
    file: LedgerFile,
    agent: Annotated[list[str], typer.Option(help="agent's name; repeat for several")],
    epsilon: Annotated[str, typer.Option(help="lifetime privacy loss, e.g. 'ln(3)'")],
    delta: Annotated[str, typer.Option(help="lifetime failure probability")],
    hide: Annotated[str, typer.Option(help="what is protected: trajectory, offset or everything")],
    radius: Annotated[
        str | None, typer.Option(help="how far apart behaviours may be; not for everything")
    ] = None,
) -> None:
    """Grant agents a lifetime budget; it may be changed later, never below what is spent.

    Example: sottovoce ledger grant budget.db --agent x1 --agent x2 --epsilon 'ln(3)' --delta 0.05
    --hide trajectory --radius 1
    """
    from sottovoce.privacy.ledger import Ledger

    Ledger(file).grant(
        agent,
        one_number(epsilon, "epsilon"),
        one_number(delta, "delta"),
        hide=hide,
        radius=None if radius is None else one_number(radius, "radius"),
    )
    show_command(file)


def _fields(account: Account) -> dict[str, object]:
    return {
        "agent": account.agent,
        "hide": account.protected.hide,
        "radius": account.protected.radius,
        "epsilon": account.epsilon,
        "delta": account.delta,
        "budget": account.budget,
        "spent": account.spent,
        "spent_per_radius": account.spent_per_radius,
        "remaining": account.remaining,
    }


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
