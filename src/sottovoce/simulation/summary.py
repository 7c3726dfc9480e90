"""The outcome of a simulation as tables, data frames and a figure.

A run needs neither pandas nor matplotlib: ``frame`` and ``figure`` ask for them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.arguments import path_of
from sottovoce.errors import InputError
from sottovoce.privacy.statement import up
from sottovoce.problem.groups import Array
from sottovoce.problem.problem import violation
from sottovoce.simulation.result import QUANTITIES, Assessment, Result
from sottovoce.tables import PlainTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

_MOST_ROWS = 12  # of a table of constraints or states
_MOST_STATES = 100_000  # that become columns of a data frame
_NORMAL_95 = 1.96  # two-sided
_COLOURS = ("#1f5a8c", "#c2571a")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Tables about a result, which print as text and show as HTML in a notebook.

    Attributes:
        tables: the objective and how far it is from the best; per constraint, the worst first,
            ``g_j``, its violation in its units and in percent of its scale, and how many runs
            violate it; the first states, with 95% confidence intervals where the noise tells them;
            what noise there was, and what is promised.
    """

    tables: tuple[PlainTable, ...]

    def __str__(self) -> str:
        return "\n\n".join(str(table) for table in self.tables)

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables)


def summary(result: Result) -> Summary:
    """Return the tables of a result; failed runs count in none of them."""
    assessed, completed = result.assessment(), result.failed == 0
    objective = _objective_table(result, assessed, completed)
    constraints = _constraint_table(assessed, completed)
    answer, privacy = _answer_table(result, assessed, completed), _privacy_table(result, assessed)
    return Summary(tables=(objective, constraints, answer, privacy))


def _objective_table(
    result: Result, assessed: Assessment, completed: NDArray[np.bool_]
) -> PlainTable:
    runs = f"{result.runs:,} runs" if result.runs > 1 else "1 run"
    failed = result.runs - int(completed.sum())
    title = f"{result.rounds:,} rounds, {runs}" + (f", {failed:,} failed" if failed else "")
    if result.confirmed is not None:
        title += f", {int(result.confirmed.sum()):,} confirmed to keep the constraints"
    title += ", interrupted" if result.interrupted else ""
    values = assessed.objective[completed]
    rows: list[tuple[str, ...]] = [("objective", *_quantiles(values))]
    if np.isfinite(assessed.best):
        above = values - assessed.best
        middle = ("",) if values.size > 1 else ()
        rows.append(("at the optimum", *middle, f"{assessed.best:.6g}"))
        rows.append(("above the optimum", *_quantiles(above)))
        if assessed.best != 0.0:
            rows.append(
                ("in percent", *(f"{q}%" for q in _quantiles(100 * above / abs(assessed.best))))
            )
    return PlainTable(title=title, columns=_headings(completed), rows=tuple(rows))


def constraint_violations(
    assessed: Assessment, completed: NDArray[np.bool_]
) -> list[dict[str, Any]]:
    """Return by how much and how often the completed runs violate every constraint."""
    off = violation(assessed.rows[completed], assessed.equality)
    largest = off.max(axis=0, initial=0.0)
    return [
        {
            "name": name,
            "equality": bool(assessed.equality[j]),
            "scale": float(assessed.scale[j]),
            "largest_violation": float(largest[j]),
            "percent_of_scale": float(100 * largest[j] / assessed.scale[j]),
            "share_of_runs": float((off[:, j] > 0).mean()) if completed.any() else None,
        }
        for j, name in enumerate(assessed.row_labels)
    ]


def _constraint_table(assessed: Assessment, completed: NDArray[np.bool_]) -> PlainTable:
    violations, g = constraint_violations(assessed, completed), assessed.rows[completed]
    worst = sorted(zip(violations, g.T, strict=True), key=lambda pair: -pair[0]["percent_of_scale"])
    more = len(violations) - _MOST_ROWS
    return PlainTable(
        title="constraints, the worst first; g must be at most 0, or 0 (=)",
        columns=("", "median g", "largest violation", "of its scale", "runs that violate it"),
        rows=tuple(
            (
                v["name"] + (" (=)" if v["equality"] else ""),
                f"{np.median(values):.6g}" if values.size else "-",
                up(v["largest_violation"], 3),
                f"{up(v['percent_of_scale'], 3)}%",
                f"{up(100 * v['share_of_runs'] if values.size else np.nan, 3)}%",
            )
            for v, values in worst[:_MOST_ROWS]
        ),
        notes=(f"... and {more:,} more",) if more > 0 else (),
    )


def _answer_table(result: Result, assessed: Assessment, completed: NDArray[np.bool_]) -> PlainTable:
    has_deviation = assessed.deviation.size > 0
    rows = []
    for c, name in zip(
        range(min(_MOST_ROWS, result.x.shape[1])), assessed.state_labels(), strict=False
    ):
        half = "-"
        if has_deviation and np.isfinite(assessed.deviation[c]):
            half = f"± {up(_NORMAL_95 * float(assessed.deviation[c]), 3)}"
        rows.append((name, *_quantiles(result.x[completed, c]), half))
    notes = []
    if result.x.shape[1] > len(rows):
        notes.append(f"... and {result.x.shape[1] - len(rows):,} more")
    if not has_deviation:
        why = "there is no noise" if not assessed.sigma.size else "the saddle point is not known"
        notes.append(f"No confidence intervals: {why}.")
    return PlainTable(
        title="answer",
        columns=(*_headings(completed), "95% interval of one run"),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _privacy_table(result: Result, assessed: Assessment) -> PlainTable:
    rows = [("noise", result.noise)]
    words = assessed.promise.splitlines()
    if words:
        rows.append(("on the network", "the same plan with secure noise promises the worst off"))
        rows += [("", word) for word in words]
    else:
        rows.append(("hidden", "nothing"))
    # Sentences stand on the left: a table's figures are on the right.
    lines = tuple(f"  {name:<15} {text}".rstrip() for name, text in rows)
    return PlainTable(title="what is hidden", rows=(), notes=lines)


def _headings(completed: NDArray[np.bool_]) -> tuple[str, ...]:
    return ("", "5%", "median", "95%") if completed.sum() > 1 else ("", "value")


def _quantiles(values: Array) -> tuple[str, ...]:
    if not values.size or not np.isfinite(values).all():
        return ("-",)
    if values.size == 1:
        return (f"{float(values[0]):.6g}",)
    return tuple(f"{q:.6g}" for q in np.percentile(values, [5, 50, 95]))


def frame(result: Result, what: str) -> DataFrame:
    """Return a result as a table, see ``Result.to_frame``."""
    if what not in ("answers", "trace"):
        raise InputError(f"what must be 'answers' or 'trace', got {what!r:.60}")
    try:
        import pandas as pd
    except ImportError as error:
        raise InputError(
            "to_frame must have pandas, got none: pip install 'sottovoce[frame]'"
        ) from error
    return pd.DataFrame(_answer_columns(result) if what == "answers" else _trace_columns(result))


def _answer_columns(result: Result) -> dict[str, Any]:
    assessed, states = result.assessment(), result.x.shape[1]
    if states > _MOST_STATES:
        raise InputError(
            f"to_frame must have at most {_MOST_STATES:,} states, got {states:,}: use Result.x"
        )
    columns: dict[str, Any] = {
        "run": np.arange(1, result.runs + 1),
        "failed": result.failed > 0,
        "objective": assessed.objective,
    }
    columns |= dict(zip(assessed.state_labels(), result.x.T, strict=True))
    columns |= {f"g: {n}": g for n, g in zip(assessed.row_labels, assessed.rows.T, strict=True)}
    prices = zip(assessed.price_labels, result.price.T, strict=True)
    return columns | {f"price: {name}": price for name, price in prices}


def _trace_columns(result: Result) -> dict[str, Any]:
    k = result.trace.k
    columns: dict[str, Any] = {
        "run": np.repeat(np.arange(1, result.runs + 1), k.size),
        "k": np.tile(k, result.runs),
    }
    return columns | {name: getattr(result.trace, name).ravel() for name in QUANTITIES}


def figure(result: Result) -> Figure:
    """Return the median of all runs and the band from 5 to 95% against the rounds, log-log.

    Shows ``|x(k) - x_hat|`` and ``|lambda(k) - lambda_hat|``, or, where the saddle point is not
    known, the largest constraint violation and the residual of the optimality conditions.
    """
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes, trace = drawn.subplots(), result.trace
    curves = [("largest violation", trace.violation), ("optimality residual", trace.residual)]
    if result.saddle_x is not None:
        labels = (r"$\|x(k) - \hat x\|$", r"$\|\lambda(k) - \hat\lambda\|$")
        curves = list(zip(labels, (trace.error_x, trace.error_price), strict=True))
    for (label, values), colour in zip(curves, _COLOURS, strict=True):
        _draw(axes, trace.k, values, label, colour)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rounds $k$")
    axes.set_ylabel("distance")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(frameon=False)
    axes.set_title(_figure_title(result), fontsize="medium")
    return drawn


def draw(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure to an image file of any kind that matplotlib knows."""
    target = path_of("path", path)
    try:
        figure.savefig(target, dpi=160)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot draw to {target}: {error}") from error


def _draw(axes: Axes, k: NDArray[np.int64], values: Array, label: str, colour: str) -> None:
    # Failed runs stay out of the picture; a logarithm has no room for round 0 and exact zeros.
    shown = k > 0
    runs = values[np.isfinite(values).all(axis=1)][:, shown]
    if not runs.size:
        return
    low, middle, high = np.percentile(runs, [5.0, 50.0, 95.0], axis=0)
    positive = middle > 0
    rounds, floor = k[shown][positive], np.maximum(low, np.finfo(float).tiny)[positive]
    axes.plot(rounds, middle[positive], color=colour, label=label, linewidth=1.3)
    if runs.shape[0] > 1:
        axes.fill_between(rounds, floor, high[positive], color=colour, alpha=0.18, linewidth=0)


def _figure_title(result: Result) -> str:
    runs = "1 run" if result.runs == 1 else f"{result.runs} runs, median and 5-95% band"
    noise = "no noise" if result.noise.startswith("none") else "simulated noise"
    return f"{runs}, {noise}" + (" (interrupted)" if result.interrupted else "")
