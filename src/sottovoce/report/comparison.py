"""Published and recomputed figures side by side, with a verdict in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table


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


def compare(name: str, published: float, recomputed: float, digits: int, cause: str) -> Comparison:
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
        yield compare(f"{name}{i + 1}", before, float(after), digits, causes[i])


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
