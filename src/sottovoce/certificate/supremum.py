"""Certified suprema over a box of norms of expressions: vectors, and matrices such as Jacobians.

A sensitivity is the largest value that the norm of a derivative takes on the domain. A sampled
maximum can only be too small; here an interval branch and bound returns a bound that is never too
small, beside the largest value actually found. Gradients that mix agents, which only the paper's
release has, take most of the work: there a bound is tried in several ways, the cheapest first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

import numpy as np

from sottovoce.certificate.branch import (
    Component,
    Norm,
    euclidean,
    maximise_norm,
    norm_of,
    singular_bounds,
)
from sottovoce.certificate.forms import (
    equivalents,
    name_parts,
    simplified,
    squared_norm,
    uses,
)
from sottovoce.errors import CertificateError, InputError
from sottovoce.formula.canonical import add, in_order, negate, substitute
from sottovoce.formula.derive import exact
from sottovoce.formula.enclosure import enclose, require_defined
from sottovoce.formula.expression import ZERO, Expression, exactly, nodes, symbol
from sottovoce.formula.intervals import interval, root

Box = Mapping[Expression, tuple[float, float]]
Point = Mapping[Expression, float]
Facts = Sequence[frozenset[Expression]] | None

_NOTHING = symbol("nothing, the variable of constants")
_GLANCE = 32  # boxes spent on expressions as they stand, before they are rewritten
_EFFORT = 2e7  # operations on intervals, a few seconds, that a search may cost by default


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Supremum:
    """A supremum, bounded from above by proof and from below by example.

    Args:
        upper: Certified: never below the true supremum.
        found: The largest value found, up to rounding.
        at: A point at which the value is close to the largest of those that were looked at.
    """

    upper: float
    found: float
    at: Point


@exactly()
def supremum(
    rows: Sequence[Sequence[Expression]],
    box: Box,
    *,
    nondecreasing: Facts = None,
    tolerance: float = 0.005,
    budget: int | None = None,
) -> Supremum:
    """Bound the supremum over a box of the norm of a matrix of expressions.

    sup_{x in box} |J(x)|_2 <= upper, the spectral norm; of a single column the Euclidean one

    Args:
        rows: The rows of J, canonical; of several columns those of zeros are left out.
        box: Finite bounds for each symbol.
        nondecreasing: For each entry of a single column the symbols along which it is proven not
            to decrease: x_l for dg/dx_l of a convex g. None where nothing is known.
        tolerance: The search ends when upper <= (1 + tolerance) * found.
        budget: The number of boxes after which a search ends with a looser, still valid bound; by
            default as many as take a few seconds.

    Raises:
        CertificateError: The norm is undefined somewhere, or no finite bound was found.
    """
    entries = [[exact(entry) for entry in row] for row in rows]
    if len({len(row) for row in entries}) != 1 or not entries[0]:
        raise InputError(f"rows must be those of a matrix, got {[len(row) for row in entries]}")
    if len(entries[0]) > 1:
        entries = [row for row in entries if not _zeros(row)] or entries[:1]
        columns = [c for c in zip(*entries, strict=True) if not _zeros(c)] or [(ZERO,)]
        entries = [list(row) for row in zip(*columns, strict=True)]
    exprs = tuple(entry for row in entries for entry in row)
    width = 1 if len(entries) == 1 else len(entries[0])
    facts = tuple(nondecreasing or [frozenset[Expression]()] * len(exprs))
    return settle(_Task(exprs, facts, width, box, tolerance, budget))


def known_supremum(
    rows: Sequence[Sequence[Expression]],
    box: Box,
    *,
    nondecreasing: Facts = None,
    tolerance: float,
) -> Supremum:
    """The same, searched once for all renamings of the symbols."""
    exprs = [entry for row in rows for entry in row]
    # Symbols are renamed by the roles they play; symmetric ones tie, and any order of them will do.
    counts = [uses(e) for e in exprs]
    used = [s for s in box if any(s in e.symbols for e in exprs)]
    ordered = sorted(used, key=lambda s: (tuple(count[s] for count in counts), box[s]))
    names = {s: symbol(f"t{i}") for i, s in enumerate(ordered)}
    facts = nondecreasing and tuple(
        frozenset(names[s] for s in fact if s in names) for fact in nondecreasing
    )
    renamed = tuple(tuple(substitute(e, names) for e in row) for row in rows)
    try:
        return _searched(renamed, tuple((names[s], box[s]) for s in ordered), facts, tolerance)
    except CertificateError:
        # Once more under the names people know, so that the refusal says which state to bound.
        return supremum(rows, box, nondecreasing=nondecreasing, tolerance=tolerance)


@lru_cache(maxsize=4096)
def _searched(
    rows: tuple[tuple[Expression, ...], ...],
    bounds: tuple[tuple[Expression, tuple[float, float]], ...],
    facts: Facts,
    tolerance: float,
) -> Supremum:
    return supremum(rows, dict(bounds), nondecreasing=facts, tolerance=tolerance)


@final
@dataclass(frozen=True, slots=True)
class _Task:
    """What to bound: a norm of expressions with facts about them, where, how well, how long."""

    exprs: tuple[Expression, ...]
    facts: tuple[frozenset[Expression], ...]
    columns: int
    box: Box
    tolerance: float
    budget: int | None

    def value(self, point: Point) -> float:
        """The norm at a point, rounded down."""
        sides = {s: interval(value, value) for s, value in point.items()}
        values = [enclose(expr, sides) for expr in self.exprs]
        return float(np.ravel(norm_of(values, self.columns)[0])[0])


# An upper bound, a value that is reached, and points worth a look.
_Outcome = tuple[float, float, list[Point]]


def settle(task: _Task) -> Supremum:
    """Make one attempt after the other until bound and example agree within the tolerance."""
    _check_bounds(task)
    at: Point = {s: low / 2 + high / 2 for s, (low, high) in task.box.items()}
    upper, found = np.inf, 0.0
    attempts: list[Callable[[_Task, float], _Outcome]] = [_as_stated, _rewritten]
    if len(task.exprs) > 1:
        attempts[1:1] = [_row_by_row if task.columns > 1 else _by_square, _one_by_one]
    for attempt in attempts:
        bound, reached, points = attempt(task, found)
        upper, found = min(upper, bound), max(found, reached)
        for point in ({**at, **point} for point in points):
            value = task.value(point)
            found, at = (value, point) if value >= found else (found, at)
        if upper <= (1 + task.tolerance) * found:
            break
    _check_finite(upper, task)
    return Supremum(upper=float(upper), found=min(found, float(upper)), at=at)


def _as_stated(task: _Task, found: float) -> _Outcome:
    """Glance at the expressions as they are."""
    glance = min(_GLANCE, task.budget or _GLANCE)
    upper, _, at = _search(replace(task, budget=glance), [(expr,) for expr in task.exprs], found)
    return upper, 0.0, [at]


def _rewritten(task: _Task, found: float) -> _Outcome:
    """Search in fewer variables, on several forms of each expression."""
    named, box = name_parts([simplified(expr) for expr in task.exprs], task.box)
    forms = [equivalents(expr) for expr in named]
    upper, reached, _ = _search(replace(task, box=box), forms, found)
    return upper, reached, []


def _row_by_row(task: _Task, _: float) -> _Outcome:
    """Bound the rows of each set of variables by themselves: |(A; B)|_2^2 <= |A|_2^2 + |B|_2^2."""
    groups: defaultdict[frozenset[Expression], list[Sequence[Expression]]] = defaultdict(list)
    for i in range(0, len(task.exprs), task.columns):
        row = task.exprs[i : i + task.columns]
        groups[frozenset[Expression]().union(*(entry.symbols for entry in row))].append(row)
    if len(groups) == 1:
        return np.inf, 0.0, []
    bounds = [
        supremum(rows, task.box, tolerance=task.tolerance, budget=task.budget)
        for rows in groups.values()
    ]
    return _length(bounds), 0.0, [bound.at for bound in bounds]


def _by_square(task: _Task, found: float) -> _Outcome:
    """Search on the squared length, if as one expression it needs fewer variables."""
    square, box = name_parts([squared_norm(task.exprs)], task.box)
    vector, _ = name_parts([simplified(expr) for expr in task.exprs], task.box)
    if len(_symbols([square])) >= len(_symbols([vector])):
        return np.inf, 0.0, []
    alone = replace(task, box=box, facts=(frozenset[Expression](),),
                    tolerance=(1 + task.tolerance) ** 2 - 1)  # fmt: skip
    upper, reached, _ = _search(alone, [equivalents(square[0])], found**2)
    return float(root(interval(0.0, upper)).upper), float(np.sqrt(reached)), []


def _one_by_one(task: _Task, _: float) -> _Outcome:
    """Bound each entry by itself, and absolute sums of rows and columns where signs are known.

    |J|_2 <= | sup |J| |_2  and  |J|_2^2 <= |J|_1 |J|_inf, the largest column sum times row sum,
    which is tight for softmax and its derivatives.
    """
    each = _bound_each(task, task.exprs)
    sizes = np.reshape([each[expr].upper for expr in task.exprs], (-1, task.columns))
    upper = _length(each[e] for e in task.exprs)
    if task.columns > 1:
        upper = float(singular_bounds(sizes)[1]) if np.isfinite(sizes).all() else np.inf
    entries = [task.exprs[i : i + task.columns] for i in range(0, len(task.exprs), task.columns)]
    sums = [[_absolute_sum(line, task.box) for line in lines]
            for lines in (entries, [*zip(*entries, strict=True)])]  # fmt: skip
    known = [[total for total in totals if total is not None] for totals in sums]
    if all(len(a) == len(b) for a, b in zip(known, sums, strict=True)):
        each |= _bound_each(task, [total for totals in known for total in totals])
        row, column = (max(each[total].upper for total in totals) for totals in known)
        upper = min(upper, float(root(interval(0.0, row) * interval(0.0, column)).upper))
    return upper, 0.0, [bound.at for bound in each.values()]


def _bound_each(task: _Task, exprs: Iterable[Expression]) -> dict[Expression, Supremum]:
    return {
        expr: supremum([[expr]], task.box, tolerance=task.tolerance, budget=task.budget)
        for expr in dict.fromkeys(exprs)
    }


def _absolute_sum(exprs: Sequence[Expression], box: Box) -> Expression | None:
    """Write sum_i |c_i| without moduli, or return None if some c_i may change its sign."""
    sides = {s: interval(*ends) for s, ends in box.items()}
    ranges = [enclose(simplified(expr), sides) for expr in exprs]
    if any(value.lower < 0 < value.upper for value in ranges):
        return None
    signed = (e if value.lower >= 0 else negate(e) for e, value in zip(exprs, ranges, strict=True))
    return simplified(add(*signed))


def _length(bounds: Iterable[Supremum]) -> float:
    return float(euclidean([interval(0.0, bound.upper) for bound in bounds]).upper)


def _search(
    task: _Task, forms: Sequence[Sequence[Expression]], found: float
) -> tuple[float, float, dict[Expression, float]]:
    """Maximise the norm of expressions in several forms each: a bound, a value and its point."""
    box = {**task.box, _NOTHING: (0.0, 0.0)}
    used = _symbols(forms)
    variables = [s for s in box if s in used] or [_NOTHING]
    components = tuple(
        Component.of(ways, variables, fact) for ways, fact in zip(forms, task.facts, strict=True)
    )
    whole = interval(*np.transpose([box[s] for s in variables]))
    objectives = [Norm(components=components, columns=task.columns)]
    if len(components) == 1:  # both signs, the larger first
        value, _ = components[0].over(interval(whole.lower[:, None], whole.upper[:, None]))
        first = 1 if value.upper[0] >= -value.lower[0] else -1
        objectives = [Norm(components=components, sign=sign) for sign in (first, -first)]
    left = _affordable(forms, len(variables)) if task.budget is None else task.budget
    upper, at = 0.0, whole.lower
    for objective in objectives:
        outcome = maximise_norm(
            objective, whole, tolerance=task.tolerance, budget=left, found=found
        )
        left = max(left - outcome.boxes, 1)
        upper = max(upper, outcome.upper)
        if outcome.found > found:
            found, at = outcome.found, outcome.at
    point = dict(zip(variables, at.tolist(), strict=True))
    point.pop(_NOTHING, None)
    return upper, found, point


def _affordable(forms: Sequence[Sequence[Expression]], variables: int) -> int:
    """Return how many boxes may be bounded at a cost of a few seconds."""
    operations = sum(1 for ways in forms for form in ways for _ in nodes((form,)))
    return int(np.clip(_EFFORT / (operations * (variables + 2)), 1_000, 100_000))


def _symbols(forms: Iterable[Iterable[Expression]]) -> set[Expression]:
    return set[Expression]().union(*(form.symbols for ways in forms for form in ways))


def _zeros(entries: Sequence[Expression]) -> bool:
    return all(entry.is_zero for entry in entries)


def _check_bounds(task: _Task) -> None:
    """Refuse a domain on which nothing can be bounded."""
    for name in in_order(_symbols([task.exprs])):
        lower, upper = task.box.get(name, (-np.inf, np.inf))
        if not -np.inf < lower <= upper < np.inf:
            raise CertificateError(
                f"the bounds of {name} must be finite and in order, got [{lower}, {upper}]; "
                "state a bounded interval"
            )


def _check_finite(upper: float, task: _Task) -> None:
    """Refuse an infinite bound, and name the subexpression that causes it if there is one."""
    if np.isfinite(upper):
        return
    sides = {s: interval(*ends) for s, ends in task.box.items()}
    remedies = [require_defined(expr, sides) for expr in task.exprs]
    raise CertificateError(
        f"{', '.join(map(str, task.exprs))} must be bounded on the domain, got no finite bound; "
        f"{max(remedies, key=len)}"
    )
