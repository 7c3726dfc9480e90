"""Lines that derive what an agent minimises for ``algorithm.interior``: slopes, rows, curvatures.

The same formulas serve a kernel and one agent in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sottovoce.engine.emit import Emitter
from sottovoce.engine.formulas import Fleet
from sottovoce.engine.slopes import Prices, names_in, slopes_of
from sottovoce.engine.source import block
from sottovoce.formula.derive import gradient, hessian
from sottovoce.formula.expression import Expression
from sottovoce.problem.epigraph import HomeForm

_DERIVE = {
    "own": "int64", "lane": "int64", "on": "float64", "state": "float64[::1]",
    "work": "float64[::1]", "data": "float64[::1]", "x": "float64[::1]", "price": "float64[::1]",
    "gradient": "float64[::1]", "values": "float64[::1]", "jacobian": "float64[:, ::1]",
    "hessian": "float64[:, ::1]",
}  # fmt: skip
_CONTEXT = ("own", "lane", "on", "state", "work", "data")

Entry = tuple[str, str, str]
"""Where a number goes (``gradient[0]``), whether it is set or added, and its name."""


def names_with(fleet: Fleet, form: HomeForm) -> dict[Expression, str]:
    """What an agent's states, variables more and parameters are called in the code."""
    extra = {s: f"x{fleet.group.dim + e}" for e, s in enumerate(form.extra)}
    return names_in(fleet) | extra


def objective_entries(
    page: Emitter, fleet: Fleet, form: HomeForm, prices: Prices
) -> Iterator[Entry]:
    """The slope and the curvature of ``f + lambda'h``."""
    smooth = _smooth(fleet, form)
    variables = (*fleet.group.symbols, *form.extra)
    for c, slope in enumerate(slopes_of(page, smooth, prices, variables)):
        yield f"gradient[{c}]", "=", slope
    yield from _curvature(page, smooth.objective, "1.0", variables)
    for part, price in zip(smooth.sums, prices, strict=True):
        for h, name in zip(part.terms, price, strict=True):
            yield from _curvature(page, h, name, variables)


def row_entries(page: Emitter, fleet: Fleet, form: HomeForm) -> Iterator[Entry]:
    """The rows' values and slopes, and their curvature times their multipliers ``price[j]``."""
    variables = (*fleet.group.symbols, *form.extra)
    for j, row in enumerate((*form.inequalities, *form.equalities)):
        yield f"values[{j}]", "=", page.value(row)
        slopes = gradient(row, variables)
        for c, symbol in enumerate(variables):
            if symbol in slopes:
                yield f"jacobian[{j}, {c}]", "=", page.value(slopes[symbol])
        yield from _curvature(page, row, f"price[{j}]", variables)


def _curvature(
    page: Emitter, expr: Expression, factor: str, variables: Sequence[Expression]
) -> Iterator[Entry]:
    """The lower half of a formula's Hessian, times a factor."""
    place = {s: c for c, s in enumerate(variables)}
    for (first, second), entry in hessian(expr, variables).items():
        value = page.value(entry)
        value = value if factor == "1.0" else page.assign(f"{factor} * {value}")
        yield f"hessian[{place[second]}, {place[first]}]", "+=", value


def _smooth(fleet: Fleet, form: HomeForm) -> Fleet:
    """The agent's formulas with variables in place of kinks."""
    terms = iter(form.terms)
    sums = tuple(replace(part, terms=tuple(next(terms) for _ in part.terms)) for part in fleet.sums)
    return replace(fleet, objective=form.objective, sums=sums)


def derive_source(bodies: Mapping[int, Sequence[str]] | Sequence[str]) -> str:
    """A module with ``derive``, which an interior-point method calls by its address.

    Args:
        bodies: the lines of one formula, or of several by the number that ``own`` has.
    """
    lines: list[str] = []
    if isinstance(bodies, Mapping):
        for who, body in bodies.items():
            lines += [f"if own == {who}:", block(body, 1)]
    else:
        lines += bodies
    kinds = ", ".join(_DERIVE.values())
    return "\n".join(
        [
            "import math",
            "import numpy as np",
            "from sottovoce.compiler.module import entry",
            f'\n\n@entry("boolean({kinds})")',
            f"def derive({', '.join(_DERIVE)}):",
            block([*lines, "return True"], 1),
            "",
        ]
    )


def derive_body(fleet: Fleet, form: HomeForm, prices: Prices, context: Sequence[str]) -> list[str]:
    """The lines that fill everything for one agent; where ``on`` is 0 without its objective.

    Args:
        fleet: the agent's formulas.
        form: what it minimises, without kinks.
        prices: the name of the multiplier of every term of every sum.
        context: lines that read parameters and prices.
    """
    size = fleet.group.dim + len(form.extra)
    rows, objective = (Emitter(names_with(fleet, form)) for _ in range(2))
    given = [*context, *(f"x{c} = x[{c}]" for c in range(size))]
    kept = list(row_entries(rows, fleet, form))
    sloped = list(objective_entries(objective, fleet, form, prices))
    return [
        *given, *rows.lines, *_filled(kept),
        "if on > 0.0:", block([*objective.lines, *_filled(sloped)], 1),
        "else:", f"    gradient[:{size}] = 0.0",
    ]  # fmt: skip


def interior_source() -> str:
    """A module with ``interior``, the interior-point method for whatever ``derive`` says."""
    given = {k: v for k, v in _DERIVE.items() if k in _CONTEXT}
    kinds = ["int64", *given.values(), *["float64[::1]"] * 4, "int64", "int64", "float64[::1]"]
    return "\n".join(
        [
            "from sottovoce.compiler.module import entry",
            "import sottovoce.engine.intrinsics",
            "from sottovoce.algorithm.interior import interior_minimum",
            f'\n\n@entry("boolean({", ".join(kinds)})")',
            f"def interior(derive, {', '.join(given)}, x, weight, lower, upper, m, q, out):",
            f"    context = ({', '.join(given)})",
            "    out[:] = interior_minimum(derive, context, x, weight, lower, upper, (m, q))",
            "    return True",
            "",
        ]
    )


def call_interior(addresses: str, context: str, form: HomeForm) -> str:
    """The call of ``interior`` for x, weight, lower and upper; the answer is put in x.

    Args:
        addresses: the text of its address and that of ``derive``.
        context: the text of what derive wants besides.
        form: what is minimised.
    """
    counts = f"{len(form.inequalities)}, {len(form.equalities)}"
    first, second = addresses.split(", ")
    return f"invoke({first}, ({second}, {context}, x, weight, lower, upper, {counts}, x))"


def _filled(entries: Sequence[Entry]) -> list[str]:
    return [f"{to} {sign} {name}" for to, sign, name in entries]
