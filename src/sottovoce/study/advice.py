"""What each promise costs, row by row, and the one to take: values, tables and a figure."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, final

from sottovoce.privacy.adjacency import Kind
from sottovoce.privacy.statement import down, up
from sottovoce.study.prediction import Prediction
from sottovoce.tables import PlainTable, cut

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IN_WORDS: dict[Kind, str] = {
    "trajectory": "a trajectory",
    "offset": "an offset",
    "everything": "everything",
}
_SHOWN = 12
_COLOURS: dict[Kind, str] = {
    "trajectory": "#7a8b99",
    "offset": "#1f5a8c",
    "everything": "#c2571a",
}
_FLOOR = 1e-5  # the least share that is drawn: a logarithm has no zero


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdviceRow:
    """One promise, and what it costs.

    Attributes:
        hide: what is hidden.
        radius: how much; None if everything is.
        epsilon: the privacy loss.
        delta: the failure probability.
        rounds: the number of rounds that suits it.
        sigma: the standard deviations of the released sums, least and largest.
        hidden_offset: the constant offset of a state that stays hidden over all rounds; None if
            everything is hidden, whatever its size.
        predicted: what to expect.
        measured: the same, from simulated runs; None unless asked for.
        fleet: the number of agents from which on keeping the constraints costs less than 1% of the
            objective: more agents of the same kind, under bounds that grow with them.
        refused: why there is no such plan; empty if there is one.
        feasible: the probability with which constraints shall be kept.
        unkept: why there is no room for margins that keep them so; empty if there is.
    """

    hide: Kind
    radius: float | None
    epsilon: float
    delta: float
    rounds: int
    sigma: tuple[float, float] = (0.0, 0.0)
    hidden_offset: float | None = None
    predicted: Prediction | None = None
    measured: Prediction | None = None
    fleet: int = 0
    refused: str = ""
    feasible: float = 0.95
    unkept: str = ""

    @property
    def cost(self) -> float:
        """What counts when promises are compared: what feasibility costs, or the noise."""
        return float("inf") if self.predicted is None else self.predicted.cost

    @property
    def privacy(self) -> str:
        """The line for ``problem.toml``: the table ``[privacy]`` in TOML."""
        radius = "" if self.radius is None else f"radius = {self.radius!r}, "
        kept = "" if self.unkept else f"feasible = {self.feasible!r}, "
        return (
            f'privacy = {{ hide = "{self.hide}", {radius}epsilon = {self.epsilon!r}, '
            f"delta = {self.delta!r}, {kept}rounds = {self.rounds} }}"
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advice:
    """What promises cost on a problem, and which of them to take.

    Attributes:
        agents: how many agents the problem has.
        feasible: the probability with which feasibility is priced.
        accuracy: the error, as a share, that is good enough.
        rows: one per promise, by what is hidden and then by epsilon.
        recommended: the promise to take; None if none is worth anything.
        interrupted: whether it was stopped before the last row.
    """

    agents: int
    feasible: float
    accuracy: float
    rows: tuple[AdviceRow, ...]
    recommended: AdviceRow | None
    interrupted: bool = False

    @property
    def line(self) -> str:
        """The recommended line for the top of ``problem.toml``; empty if there is none."""
        return "" if self.recommended is None else self.recommended.privacy

    @property
    def words(self) -> str:
        """The recommendation in words."""
        if self.recommended is None:
            return (
                "None of these promises leaves an answer that is worth anything: hide less, allow "
                "a larger epsilon, or bring more agents under the same promise."
            )
        best = self.recommended
        text = f"Hide {IN_WORDS[best.hide]} with epsilon {up(best.epsilon, 3)}: "
        if best.unkept:
            return f"{text}worth something, but without room for margins that keep constraints."
        text += f"keeping all constraints costs {pc(best.cost)}"
        if best.cost <= self.accuracy:
            text += f", within the {pc(self.accuracy)} that you allow."
        else:
            text += f", the cheapest of these, and more than the {pc(self.accuracy)} wanted; from "
            text += f"{best.fleet:,} agents of this kind on it would be less than 1%."
        if best.hide == "trajectory" and best.hidden_offset is not None:
            text += (
                f" It hides little: of a state that stays where it is, an offset of "
                f"{down(best.hidden_offset, 2)}."
            )
        return text

    def table(self) -> PlainTable:
        """All promises, one per line; measured figures in brackets."""
        head = (
            "hidden", "epsilon", "rounds", "worst noise", "over limit", "margin costs",
            "error of x", "error of f", "1% from",
        )  # fmt: skip
        return PlainTable(
            title=f"What promises cost; feasibility at {pc(self.feasible)}",
            columns=head,
            rows=tuple(_line(row, chosen=row is self.recommended) for row in self.rows),
            notes=(*_hidden(self.rows), *_NOTES, *_refusals(self.rows)),
        )

    def constraints(self) -> PlainTable:
        """The noise of every constraint in percent of its scale, for what is recommended."""
        kind = self.rows[0].hide if self.recommended is None else self.recommended.hide
        rows = [r for r in self.rows if r.hide == kind and r.predicted is not None]
        first = rows[0].predicted if rows else None
        names = () if first is None else first.rows
        order = sorted(range(len(names)), key=lambda j: -_noise(rows[0], j))[:_SHOWN]
        more = len(names) - len(order)
        return PlainTable(
            title=f"Noise of the answer in percent of each constraint's scale, hiding "
            f"{IN_WORDS[kind]}",
            columns=("constraint", *(f"epsilon {up(r.epsilon, 3)}" for r in rows)),
            rows=tuple((cut(names[j], 24), *(pc(_noise(r, j)) for r in rows)) for j in order),
            notes=(f"... and {more:,} more",) if more else (),
        )

    def data(self) -> dict[str, object]:
        """Return everything as plain values for JSON."""
        return {
            "agents": self.agents,
            "feasible": self.feasible,
            "accuracy": self.accuracy,
            "interrupted": self.interrupted,
            "recommended": self.line or None,
            "words": self.words,
            "rows": [_data(row) for row in self.rows],
        }

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw two panels over epsilon: what keeping the limits costs, and how sure they are."""
        from matplotlib.figure import Figure

        from sottovoce.simulation.convergence import draw

        figure = Figure(figsize=(11.0, 5.2), layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True)
        _panel(left, self, _cost, "What keeping every limit costs")
        left.set_ylabel("extra cost, % of the objective")
        left.axhspan(_FLOOR / 10, 0.01, color="#2e7d32", alpha=0.08)
        _note(left, 0.01, "less than 1%", "top", "#2e7d32")
        _panel(right, self, _worst, "How far a limit may be missed (standard deviation)")
        right.set_ylabel("noise, % of the limit")
        right.axhline(1.0, color="#b71c1c", linewidth=1.0, linestyle="--")
        _note(right, 1.0, "above: the answer is useless", "bottom", "#b71c1c")
        for axes in (left, right):
            axes.set_ylim(bottom=max(axes.get_ylim()[0], _FLOOR))
        drawn = left.get_legend_handles_labels()
        figure.legend(*drawn, loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle(fill(f"{self.agents:,} agents. {self.words}", 120), fontsize=11)
        draw(figure, path)

    def __str__(self) -> str:
        parts = [str(self.table()), str(self.constraints()), self.words]
        return "\n\n".join(parts + ([self.line] if self.line else []))

    def _repr_html_(self) -> str:
        end = PlainTable(title=self.words, rows=((self.line,),) if self.line else ())
        return "".join(t._repr_html_() for t in (self.table(), self.constraints(), end))

    def __repr__(self) -> str:
        return f"Advice(rows={len(self.rows)}, recommended={self.line!r})"


_NOTES = (
    "worst noise: standard deviation of the noisiest constraint at the answer, of its scale",
    "over limit: probability that some inequality is violated if nothing is done about it",
    "margin costs: what keeping all of them as often as stated costs, of the objective",
    "error of x, of f: of the boxes, of the objective",
    "1% from: so many agents of the same kind pay less than 1% for their margin",
    "In brackets: measured in simulated runs.",
)


def pc(share: float | None) -> str:
    """Write a share in percent, rounded up; infinite is what there is no room for."""
    if share is None or share == math.inf:
        return "-" if share is None else "no room"
    return f"{up(100 * share, 2 if share < 10 else 3)}%"


def _noise(row: AdviceRow, j: int) -> float:
    assert row.predicted is not None  # noqa: S101  only such rows are asked
    return float(row.predicted.noise[j])


def _hidden(rows: tuple[AdviceRow, ...]) -> tuple[str, ...]:
    """How much of what is hidden the rows speak of."""
    over = {"trajectory": "in all rounds together", "offset": "in every round"}
    radii = {row.hide: row.radius for row in rows if row.radius is not None}
    return tuple(f"{kind}: a change of {down(r, 3)} {over[kind]}" for kind, r in radii.items())


def _refusals(rows: tuple[AdviceRow, ...]) -> tuple[str, ...]:
    return tuple(
        f"refused ({row.hide}, epsilon {up(row.epsilon, 3)}): {cut(row.refused)}"
        for row in rows
        if row.refused
    )


def _line(row: AdviceRow, *, chosen: bool) -> tuple[str, ...]:
    head = (("* " if chosen else "  ") + row.hide, up(row.epsilon, 3), f"{row.rounds:,}")
    if row.predicted is None:
        return (*head, "refused")
    predicted, measured = row.predicted, row.measured
    name, noise = predicted.worst
    pairs = [
        (noise, None if measured is None else float(measured.noise[predicted.rows.index(name)])),
        (predicted.violation, None if measured is None else measured.violation),
        (predicted.feasibility_cost, None),
        (predicted.x, None if measured is None else measured.x),
        (predicted.objective, None if measured is None else measured.objective),
    ]
    cells = [pc(one) + ("" if other is None else f" ({pc(other)})") for one, other in pairs]
    end = "useless" if predicted.useless else f"{row.fleet:,}"
    return (*head, *cells, end)


def _data(row: AdviceRow) -> dict[str, object]:
    return {
        "hide": row.hide,
        "radius": row.radius,
        "epsilon": row.epsilon,
        "delta": row.delta,
        "rounds": row.rounds,
        "sigma": list(row.sigma),
        "hidden_offset": row.hidden_offset,
        "fleet": row.fleet,
        "refused": row.refused or None,
        "unkept": row.unkept or None,
        "privacy": row.privacy,
        "predicted": _prediction(row.predicted),
        "measured": _prediction(row.measured),
    }


def _prediction(prediction: Prediction | None) -> dict[str, object] | None:
    if prediction is None:
        return None
    return {
        "noise": dict(zip(prediction.rows, prediction.noise.tolist(), strict=True)),
        "violation": prediction.violation,
        "feasibility_cost": prediction.feasibility_cost,
        "x": prediction.x,
        "objective": prediction.objective,
        "useless": prediction.useless or None,
    }


def _panel(axes: Axes, advice: Advice, value: Callable[[AdviceRow], float], title: str) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

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
    """What it costs; infinite, hence not drawn, where the answer is useless anyway."""
    return math.inf if row.predicted is None or row.predicted.useless else row.cost


def _worst(row: AdviceRow) -> float:
    return 0.0 if row.predicted is None else row.predicted.worst[1]


def _note(axes: Axes, height: float, text: str, side: str, colour: str) -> None:
    place = axes.get_yaxis_transform()
    axes.text(0.02, height, text, transform=place, va=side, color=colour, fontsize=9)
