"""Proofs that a formula is convex, and smooth, on a box; or a point where it is not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.certificate.hessian import (
    CertifiedSigns,
    Hessian,
    ProofRegion,
    bounded_below,
    bounded_on,
    enclosed_ends,
    sample_points,
)
from sottovoce.errors import InputError, ProblemError
from sottovoce.formula.canonical import negate, positive_by_form, substitute
from sottovoce.formula.curvature import NONE, ConvexityRules, Variables
from sottovoce.formula.derive import gradient, is_smooth, rationalise, round_numbers
from sottovoce.formula.enclosure import domain_conditions
from sottovoce.formula.expression import Expression, exact_arithmetic, number
from sottovoce.formula.order import in_order
from sottovoce.formula.signs import BoxSigns, brief
from sottovoce.problem.groups import Array

Box = Mapping[Expression, tuple[ArrayLike, ArrayLike]]
Status = Literal["proven", "numerical", "fails", "note"]

SMOOTH = "made of smooth functions, none of which comes near a singularity (intervals)"
_EVERYWHERE = "a formula that is undefined on the whole box"
_BUDGET = 20_000  # boxes of a subdivision: at most a few seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Whether a formula is convex, or has finite derivatives, on a box."""

    # "numerical": neither proof nor counterexample; "note": smooth but for some points
    status: Status
    detail: str  # the proof or the failure in one sentence
    witness: Mapping[Expression, float] | None = None  # a point of the box where it fails
    strict: bool = False  # whether it is proven strictly convex in all variables it depends on


@exact_arithmetic()
def convexity(expr: Expression, box: Box, *, parameters: Collection[Expression] = ()) -> Judgement:
    """Decide whether f is convex on a box, ``f((x + y)/2) <= (f(x) + f(y))/2`` for all x, y in it.

    In order: rules of convex calculus with signs from interval arithmetic, exact rational algebra
    for quadratics, interval Hessians with subdivision, and the search for a counterexample.

    ``box`` has for each symbol two numbers, or two arrays with one entry per agent of a fleet, for
    whom f is then judged one by one. Its ``parameters`` are fixed at any value of their interval.
    """
    f, region = _prepare(expr, box, parameters)
    if f is None:
        return Judgement(status="fails", detail=_EVERYWHERE, witness={})
    undefined = _undefined([f], region)
    if undefined is not None:
        witness, why = undefined
        return Judgement(status="fails", detail=why, witness=witness)

    def refuse(witness: Mapping[Expression, float] | None, why: str) -> Judgement:
        rule = _broken_rule(expr, box, parameters)
        return Judgement(status="fails", detail=f"{why}: {rule}" if rule else why, witness=witness)

    rules, variables = (
        ConvexityRules(region.variables, CertifiedSigns(region)),
        region.variables_of(f),
    )
    hessian = Hessian(f, region) if is_smooth(f) else None
    if hessian is not None and hessian.constant and not f.symbols <= set(variables):
        # A quadratic with parameters: one matrix per agent says it all, in intervals.
        strict = hessian.definite(budget=_BUDGET)
        if strict is not None:
            return _proven(strict, variables, "rules of convex calculus")
    strict = rules.curvature(f).convex
    if strict is not None:
        # Of a quadratic the rules know all there is to know; second derivatives do not see where
        # slopes jump.
        if not (rules.is_quadratic(f) or strict.issuperset(variables)) and hessian is not None:
            strict |= hessian.definite(budget=_BUDGET // 2) or NONE
        return _proven(strict, variables, "rules of convex calculus")
    if hessian is None:
        return refuse(None, "a formula that no rule proves convex")
    counterexample = hessian.negative_direction()
    if counterexample is not None:
        return refuse(*counterexample)
    strict = hessian.definite(budget=_BUDGET)
    if strict is not None:
        return _proven(strict, variables, "interval Hessian")
    points, free = sample_points(region, hessian.symbols)
    inner = free.all(axis=1)
    if rules.is_quadratic(f) and inner.any():
        why = "a constant Hessian that is not positive semidefinite (exact rational arithmetic)"
        point = dict(zip(hessian.symbols, points[inner.argmax()].tolist(), strict=True))
        return refuse(point, why)
    detail = f"no negative second derivative at {points.shape[0]} points; no proof found"
    return Judgement(status="numerical", detail=detail)


def _broken_rule(expr: Expression, box: Box, parameters: Collection[Expression]) -> str:
    """The rule of convex calculus that a formula breaks; nothing if it keeps all."""
    ends = {s: (float(np.min(low)), float(np.max(high))) for s, (low, high) in box.items()}
    states = set(box) - set(parameters)
    values = {s: np.atleast_1d(np.asarray(box[s][0], dtype=np.float64)) for s in parameters}
    proven = ConvexityRules(states, BoxSigns(ends, values)).curvature(expr)
    if proven.kind == "concave":
        return f"{brief(expr)} is concave"
    return "" if proven.is_convex else proven.why


@exact_arithmetic()
def smoothness(
    expr: Expression, box: Box, *, parameters: Collection[Expression] = (), order: int = 2
) -> Judgement:
    """Decide whether f and its derivatives up to ``order`` are defined and finite on a box.

    Arguments are those of ``convexity``; the paper asks for order 2 of a constraint, 1 of an
    objective.
    """
    remedy = "shrink the box so that every root, quotient and logarithm stays defined"
    f, region = _prepare(expr, box, parameters)
    if f is None:
        return Judgement(status="fails", detail=f"{_EVERYWHERE}: {remedy}", witness={})
    if all(_is_analytic(inner, region, relation) for inner, relation, _ in domain_conditions(f)):
        if is_smooth(f):
            return Judgement(status="proven", detail=SMOOTH)
        detail = "its slope jumps at some points, where subgradients take its place"
        return Judgement(status="note", detail=detail)
    derivatives = _derivatives(f, region.variables_of(f), order)
    singular = _undefined(derivatives, region)
    if singular is not None:
        witness, why = singular
        return Judgement(status="fails", detail=f"{why}: {remedy}", witness=witness)
    for derivative in derivatives:
        if not bounded_on(derivative, region):
            detail = f"no finite bound was found for {round_numbers(derivative)}: {remedy}"
            return Judgement(status="numerical", detail=detail)
    detail = f"derivatives up to order {order} are bounded on the box (interval arithmetic)"
    return Judgement(status="proven", detail=detail)


def _is_analytic(inner: Expression, region: ProofRegion, relation: str) -> bool:
    """Whether a root, quotient or logarithm of ``inner`` is analytic on the whole region."""
    positive = positive_by_form(inner, strict=True) or bounded_below(inner, region, strict=True)
    return positive or (relation == "!=" and bounded_below(negate(inner), region, strict=True))


def _derivatives(f: Expression, variables: Sequence[Expression], order: int) -> list[Expression]:
    """Return f and its partial derivatives up to ``order``, each once, zeros left out."""
    place = {s: k for k, s in enumerate(variables)}
    derivatives, level = {f: None}, [(0, f)]
    for _ in range(order):
        level = [
            (place[s], slope)
            for first, g in level
            for s, slope in gradient(g, variables[first:]).items()
        ]
        derivatives |= dict.fromkeys(g for _, g in level)
    return list(derivatives)


def _proven(strict: Variables, variables: Sequence[Expression], by: str) -> Judgement:
    is_strict = bool(variables) and strict.issuperset(variables)
    detail = f"{'strictly ' if is_strict else ''}convex by {by}"
    return Judgement(status="proven", strict=is_strict, detail=detail)


def _prepare(
    expr: Expression, box: Box, parameters: Collection[Expression]
) -> tuple[Expression | None, ProofRegion]:
    """Turn doubles into the fractions they are, and symbols that cannot move into numbers.

    None for the formula if it is undefined with these numbers.
    """
    missing = in_order(expr.symbols - set(box))
    if missing:
        raise InputError(f"box must hold every symbol of {expr}, got none for {missing[0]}")
    lower: dict[Expression, Array] = {}
    upper: dict[Expression, Array] = {}
    fixed: dict[Expression, Expression] = {}
    for symbol in in_order(expr.symbols):
        low, high = (np.atleast_1d(np.asarray(end, dtype=np.float64)) for end in box[symbol])
        if not np.all((low <= high) & np.isfinite(high - low)):
            raise InputError(f"the box of {symbol} must be finite with lower <= upper")
        if low[0] == high[0] and np.all(low == low[0]) and np.all(high == low[0]):
            fixed[symbol] = rationalise(number(low[0]))
        else:
            lower[symbol], upper[symbol] = low, high
    fixed_symbols = frozenset(parameters)
    variables = tuple(s for s in lower if s not in fixed_symbols and np.any(lower[s] < upper[s]))
    region = ProofRegion(variables=variables, lower=lower, upper=upper)
    try:
        return substitute(rationalise(expr), fixed), region
    except ProblemError:
        return None, region


def _undefined(
    exprs: Sequence[Expression], region: ProofRegion
) -> tuple[dict[Expression, float], str] | None:
    """Find a point of the region where one of the formulas is certainly undefined."""
    for inner, relation, outer in dict.fromkeys(
        d for expr in exprs for d in domain_conditions(expr)
    ):
        symbols = in_order(inner.symbols)
        points, _ = sample_points(region, symbols)
        low, high = enclosed_ends(inner, symbols, points, points)
        if relation == "!=":
            index = np.maximum(-low, high).argmin()
            # Between two signs lies a zero, if both are of one agent.
            crosses = region.agents == 1 and bool((low > 0).any() and (high < 0).any())
        else:
            index, crosses = high.argmin(), bool(high.min() < 0)
        point = dict(zip(symbols, points[index].tolist(), strict=True))
        zero = _vanishes(inner, point)
        if crosses or (zero and relation != ">="):
            values = ", ".join(f"{s} = {v:.6g}" for s, v in point.items())
            near = "near" if relation == "!=" and not zero else "at"
            needs = f"it needs {round_numbers(inner)} {relation} 0"
            return point, f"{round_numbers(outer)} undefined {near} {values} ({needs})"
    return None


def _vanishes(expr: Expression, point: Mapping[Expression, float]) -> bool:
    """Whether a formula is 0 at a point, in exact arithmetic."""
    try:
        return substitute(expr, {s: rationalise(number(v)) for s, v in point.items()}).is_zero
    except ProblemError:
        return False
