"""``sottovoce status``: how far a run is, from its store, without a single state."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sottovoce.cli.console import show_result
from sottovoce.cli.options import Json

if TYPE_CHECKING:
    from sottovoce.network.observe.run_summary import RunSummary


def status_command(
    store: Annotated[Path, typer.Argument(help="the store of a run, e.g. run.db")],
    json: Json = False,
) -> None:
    """Show a run: rounds, prices, promise and refusals; a cloud may be working on it.

    Exit code 1 if the run was halted or failed for good.

    Example: sottovoce status run.db
    """
    from sottovoce.network.observe.run_summary import summarise

    summary = summarise(store)
    show_result(asdict(summary), _table(summary), json=json)
    if summary.status in ("halted", "failed"):
        raise typer.Exit(1)


def _kept(feasible: dict[str, Any] | None) -> str:
    from sottovoce.privacy.statement import up

    if feasible is None:
        return "no margin: an active limit is exceeded by about every second answer"
    each = "a certain one" if feasible["each_row"] else "one"
    rest = up(1.0 - feasible["probability"], 3)
    return f"P(the answer is confirmed and violates {each}) <= {rest}"


def _table(summary: RunSummary) -> Table:
    from sottovoce.privacy.adjacency import adjacency_of
    from sottovoce.privacy.statement import hidden, up
    from sottovoce.privacy.trust import WORDS, trust_of

    table = Table(show_header=False)
    config = summary.config
    table.add_row("status", summary.status + (f": {summary.reason}" if summary.reason else ""))
    total = "" if config is None else f" of {config.rounds:,}"
    table.add_row("rounds", f"{summary.rounds:,}{total}")
    table.add_row("begun", summary.created)
    if config is not None:
        promise = config.promise
        table.add_row("run", config.run_id)
        table.add_row("noise", config.noise)
        table.add_row(
            "promise",
            f"({up(promise['epsilon'], 4)}, {up(promise['delta'], 4)})-DP or better for every "
            f"agent, mu = {up(promise['gdp_mu'], 4)}",
        )
        hide = adjacency_of(promise["hide"], radius=promise["radius"], rounds=promise["rounds"])
        table.add_row(f"hidden ({hide.kind})", hidden(hide))
        table.add_row("trust", WORDS[trust_of(promise.get("trust", "one")).kind])
        table.add_row("constraints", _kept(promise.get("feasible")))
    table.add_row("prices", ", ".join(f"{p:.4g}" for p in summary.price[:16]))
    table.add_row("held", f"{summary.held:,} agent-rounds")
    refused = ", ".join(f"{code} {n:,}" for code, n in sorted(summary.incidents.items()))
    table.add_row("refused, clipped", refused or "none")
    return table
