"""Certified suprema of norms of expressions over a box.

A sensitivity is the largest value that the norm of a derivative takes on the domain. A sampled
maximum can only be too small; here an interval branch and bound returns a bound that is never too
small, beside the largest value actually found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from sottovoce.certificate.branch import Objective, maximise
from sottovoce.certificate.forms import equivalents, exact, simplified, squared_norm
from sottovoce.certificate.objective import Component, Norm, Signed, euclidean
from sottovoce.certificate.parts import name_parts
from sottovoce.errors import CertificateError, InputError
from sottovoce.formula.canonical import add, in_order, negate
from sottovoce.formula.enclosure import doubtful, enclose, evaluate, remedy
from sottovoce.formula.expression import Expression, exactly, nodes, symbol
from sottovoce.formula.intervals import Interval, interval, root

Box = Mapping[Expression, tuple[float, float]]
Point = Mapping[Expression, float]

_NOTHING = symbol("nothing, the variable of constants")
_GLANCE = 32  # boxes spent on an expression as it stands, before it is rewritten
_EFFORT = 2e7  # operations on intervals, a few seconds, that a search may cost by default


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Supremum:
    """A supremum, bounded from above by proof and from below by example.

    Args:
        upper: Certified: never below the true supremum.
        found: The largest value found, rounded down: never above the true supremum.
        at: The point at which it was found, a coordinate for each symbol of the box.
    """

    upper: float
    found: float
    at: Point


@exactly()
def supremum(
    components: Sequence[Expression],
    box: Box,
    *,
    nondecreasing: Sequence[frozenset[Expression]] | None = None,
    tolerance: float = 0.005,
    budget: int | None = None,
) -> Supremum:
    """Bound the supremum over a box of the Euclidean norm of a vector of expressions.

    sup_{x in box} sqrt(sum_i c_i(x)^2) <= upper

    Args:
        components: The expressions c_i, canonical.
        box: Finite bounds for each symbol.
        nondecreasing: For each component the symbols along which it is proven not to decrease:
            x_l for dg/dx_l of a convex g. None where nothing is known.
        tolerance: The search ends when upper <= (1 + tolerance) * found.
        budget: The number of boxes after which a search ends with a looser, still valid bound; by
            default as many as take a few seconds.

    Raises:
        CertificateError: The norm is undefined somewhere, or no finite bound was found.
    """
    exprs = [exact(component) for component in components]
    if not exprs:
        raise InputError("components must hold at least one expression, got none")
    facts = nondecreasing or [frozenset[Expression]()] * len(exprs)
    task = Task(tuple(exprs), tuple(facts), box, tolerance, budget, _norms)
    several = (_by_square, _one_by_one) if len(exprs) > 1 else ()
    return settle(task, (as_stated, *several, rewritten), _norm_at)


def check_bounds(exprs: Iterable[Expression], box: Box) -> None:
    """Refuse a domain on which nothing can be bounded."""
    for name in in_order(set[Expression]().union(*(expr.symbols for expr in exprs))):
        lower, upper = box.get(name, (-np.inf, np.inf))
        if not -np.inf < lower <= upper < np.inf:
            raise CertificateError(
                f"the bounds of {name} must be finite and in order, got [{lower}, {upper}]; "
                "state a bounded interval"
            )


def check_finite(upper: float, exprs: Sequence[Expression], box: Box) -> None:
    """Refuse an infinite bound, and name the subexpression that causes it if there is one."""
    if np.isfinite(upper):
        return
    sides = {symbol: interval(*ends) for symbol, ends in box.items()}
    blamed = [doubtful(evaluate(expr, sides))[1] for expr in exprs]
    cause = next((remedy(base) for base in blamed if base is not None), "tighten the bounds")
    raise CertificateError(
        f"{', '.join(map(str, exprs))} must be bounded on the domain, got no finite bound; {cause}"
    )


@final
@dataclass(frozen=True, slots=True)
class Task:
    """What to bound: a norm of expressions with facts about them, where, how well, how long.

    `objectives` turns components into functions whose largest maximum over the box is the norm's.
    """

    exprs: tuple[Expression, ...]
    facts: tuple[frozenset[Expression], ...]
    box: Box
    tolerance: float
    budget: int | None
    objectives: Callable[[Sequence[Component], Interval], Sequence[Objective]]


# Takes a task and a value known to be reached; returns an upper bound and points worth a look.
Attempt = Callable[[Task, float], tuple[float, list[Point]]]


def settle(
    task: Task, attempts: Iterable[Attempt], norm_at: Callable[[Sequence[Interval]], float]
) -> Supremum:
    """Make one attempt after the other until bound and example agree within the tolerance."""
    check_bounds(task.exprs, task.box)
    at = {symbol: low / 2 + high / 2 for symbol, (low, high) in task.box.items()}
    upper, found = np.inf, 0.0
    for attempt in attempts:
        bound, points = attempt(task, found)
        upper = min(upper, bound)
        for point in ({**at, **point} for point in points):
            sides = {symbol: interval(value, value) for symbol, value in point.items()}
            value = norm_at([enclose(expr, sides) for expr in task.exprs])
            found, at = (value, point) if value >= found else (found, at)
        if upper <= (1 + task.tolerance) * found:
            break
    check_finite(upper, task.exprs, task.box)
    return Supremum(upper=float(upper), found=found, at=at)


def as_stated(task: Task, found: float) -> tuple[float, list[Point]]:
    """Glance at the expressions as they are."""
    glance = min(_GLANCE, task.budget or _GLANCE)
    upper, at = search(replace(task, budget=glance), [(expr,) for expr in task.exprs], found)
    return upper, [at]


def rewritten(task: Task, found: float) -> tuple[float, list[Point]]:
    """Search in fewer variables, on several forms of each expression."""
    named = name_parts([simplified(expr) for expr in task.exprs], task.box)
    forms = [equivalents(expr) for expr in named.components]
    upper, at = search(replace(task, box=named.box), forms, found)
    return upper, [named.restore(at)]


def _by_square(task: Task, found: float) -> tuple[float, list[Point]]:
    """Search on the squared norm, if as one expression it needs fewer variables."""
    square = name_parts([squared_norm(task.exprs)], task.box)
    vector = name_parts([simplified(expr) for expr in task.exprs], task.box)
    if len(_symbols([square.components])) >= len(_symbols([vector.components])):
        return np.inf, []
    tolerance, facts = (1 + task.tolerance) ** 2 - 1, (frozenset[Expression](),)
    alone = replace(task, box=square.box, tolerance=tolerance, facts=facts)
    upper, at = search(alone, [equivalents(square.components[0])], found**2)
    return float(root(interval(0.0, upper)).upper), [square.restore(at)]


def _one_by_one(task: Task, _: float) -> tuple[float, list[Point]]:
    """Bound each component by itself, and their absolute sum where no component changes its sign.

    |c|_2^2 <= |c|_1 |c|_inf, which is tight for softmax and its derivatives.
    """
    bounds = bound_each(task, task.exprs)
    sizes = [bounds[expr].upper for expr in task.exprs]
    upper = float(euclidean([interval(0.0, size) for size in sizes]).upper)
    total = absolute_sum(task.exprs, task.box)
    if total is not None:
        bounds |= bound_each(task, [total])
        upper = min(upper, mean_upper(bounds[total].upper, max(sizes)))
    return upper, [bound.at for bound in bounds.values()]


def bound_each(task: Task, exprs: Iterable[Expression]) -> dict[Expression, Supremum]:
    """Bound the modulus of single expressions as well and as long as a task asks."""
    return {
        expr: supremum([expr], task.box, tolerance=task.tolerance, budget=task.budget)
        for expr in dict.fromkeys(exprs)
    }


def absolute_sum(exprs: Sequence[Expression], box: Box) -> Expression | None:
    """Write sum_i |c_i| without moduli, or return None if some c_i may change its sign."""
    sides = {symbol: interval(*ends) for symbol, ends in box.items()}
    ranges = [enclose(simplified(expr), sides) for expr in exprs]
    if any(value.lower < 0 < value.upper for value in ranges):
        return None
    signed = (e if value.lower >= 0 else negate(e) for e, value in zip(exprs, ranges, strict=True))
    return simplified(add(*signed))


def mean_upper(a: float, b: float) -> float:
    """Return sqrt(a b), rounded up."""
    return float(root(interval(0.0, a) * interval(0.0, b)).upper)


def search(
    task: Task, forms: Sequence[Sequence[Expression]], found: float
) -> tuple[float, dict[Expression, float]]:
    """Maximise the norm of expressions given in several forms each; return a bound and a point."""
    box = {**task.box, _NOTHING: (0.0, 0.0)}
    used = _symbols(forms)
    variables = [symbol for symbol in box if symbol in used] or [_NOTHING]
    components = [
        Component.of(ways, variables, fact) for ways, fact in zip(forms, task.facts, strict=True)
    ]
    root = interval(*np.transpose([box[symbol] for symbol in variables]))
    left = _affordable(forms, len(variables)) if task.budget is None else task.budget
    upper, at = 0.0, root.lower
    for objective in task.objectives(components, root):
        outcome = maximise(objective, root, tolerance=task.tolerance, budget=left, found=found)
        left = max(left - outcome.boxes, 1)
        upper = max(upper, outcome.upper)
        if outcome.found > found:
            found, at = outcome.found, outcome.at
    point = dict(zip(variables, at.tolist(), strict=True))
    point.pop(_NOTHING, None)
    return upper, point


def _affordable(forms: Sequence[Sequence[Expression]], variables: int) -> int:
    """Return how many boxes may be bounded at a cost of a few seconds."""
    operations = sum(1 for ways in forms for form in ways for _ in nodes((form,)))
    return int(np.clip(_EFFORT / (operations * (variables + 2)), 1_000, 100_000))


def _symbols(forms: Iterable[Iterable[Expression]]) -> set[Expression]:
    return set[Expression]().union(*(form.symbols for ways in forms for form in ways))


def _norms(components: Sequence[Component], root: Interval) -> list[Objective]:
    """Return the norm of several components, or both signs of a single one, the larger first."""
    if len(components) > 1:
        return [Norm(components=tuple(components))]
    value, _ = components[0].over(interval(root.lower[:, None], root.upper[:, None]))
    first = 1 if value.upper[0] >= -value.lower[0] else -1
    return [Signed(component=components[0], sign=sign) for sign in (first, -first)]


def _norm_at(values: Sequence[Interval]) -> float:
    return float(euclidean(values).lower)
