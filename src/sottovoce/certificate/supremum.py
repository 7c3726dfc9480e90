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

from sottovoce.certificate.branch import BoundedFunction, Component, Norm, Signed, maximise
from sottovoce.certificate.forms import (
    equivalents,
    exact,
    name_parts,
    simplified,
    squared_norm,
    uses,
)
from sottovoce.certificate.norms import euclidean, norm_of, spectral_norm_upper
from sottovoce.errors import CertificateError, InputError
from sottovoce.formula.canonical import add, in_order, negate, substitute
from sottovoce.formula.enclosure import doubtful, enclose, evaluate, remedy
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
    components: Sequence[Expression],
    box: Box,
    *,
    columns: int = 1,
    nondecreasing: Facts = None,
    tolerance: float = 0.005,
    budget: int | None = None,
) -> Supremum:
    """Bound the supremum over a box of the norm of expressions.

    sup_{x in box} |J(x)|_2 <= upper, the spectral norm; of a vector the Euclidean one

    Args:
        components: The entries of J row by row, canonical.
        box: Finite bounds for each symbol.
        columns: How many columns J has.
        nondecreasing: For each component the symbols along which it is proven not to decrease:
            x_l for dg/dx_l of a convex g. None where nothing is known.
        tolerance: The search ends when upper <= (1 + tolerance) * found.
        budget: The number of boxes after which a search ends with a looser, still valid bound; by
            default as many as take a few seconds.

    Raises:
        CertificateError: The norm is undefined somewhere, or no finite bound was found.
    """
    exprs = tuple(exact(component) for component in components)
    if not exprs:
        raise InputError("components must hold at least one expression, got none")
    facts = tuple(nondecreasing or [frozenset[Expression]()] * len(exprs))
    return settle(_Task(exprs, facts, columns, box, tolerance, budget))


@exactly()
def spectral_supremum(
    jacobian: Sequence[Sequence[Expression]],
    box: Box,
    *,
    tolerance: float = 0.005,
    budget: int | None = None,
) -> Supremum:
    """Bound the supremum of the spectral norm of a matrix, as ``supremum`` does.

    Args:
        jacobian: The rows of J; rows and columns of zeros are left out.
        box: As for ``supremum``, and so are the others.
        tolerance: Likewise.
        budget: Likewise.
    """
    rows = [[exact(entry) for entry in row] for row in jacobian]
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        raise InputError(f"jacobian must be a matrix, got rows of {[len(row) for row in rows]}")
    rows = [row for row in rows if not _zeros(row)] or rows[:1]
    columns = [c for c in zip(*rows, strict=True) if not _zeros(c)] or [(ZERO,)]
    exprs = [entry for row in zip(*columns, strict=True) for entry in row]
    width = 1 if len(columns) == len(exprs) else len(columns)
    return supremum(exprs, box, columns=width, tolerance=tolerance, budget=budget)


def norm_supremum(
    components: Sequence[Expression], box: Box, *, nondecreasing: Facts, tolerance: float
) -> Supremum:
    """Certify ``sup |components(x)|_2`` over a box, once for all renamings of the symbols."""
    try:
        return _renamed(components, box, 1, nondecreasing, tolerance)
    except CertificateError:
        # Once more under the names people know, so that the refusal says which state to bound.
        return supremum(components, box, nondecreasing=nondecreasing, tolerance=tolerance)


def matrix_supremum(
    matrix: Sequence[Sequence[Expression]], box: Box, *, tolerance: float
) -> Supremum:
    """Certify ``sup |matrix(x)|_2`` (spectral) over a box, once for all renamings."""
    entries = [entry for row in matrix for entry in row]
    return _renamed(entries, box, len(matrix[0]), None, tolerance)


def _renamed(
    exprs: Sequence[Expression], box: Box, columns: int, facts: Facts, tolerance: float
) -> Supremum:
    """Rename symbols by the roles they play; symmetric ones tie, and any order of them will do."""
    counts = [uses(e) for e in exprs]
    used = [s for s in box if any(s in e.symbols for e in exprs)]
    ordered = sorted(used, key=lambda s: (tuple(count[s] for count in counts), box[s]))
    names = {s: symbol(f"t{i}") for i, s in enumerate(ordered)}
    if facts is not None:
        facts = tuple(frozenset(names[s] for s in fact if s in names) for fact in facts)
    bounds = tuple((names[s], box[s]) for s in ordered)
    return _known(tuple(substitute(e, names) for e in exprs), bounds, columns, facts, tolerance)


@lru_cache(maxsize=4096)
def _known(
    exprs: tuple[Expression, ...],
    bounds: tuple[tuple[Expression, tuple[float, float]], ...],
    columns: int,
    facts: tuple[frozenset[Expression], ...] | None,
    tolerance: float,
) -> Supremum:
    box = dict(bounds)
    if columns == 1:
        return supremum(exprs, box, nondecreasing=facts, tolerance=tolerance)
    rows = [exprs[i : i + columns] for i in range(0, len(exprs), columns)]
    return spectral_supremum(rows, box, tolerance=tolerance)


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
        spectral_supremum(rows, task.box, tolerance=task.tolerance, budget=task.budget)
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
    upper = (
        _length(each[e] for e in task.exprs) if task.columns == 1 else spectral_norm_upper(sizes)
    )
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
        expr: supremum([expr], task.box, tolerance=task.tolerance, budget=task.budget)
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
    objectives: list[BoundedFunction] = [Norm(components=components, columns=task.columns)]
    if len(components) == 1:  # both signs, the larger first
        value, _ = components[0].over(interval(whole.lower[:, None], whole.upper[:, None]))
        first = 1 if value.upper[0] >= -value.lower[0] else -1
        objectives = [Signed(component=components[0], sign=sign) for sign in (first, -first)]
    left = _affordable(forms, len(variables)) if task.budget is None else task.budget
    upper, at = 0.0, whole.lower
    for objective in objectives:
        outcome = maximise(objective, whole, tolerance=task.tolerance, budget=left, found=found)
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
    blamed = [doubtful(evaluate(expr, sides))[1] for expr in task.exprs]
    cause = next((remedy(base) for base in blamed if base is not None), "tighten the bounds")
    raise CertificateError(
        f"{', '.join(map(str, task.exprs))} must be bounded on the domain, got no finite bound; "
        f"{cause}"
    )
