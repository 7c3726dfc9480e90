"""Privacy against accuracy as a table and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from sottovoce.study.tradeoff import TradeoffRow


def tradeoff_table(rows: Sequence[TradeoffRow]) -> Table:
    """Return the rows as a table for people."""
    table = Table(title="What a budget buys (accuracy: statistical limit)", title_justify="left")
    headings = ("epsilon", "rounds", "sigma", "hidden offset", "rms error x", "rms error mu")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row.epsilon:.4g}",
            f"{row.rounds:,}",
            f"{row.sigma_least:.3g} to {row.sigma_most:.3g}",
            f"{row.hidden_offset:.3g}",
            f"{row.x:.3g}",
            f"{row.mu:.3g}",
        )
    return table


def tradeoff_figure(rows: Sequence[TradeoffRow], path: Path) -> None:
    """Draw the expected error of x against epsilon, one line per number of rounds."""
    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    axes = figure.subplots()
    for count in sorted({row.rounds for row in rows}):
        own = sorted((row.epsilon, row.x, row.mu) for row in rows if row.rounds == count)
        epsilon, x, mu = zip(*own, strict=True)
        (line,) = axes.plot(epsilon, x, marker="o", label=f"x, {count:,} rounds")
        axes.plot(epsilon, mu, marker="s", linestyle="--", color=line.get_color(),
                  label=rf"$\mu$, {count:,} rounds")  # fmt: skip
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=r"privacy loss $\varepsilon$",
        ylabel="root-mean-square error at the statistical limit",
    )
    axes.grid(which="both", alpha=0.25)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
