"""Privacy against accuracy as a table and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from sottovoce.privacy.figures import down, up
from sottovoce.study.tradeoff import TradeoffRow


def tradeoff_table(rows: Sequence[TradeoffRow]) -> Table:
    """Return the rows as a table for people."""
    table = Table(
        title="What a budget buys: the constant offset hidden over all rounds, and the accuracy at "
        "the statistical limit",
        title_justify="left",
    )
    headings = (
        "epsilon",
        "rounds",
        "sigma",
        "constant offset hidden",
        "rms error x",
        "rms error of prices",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            up(row.epsilon, 4),
            f"{row.rounds:,}",
            f"{down(row.sigma_least, 3)} to {down(row.sigma_most, 3)}",
            "any" if row.hidden_offset is None else down(row.hidden_offset, 3),
            up(row.x, 3),
            up(row.price, 3),
        )
    return table


def tradeoff_figure(rows: Sequence[TradeoffRow], path: Path) -> None:
    """Draw the expected errors of x and prices against epsilon, one line per number of rounds."""
    figure = Figure(figsize=(10.0, 4.6), layout="constrained")
    for axes, name, symbol in zip(
        figure.subplots(1, 2, sharey=True), ("x", "price"), ("x", r"prices $\lambda$"), strict=True
    ):
        for count in sorted({row.rounds for row in rows}):
            own = sorted((row.epsilon, getattr(row, name)) for row in rows if row.rounds == count)
            axes.plot(*zip(*own, strict=True), marker="o", label=f"{count:,} rounds")
        axes.set(xscale="log", yscale="log", xlabel=r"privacy loss $\varepsilon$", title=symbol)
        axes.grid(which="both", alpha=0.25)
        axes.legend(fontsize=8)
    figure.axes[0].set_ylabel("root-mean-square error at the statistical limit")
    figure.savefig(path, dpi=150)
