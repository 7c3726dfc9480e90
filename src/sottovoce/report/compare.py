"""Algorithms and plans against the statistical limit, as a table, data and a figure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich import box
from rich.markup import escape
from rich.table import Table

from sottovoce.errors import InputError
from sottovoce.study.compare import JOINT, PAPER, PUBLISHED, Compared, CompareRow

# Okabe and Ito's colours, which everybody can tell apart; plans may coincide, so widths differ.
_LOOKS: dict[str, dict[str, Any]] = {
    PUBLISHED: {"color": "#E69F00", "linewidth": 4.5, "alpha": 0.75},
    PAPER: {"color": "#8A2A00", "linewidth": 1.5, "alpha": 1.0},
    JOINT: {"color": "#0072B2", "linewidth": 1.9, "alpha": 1.0},
}
_WORDS = {PUBLISHED: "published noise", PAPER: "paper's method, certified", JOINT: "joint plan"}
_STYLES: tuple[Any, ...] = ("-", (0, (7, 4)), (0, (7, 3, 1.5, 3)))
_DOTS = (0, (1.3, 2.6))
_GREY = "0.25"


def compare_table(found: Compared, rounds: Collection[int]) -> Table:
    """Return the rows of these numbers of rounds as a table; errors are root mean squares."""
    table = Table(
        title=f"Root-mean-square errors of {found.runs} runs against the saddle point",
        title_justify="left",
        caption=_caption(found),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("plan, algorithm", overflow="fold", vertical="bottom")
    # In two lines, so that names of plans and algorithms stay whole in 80 columns.
    headings = ("rounds", "x", "last\nx", "x/\nlimit", "price", "last\nprice", "price/\nlimit")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True, vertical="bottom")
    shown = [row for row in found.rows if row.rounds in rounds]
    for name in dict.fromkeys(row.plan for row in shown):
        table.add_section()
        table.add_row(f"[bold]{escape(name)}[/]")
        own = [row for row in shown if row.plan == name]
        for before, row in zip([None, *own], own, strict=False):
            if before is not None and before.rounds != row.rounds:
                _add_limit(table, before)
            _add_row(table, row)
        _add_limit(table, own[-1])
    for refusal in found.refusals:
        table.add_section()
        table.add_row(f"[bold]{escape(refusal.plan)}[/]\n  [yellow]refused: below[/]")
    return table


def compare_data(found: Compared, rounds: Collection[int]) -> dict[str, Any]:
    """Return everything as plain values for JSON; components count from 1, NaN becomes None.

    Args:
        found: from ``study.compare``.
        rounds: the numbers of rounds that were asked for; others are in ``grid``.
    """
    return {
        "runs": found.runs,
        "seed": found.seed,
        "flat": [component + 1 for component in found.flat],
        "interrupted": found.interrupted,
        "rows": [_plain(row) for row in found.rows if row.rounds in rounds],
        "grid": [_plain(row) for row in found.rows if row.rounds not in rounds],
        "refusals": [asdict(refusal) for refusal in found.refusals],
    }


def compare_figure(found: Compared, path: Path) -> None:
    """Draw errors against rounds, log-log: x and prices side by side, one colour per plan.

    Solid, dashed: the algorithms in turn. Dotted: the limit ``sqrt(trace(J^-1 Sigma J^-T / T))``.
    """
    plans = list(dict.fromkeys(row.plan for row in found.rows))
    algorithms = list(dict.fromkeys(row.algorithm for row in found.rows))
    with mpl.rc_context({"font.size": 11, "lines.scale_dashes": False}):
        figure = Figure(figsize=(10.5, 5.4), layout="constrained")
        for axes, name, symbol in zip(
            figure.subplots(1, 2, sharey=True), ("x", "price"), ("x", r"\lambda"), strict=True
        ):
            _draw(axes, found, name, plans, algorithms)
            axes.set(xscale="log", yscale="log", xlabel="rounds $T$")
            apart = f" without flat component {_flat(found)}" if name == "x" and found.flat else ""
            axes.set_title(rf"$\|{symbol} - \hat{{{symbol}}}\|${apart}", fontsize=12)
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.grid(which="major", alpha=0.3)
            axes.grid(which="minor", alpha=0.12)
        figure.axes[0].set_ylabel("root-mean-square error")
        figure.legend(
            handles=_legend(plans, algorithms), loc="outside lower center",
            ncols=max(len(plans), len(algorithms) + 1), frameon=False, handlelength=3.2,
        )  # fmt: skip
        try:
            figure.savefig(path, dpi=160)
        except OSError as error:
            raise InputError(f"cannot draw to {path}: {error.strerror}") from error


def _add_row(table: Table, row: CompareRow) -> None:
    failed = f"\n  [yellow]{row.failed} of {row.runs} runs failed[/]" if row.failed else ""
    table.add_row(
        f"  {escape(row.algorithm)}{failed}",
        f"{row.rounds:,}",
        *(_figure(row.x), _figure(row.last_x), _ratio(row.efficiency_x)),
        *(_figure(row.price), _figure(row.last_price), _ratio(row.efficiency_price)),
    )


def _add_limit(table: Table, row: CompareRow) -> None:
    limits = (_figure(row.limit_x), "", "", _figure(row.limit_price), "", "")
    table.add_row("  limit", f"{row.rounds:,}", *limits, style="dim")


def _figure(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:#.3g}" if value < 100 else _large(value)


def _ratio(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:.2f}" if value < 1000 else _large(value)


def _large(value: float) -> str:
    """A number without decimals, in eight letters at most."""
    return f"{value:,.0f}" if value < 999_999.5 else f"{value:.2e}"


def _caption(found: Compared) -> str:
    lines = [
        "limit: the best that so many releases with this noise allow, once rounds are many. While "
        "they are few, start and boxes say more than the releases do: ratios below 1."
    ]
    if found.flat:
        lines.append(f"Without flat component {_flat(found)} of x, where no such limit exists.")
    lines += [f"{refusal.plan}, refused: {refusal.why}" for refusal in found.refusals]
    if found.interrupted:
        lines.append("Interrupted: rows are missing.")
    return escape("\n".join(lines))


def _flat(found: Compared) -> str:
    return ", ".join(str(component + 1) for component in found.flat)


def _plain(row: CompareRow) -> dict[str, Any]:
    values = asdict(row) | {
        "efficiency_x": row.efficiency_x,
        "efficiency_price": row.efficiency_price,
    }
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def _draw(
    axes: Any, found: Compared, name: str, plans: Sequence[str], algorithms: Sequence[str]
) -> None:
    for plan in plans:
        own = [row for row in found.rows if row.plan == plan]
        least = {row.rounds: getattr(row, f"limit_{name}") for row in own}
        look = _LOOKS[plan]
        if all(value > 0 for value in least.values()):
            axes.plot(
                list(least), list(least.values()), linestyle=_DOTS, **look | {"linewidth": 1.3}
            )
        for algorithm, style in zip(algorithms, _STYLES, strict=False):
            drawn = [row for row in own if row.algorithm == algorithm]
            axes.plot(
                [row.rounds for row in drawn], [getattr(row, name) for row in drawn],
                linestyle=style, marker="o", markersize=2.5 + look["linewidth"], **look,
            )  # fmt: skip


def _legend(plans: Sequence[str], algorithms: Sequence[str]) -> list[Line2D]:
    """Colours, then styles; a legend fills columns first, so the two are interleaved."""
    colours = [Line2D([], [], label=_WORDS[plan], **_LOOKS[plan]) for plan in plans]
    styles = [
        Line2D([], [], color=_GREY, linestyle=style, label=label)
        for style, label in [*zip(_STYLES, algorithms, strict=False), (_DOTS, "statistical limit")]
    ]
    blank = Line2D([], [], linestyle="none", label=" ")
    columns = max(len(colours), len(styles))
    colours += [blank] * (columns - len(colours))
    styles += [blank] * (columns - len(styles))
    return [handle for pair in zip(colours, styles, strict=True) for handle in pair]
