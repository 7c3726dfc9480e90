"""What promises cost, as a figure for whoever decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from sottovoce.privacy.adjacency import Kind
from sottovoce.privacy.statement import up
from sottovoce.study.advice import Advice, AdviceRow

_COLOURS: dict[Kind, str] = {
    "trajectory": "#7a8b99",
    "offset": "#1f5a8c",
    "everything": "#c2571a",
}
_FLOOR = 1e-5  # a share below which nothing is drawn: nobody cares, and a logarithm has no zero


def advice_figure(advice: Advice) -> Figure:
    """Return two panels over epsilon: what keeping the limits costs, and how sure they are."""
    figure = Figure(figsize=(11.0, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    _panel(left, advice, _cost, "What keeping every limit costs")
    left.set_ylabel("extra cost, % of the objective")
    left.axhspan(_FLOOR / 10, 0.01, color="#2e7d32", alpha=0.08)
    left.text(
        0.02, 0.01, "less than 1%", transform=left.get_yaxis_transform(), va="top",
        color="#2e7d32", fontsize=9,
    )  # fmt: skip
    _panel(right, advice, _noise, "How far a limit may be missed (standard deviation)")
    right.set_ylabel("noise, % of the limit")
    right.axhline(1.0, color="#b71c1c", linewidth=1.0, linestyle="--")
    right.text(
        0.02, 1.0, "above: the answer is useless", transform=right.get_yaxis_transform(),
        va="bottom", color="#b71c1c", fontsize=9,
    )  # fmt: skip
    for axes in (left, right):
        axes.set_ylim(bottom=max(axes.get_ylim()[0], _FLOOR))
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    figure.suptitle(fill(_title(advice), 120), fontsize=11)
    return figure


def _panel(axes: Axes, advice: Advice, value: Callable[[AdviceRow], float], title: str) -> None:
    for kind, colour in _COLOURS.items():
        rows = [r for r in advice.rows if r.hide == kind and r.predicted is not None]
        if rows:
            drawn = [row for row in rows if math.isfinite(value(row))]
            shares = [max(value(row), _FLOOR) for row in drawn]
            losses = [row.epsilon for row in drawn]
            axes.plot(losses, shares, marker="o", color=colour, label=_label(rows[0]))
    best = advice.recommended
    if best is not None and math.isfinite(value(best)):
        axes.plot(
            [best.epsilon], [max(value(best), _FLOOR)], marker="*", markersize=20,
            color=_COLOURS[best.hide], markeredgecolor="black", linestyle="none",
            label="recommended",
        )  # fmt: skip
    losses = sorted({row.epsilon for row in advice.rows})
    axes.set(xscale="log", yscale="log", title=title)
    axes.set_xlabel(
        r"$\leftarrow$ stronger privacy          $\varepsilon$          weaker $\rightarrow$"
    )
    axes.set_xticks(losses, [up(loss, 3) for loss in losses])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    axes.grid(visible=True, alpha=0.25)


def _label(row: AdviceRow) -> str:
    if row.hide == "everything":
        return "hide everything an agent does"
    if row.hide == "offset":
        return f"hide an offset of {row.radius:g} in every round"
    return f"hide a change of {row.radius:g} in total"


def _cost(row: AdviceRow) -> float:
    """What it costs; nothing that could be drawn where the answer is useless anyway."""
    return math.inf if row.predicted is None or row.predicted.useless else row.cost


def _noise(row: AdviceRow) -> float:
    return 0.0 if row.predicted is None else row.predicted.worst[1]


def _title(advice: Advice) -> str:
    return f"{advice.agents:,} agents. {advice.words}"
