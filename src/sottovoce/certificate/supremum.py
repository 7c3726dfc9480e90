"""Certified suprema over a box of norms of expressions: vectors, and matrices such as Jacobians.

A sampled maximum can only be too small; interval branch and bound is never, and returns the largest
value attained beside its bound. Gradients that mix agents take most of the work: there a bound is
tried in several ways, the cheapest first. Only the paper's release has them, and matrices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import is_not
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
from sottovoce.certificate.forms import equivalents, name_parts, simplified, squared_norm, uses
from sottovoce.errors import CertificateError, InputError
from sottovoce.formula.canonical import add, coefficient, multiply, negate, substitute
from sottovoce.formula.derive import derivative, rationalise
from sottovoce.formula.enclosure import enclose, require_defined
from sottovoce.formula.expression import (
    ZERO,
    Expression,
    Op,
    exact_arithmetic,
    nodes,
    number,
    symbol,
)
from sottovoce.formula.intervals import interval, square_root
from sottovoce.formula.order import in_order
from sottovoce.formula.tape import tape

Box = Mapping[Expression, tuple[float, float]]
Point = Mapping[Expression, float]
Facts = Sequence[frozenset[Expression]] | None

_NOTHING = symbol("nothing, the variable of constants")
_PROBE_BUDGET = 32  # boxes spent on expressions as they stand, before they are rewritten
_OPERATIONS = 2e7  # operations on intervals, a few seconds, that a search may cost by default


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Supremum:
    """A certified upper bound of a supremum, the largest value attained, and a point near it."""

    upper: float
    attained: float
    point: Point


@exact_arithmetic()
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
        rows: The rows of J, canonical.
        box: Finite bounds for each symbol.
        nondecreasing: For each entry of a single column the symbols along which it is proven not
            to decrease: x_l for dg/dx_l of a convex g.
        tolerance: The search ends when upper <= (1 + tolerance) * attained.
        budget: The boxes after which a search ends with a looser, still valid bound; by default
            as many as take a few seconds.

    Raises:
        CertificateError: The norm is undefined somewhere, or no finite bound was found.
    """
    entries = [tuple(rationalise(entry) for entry in row) for row in rows]
    if len({len(row) for row in entries}) != 1 or not entries[0]:
        raise InputError(f"rows must be those of a matrix, got {[len(row) for row in entries]}")
    if len(entries[0]) > 1:
        entries = [row for row in entries if not _all_zero(row)] or entries[:1]
        columns = [c for c in zip(*entries, strict=True) if not _all_zero(c)] or [(ZERO,)]
        entries = [*zip(*columns, strict=True)]
    exprs = tuple(entry for row in entries for entry in row)
    width = 1 if len(entries) == 1 else len(entries[0])
    facts = tuple(nondecreasing or [frozenset[Expression]()] * len(exprs))
    return settle(_Task(exprs, facts, width, box, tolerance, budget))


def cached_supremum(
    rows: Sequence[Sequence[Expression]], box: Box, *, nondecreasing: Facts = None, tolerance: float
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
        # Once more under the stated names, so that the refusal says which state to bound.
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
    """Arguments of a search: the entries of J row by row, and those of ``supremum``."""

    exprs: tuple[Expression, ...]
    facts: tuple[frozenset[Expression], ...]
    columns: int
    box: Box
    tolerance: float
    budget: int | None

    def rows(self) -> list[tuple[Expression, ...]]:
        """The rows of J."""
        starts = range(0, len(self.exprs), self.columns)
        return [self.exprs[i : i + self.columns] for i in starts]

    def value(self, point: Point) -> float:
        """The norm at a point, rounded down."""
        sides = {s: interval(value, value) for s, value in point.items()}
        values = [enclose(expr, sides) for expr in self.exprs]
        return float(np.ravel(norm_of(values, self.columns)[0])[0])


# An upper bound, a value that is reached, and points worth a look.
_Outcome = tuple[float, float, list[Point]]


def settle(task: _Task) -> Supremum:
    """Make one attempt after the other until bound and value agree within the tolerance."""
    _check_bounds(task)
    best: Point = {s: low / 2 + high / 2 for s, (low, high) in task.box.items()}
    upper, attained = np.inf, 0.0
    attempts: list[Callable[[_Task, float], _Outcome]] = [_search_as_stated, _search_rewritten]
    if (matrix := _read_direction(task.exprs)) is not None:
        attempts.insert(0, partial(_bound_by_direction, *matrix))
    if len(task.exprs) > 1:
        attempts[1:1] = [
            _bound_row_by_row,
            *([_search_square] if task.columns == 1 else []),
            _bound_one_by_one,
        ]
    for attempt in attempts:
        bound, reached, points = attempt(task, attained)
        upper, attained = min(upper, bound), max(attained, reached)
        for point in ({**best, **point} for point in points):
            value = task.value(point)
            attained, best = (value, point) if value >= attained else (attained, best)
        if upper <= (1 + task.tolerance) * attained:
            break
    _check_finite(upper, task)
    return Supremum(upper=float(upper), attained=min(attained, float(upper)), point=best)


_Matrix = tuple[tuple[Expression, ...], ...]


def _read_direction(exprs: Sequence[Expression]) -> tuple[tuple[Expression, ...], _Matrix] | None:
    """Read ``B a/||a||``, the gradient of a norm: a and the rows of B; None if it is none."""
    pairs = [coefficient(expr) for expr in exprs]
    norm_slopes = [part for _, part in pairs if part.op == Op.NORM_SLOPE]
    if not norm_slopes or not all(part.op == Op.NORM_SLOPE or c == 0 for c, part in pairs):
        return None
    half = len(norm_slopes[0].args) // 2
    a = norm_slopes[0].args[:half]
    if any(len(part.args) != 2 * half or any(map(is_not, part.args, a)) for part in norm_slopes):
        return None
    rows = tuple(
        tuple(multiply(number(c), b) for b in part.args[half:])
        if part.op == Op.NORM_SLOPE
        else (ZERO,) * half
        for c, part in pairs
    )
    return a, rows


def _bound_by_direction(
    a: Sequence[Expression], rows: Sequence[Sequence[Expression]], task: _Task, _: float
) -> _Outcome:
    """``|B a/||a||| <= |B|_2``: boxes around a = 0 never show it, however small they are.

    An affine a is led to where it has the direction that a constant B stretches most.
    """
    bound = supremum(rows, task.box, tolerance=task.tolerance, budget=task.budget)
    symbols = [s for s in task.box if any(s in part.symbols for part in a)]
    slopes = [[derivative(part, s) for s in symbols] for part in a]
    if not all(entry.is_number for line in (*slopes, *rows) for entry in line):
        return bound.upper, 0.0, [bound.point]
    jacobian, stretch = (np.array([[float(e.value) for e in line] for line in lines])
                         for lines in (slopes, rows))  # fmt: skip
    low, high = np.transpose([task.box[s] for s in symbols])
    inverse = np.linalg.pinv(jacobian)
    at_zero = inverse @ -np.array(tape(a, symbols)(*np.zeros(len(symbols))))
    towards = inverse @ np.linalg.svd(stretch)[2][0]
    base = np.clip(at_zero, low, high)
    steps = (sign * length * np.min(high - low) for sign in (1, -1) for length in (0.5, 1e-6))
    ends = (np.clip(base + step * towards / np.linalg.norm(towards), low, high) for step in steps)
    return bound.upper, 0.0, [dict(zip(symbols, end.tolist(), strict=True)) for end in ends]


def _search_as_stated(task: _Task, attained: float) -> _Outcome:
    """Search briefly on the expressions as they are."""
    glance = min(_PROBE_BUDGET, task.budget or _PROBE_BUDGET)
    upper, _, point = _search(
        replace(task, budget=glance), [(expr,) for expr in task.exprs], attained
    )
    return upper, 0.0, [point]


def _search_rewritten(task: _Task, attained: float) -> _Outcome:
    """Search in fewer variables, on several forms of each expression."""
    named, box = name_parts([simplified(expr) for expr in task.exprs], task.box)
    forms = [equivalents(expr) for expr in named]
    upper, reached, _ = _search(replace(task, box=box), forms, attained)
    return upper, reached, []


def _bound_row_by_row(task: _Task, _: float) -> _Outcome:
    """Bound the rows of each set of variables by themselves: |(A; B)|_2^2 <= |A|_2^2 + |B|_2^2."""
    groups: defaultdict[frozenset[Expression], list[Sequence[Expression]]] = defaultdict(list)
    for row in task.rows():
        groups[frozenset[Expression]().union(*(entry.symbols for entry in row))].append(row)
    if len(groups) == 1:
        return np.inf, 0.0, []
    bounds = [
        supremum(rows, task.box, tolerance=task.tolerance, budget=task.budget)
        for rows in groups.values()
    ]
    return _length(bound.upper for bound in bounds), 0.0, [bound.point for bound in bounds]


def _search_square(task: _Task, attained: float) -> _Outcome:
    """Search on the squared length, if as one expression it needs fewer variables."""
    square, box = name_parts([squared_norm(task.exprs)], task.box)
    vector, _ = name_parts([simplified(expr) for expr in task.exprs], task.box)
    if len(_symbols([square])) >= len(_symbols([vector])):
        return np.inf, 0.0, []
    tolerance = (1 + task.tolerance) ** 2 - 1
    single = replace(task, box=box, facts=(frozenset[Expression](),), tolerance=tolerance)
    upper, reached, _ = _search(single, [equivalents(square[0])], attained**2)
    return float(square_root(interval(0.0, upper)).upper), float(np.sqrt(reached)), []


def _bound_one_by_one(task: _Task, _: float) -> _Outcome:
    """Bound each entry by itself, and absolute sums of rows and columns where signs are known.

    |J|_2 <= | sup |J| |_2  and  |J|_2^2 <= |J|_1 |J|_inf, the largest column sum times row sum,
    which is tight for softmax and its derivatives.
    """
    bounds = _bound_each(task, task.exprs)
    sizes = np.reshape([bounds[expr].upper for expr in task.exprs], (-1, task.columns))
    if task.columns == 1:
        upper = _length(sizes.flat)
    else:
        upper = float(singular_bounds(sizes)[1]) if np.isfinite(sizes).all() else np.inf
    rows, columns = (
        [total for line in lines for total in _absolute_sum(line, task.box)]
        for lines in (task.rows(), zip(*task.rows(), strict=True))
    )
    if len(rows) == len(sizes) and len(columns) == task.columns:
        bounds |= _bound_each(task, (*rows, *columns))
        row, column = (max(bounds[total].upper for total in lines) for lines in (rows, columns))
        upper = min(upper, float(square_root(interval(0.0, row) * interval(0.0, column)).upper))
    return upper, 0.0, [bound.point for bound in bounds.values()]


def _bound_each(task: _Task, exprs: Iterable[Expression]) -> dict[Expression, Supremum]:
    return {
        expr: supremum([[expr]], task.box, tolerance=task.tolerance, budget=task.budget)
        for expr in dict.fromkeys(exprs)
    }


def _length(sizes: Iterable[float]) -> float:
    return float(euclidean([interval(0.0, size) for size in sizes]).upper)


def _absolute_sum(exprs: Sequence[Expression], box: Box) -> list[Expression]:
    """Write sum_i |c_i| without moduli; nothing if some c_i may change its sign."""
    sides = {s: interval(*ends) for s, ends in box.items()}
    ranges = [enclose(simplified(expr), sides) for expr in exprs]
    if any(value.lower < 0 < value.upper for value in ranges):
        return []
    signed = (e if value.lower >= 0 else negate(e) for e, value in zip(exprs, ranges, strict=True))
    return [simplified(add(*signed))]


def _search(
    task: _Task, forms: Sequence[Sequence[Expression]], attained: float
) -> tuple[float, float, dict[Expression, float]]:
    """Maximise the norm of expressions in several forms each: a bound, a value and its point."""
    box = {**task.box, _NOTHING: (0.0, 0.0)}
    used = _symbols(forms)
    variables = [s for s in box if s in used] or [_NOTHING]
    components = tuple(
        Component.build(equal_forms, variables, fact)
        for equal_forms, fact in zip(forms, task.facts, strict=True)
    )
    domain = interval(*np.transpose([box[s] for s in variables]))
    objectives = [Norm(components=components, columns=task.columns)]
    if len(components) == 1:  # both signs, the larger first
        value, _ = components[0].enclose(interval(domain.lower[:, None], domain.upper[:, None]))
        first = 1 if value.upper[0] >= -value.lower[0] else -1
        objectives = [Norm(components=components, sign=sign) for sign in (first, -first)]
    left = _affordable(forms, len(variables)) if task.budget is None else task.budget
    upper, best = 0.0, domain.lower
    for objective in objectives:
        result = maximise_norm(
            objective, domain, tolerance=task.tolerance, budget=left, attained=attained
        )
        left = max(left - result.boxes, 1)
        upper = max(upper, result.upper)
        if result.attained > attained:
            attained, best = result.attained, result.point
    point = dict(zip(variables, best.tolist(), strict=True))
    point.pop(_NOTHING, None)
    return upper, attained, point


def _affordable(forms: Sequence[Sequence[Expression]], variables: int) -> int:
    """Return how many boxes may be bounded at a cost of a few seconds."""
    operations = sum(1 for equal_forms in forms for form in equal_forms for _ in nodes((form,)))
    return int(np.clip(_OPERATIONS / (operations * (variables + 2)), 1_000, 100_000))


def _symbols(forms: Iterable[Iterable[Expression]]) -> set[Expression]:
    return set[Expression]().union(*(form.symbols for equal_forms in forms for form in equal_forms))


def _all_zero(entries: Sequence[Expression]) -> bool:
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
