"""``sottovoce ledger``: what agents have granted, spent and have left."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sottovoce.cli.console import console, print_json
from sottovoce.cli.options import Json, numbers
from sottovoce.errors import InputError
from sottovoce.privacy.ledger import Ledger

ledger = typer.Typer(help="Lifetime privacy budgets of agents.", no_args_is_help=True)

LedgerFile = Annotated[Path, typer.Argument(help="the ledger's file")]


@ledger.command()
def show(file: LedgerFile, json: Json = False) -> None:
    """Show what every agent has granted, spent and has left.

    Example: sottovoce ledger show budget.db
    """
    if not file.exists():
        raise InputError(f"{file} must exist, got no such file: grant a budget first")
    accounts = Ledger(file).accounts()
    if json:
        print_json([asdict(account) for account in accounts])
        return
    table = Table(title=f"Budgets in {file.name} (Gaussian-DP mu)", title_justify="left")
    for heading in ("agent", "granted as", "budget", "spent", "remaining"):
        table.add_column(heading, justify="right")
    for a in accounts:
        table.add_row(a.agent, f"({a.epsilon:.4g}, {a.delta:.3g})", f"{a.budget:.6f}",
                      f"{a.spent:.6f}", f"{a.remaining:.6f}")  # fmt: skip
    console.print(table)


@ledger.command()
def grant(
    file: LedgerFile,
    agent: Annotated[list[str], typer.Option(help="agent's name; repeat for several")],
    epsilon: Annotated[str, typer.Option(help="lifetime privacy loss, e.g. 'ln(3)'")],
    delta: Annotated[str, typer.Option(help="lifetime failure probability")],
) -> None:
    """Grant agents a lifetime budget; it may be raised later, never below what is spent.

    Example: sottovoce ledger grant budget.db --agent x1 --agent x2 --epsilon 'ln(3)' --delta 0.05
    """
    Ledger(file).grant(agent, numbers(epsilon, "epsilon")[0], numbers(delta, "delta")[0])
    show(file)
