"""The reproduction of the paper as tables, data and the paper's figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from sottovoce.problem.agents import Array
from sottovoce.simulation.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure: what was published, what comes out, and what to make of it.

    Attributes:
        name: the figure.
        published: as printed.
        recomputed: as it comes out.
        digits: decimal places that were printed.
        verdict: in words.
    """

    name: str
    published: float
    recomputed: float
    digits: int
    verdict: str


def compare_number(
    name: str, published: float, recomputed: float, digits: int, cause: str
) -> Comparison:
    """Compare one figure; ``cause`` explains a difference that is more than rounding.

    The two agree if ``|recomputed - published| <= 10^-digits / 2``, the printed digits' rounding.
    """
    difference = recomputed - published
    if abs(difference) <= 0.5 * 10.0**-digits * (1.0 + 1e-9):
        verdict = "agrees"
    elif published == 0.0:
        verdict = f"differs by {difference:.3g}: {cause}"
    else:
        verdict = f"differs by {difference / published:+.2%}: {cause}"
    return Comparison(
        name=name, published=published, recomputed=recomputed, digits=digits, verdict=verdict
    )


def compare_each(
    name: str,
    published: Sequence[float],
    recomputed: Any,
    digits: int,
    cause: str | Sequence[str],
) -> Iterator[Comparison]:
    """Compare a list of figures entry by entry, numbered from 1; ``cause`` explains differences."""
    causes = [cause] * len(published) if isinstance(cause, str) else cause
    for i, (before, after) in enumerate(zip(published, np.ravel(recomputed), strict=True)):
        yield compare_number(f"{name}{i + 1}", before, float(after), digits, causes[i])


def comparison_table(title: str, rows: Sequence[Comparison]) -> Table:
    """Return the comparisons as a table for people."""
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("published", justify="right")
    table.add_column("recomputed", justify="right")
    table.add_column("verdict", overflow="fold")
    for row in rows:
        colour = "green" if row.verdict == "agrees" else "yellow"
        table.add_row(
            row.name,
            f"{row.published:.{row.digits}f}",
            f"{row.recomputed:.{row.digits + 3}f}",
            f"[{colour}]{row.verdict}[/]",
        )
    return table


def paper_comparisons(
    published: Mapping[str, Any], recomputed: Mapping[str, Any]
) -> list[Comparison]:
    """Compare every published figure but the errors with the recomputed one."""
    return list(_comparisons(published, recomputed))


def _comparisons(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Comparison]:
    yield compare_number(
        "kappa(0.05, ln 3)", before["kappa"], after["kappa"], 4, "K_delta was rounded"
    )
    yield compare_number("K_g", before["k_g"], after["k_g"], 3, "too small for Theorem 3")
    yield from compare_each("K_g'^", before["k_prime"], after["k_prime"], 2, "arithmetic slip")
    yield from compare_each(
        "sigma_sq_", before["sigma_sq"], after["sigma_sq"], 4, "follows from kappa and K_g'"
    )
    yield compare_number(
        "sigma_g_sq", before["sigma_g_sq"], after["sigma_g_sq"], 4, "follows from kappa and K_g"
    )
    yield from compare_each("x-hat_", before["x_hat"], after["x_hat"], 3, _stopped(before, after))
    yield from compare_each("mu-hat_", before["mu_hat"], after["mu_hat"], 4, "stopped early")


def _stopped(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Why components of x-hat differ: an early stop shows most where the objective is flat."""
    gaps = np.abs(np.asarray(after["x_hat"]) - before["x_hat"])
    return ["stopped early, and flat here" if gap > 0.01 else "stopped early" for gap in gaps]


def ensemble_data(
    ensemble: Mapping[int, Mapping[str, Array]], quantiles: Sequence[float]
) -> dict[str, Any]:
    """Return the quantiles of every error at every step, keyed by step, error and quantile."""
    return {
        str(step): {
            name: {str(q): float(np.quantile(values, q)) for q in quantiles}
            for name, values in errors.items()
        }
        for step, errors in ensemble.items()
    }


def error_table(
    published: Mapping[int, Mapping[str, float]],
    ensemble: Mapping[int, Mapping[str, Array]],
    quantiles: Sequence[float],
) -> Table:
    """Return the errors of the simulation beside the published ones."""
    runs = len(next(iter(next(iter(ensemble.values())).values())))
    table = Table(
        title=f"Errors of Algorithm 1 with the published noise, {runs} seeds", title_justify="left"
    )
    table.add_column("step", justify="right")
    table.add_column("distance to")
    table.add_column("published", justify="right")
    for q in quantiles:
        table.add_column(f"{q:.0%}", justify="right")
    table.add_column("as near", justify="right")
    for step, errors in ensemble.items():
        for name, values in errors.items():
            which, _, against = name.partition("_")
            printed = published[step][which]
            reached = int(np.sum(values <= printed))
            table.add_row(
                f"{step:,}",
                f"{which}, published" if against else f"{which}, true",
                f"{printed:.4f}",
                *(f"{np.quantile(values, q):.4f}" for q in quantiles),
                f"[{'green' if reached else 'yellow'}]{reached} of {runs}[/]",
            )
    return table


def paper_tables(
    published: Mapping[str, Any],
    recomputed: Mapping[str, Any],
    ensemble: Mapping[int, Mapping[str, Array]],
    quantiles: Sequence[float],
) -> list[Table]:
    """Return all comparisons as tables for people."""
    return [
        comparison_table("The paper, number by number", paper_comparisons(published, recomputed)),
        error_table(published["errors"], ensemble, quantiles),
    ]


def paper_figure(result: Result, published: Mapping[int, Mapping[str, float]], path: Path) -> None:
    """Draw the paper's figure: both error norms against k, one run and the ensemble's band."""
    with mpl.rc_context({"font.size": 11}):
        figure = Figure(figsize=(9.0, 5.2), layout="constrained")
        axes = figure.subplots()
        k = result.trace.k
        for values, colour, name in (
            (result.trace.error_x, "tab:blue", "x"),
            (result.trace.error_price, "tab:red", r"\mu"),
        ):
            low, middle, high = np.quantile(values, (0.05, 0.5, 0.95), axis=0)
            label = rf"$\|{name}(k) - \hat{{{name}}}\|$"
            axes.fill_between(k, low, high, color=colour, alpha=0.18, linewidth=0,
                              label=f"{label}, 5% to 95% of {result.runs} runs")  # fmt: skip
            axes.plot(k, middle, color=colour, linewidth=1.0, linestyle="--")
            axes.plot(k, values[0], color=colour, linewidth=1.2, label=f"{label}, one run")
        for name, colour in (("x", "tab:blue"), ("mu", "tab:red")):
            axes.plot(list(published), [printed[name] for printed in published.values()],
                      marker="*", markersize=13, color=colour, markeredgecolor="black",
                      linestyle="none", label=f"published, {name}")  # fmt: skip
        axes.set(
            xscale="log",
            yscale="log",
            xlim=(1, 1.2 * k[-1]),
            xlabel="round k",
            ylabel="distance to the true saddle point",
            title="Algorithm 1 with the published noise",
        )
        axes.grid(which="both", alpha=0.25)
        axes.legend(fontsize=9, loc="lower left")
        figure.savefig(path, dpi=150)
