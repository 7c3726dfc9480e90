"""One constraint over named agents as sums of terms that name one agent each, and a public set.

Every way below is sound for a constraint that is convex. A region's function is convex by its form,
or its sums share no component of a state, as in the fallback, whose sums are such components: then
sums take all values of a box together, and the function is convex there because the constraint is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import (
    add,
    addends,
    coefficient,
    expand,
    in_order,
    is_even,
    multiply,
    power,
    rebuilt,
    split_constant,
    substitute,
    subtract,
)
from sottovoce.formula.curvature import curvature, never_negative
from sottovoce.formula.expression import (
    NONSMOOTH,
    Expression,
    Op,
    Scalar,
    number,
    scalar,
    symbol,
)
from sottovoce.problem.quadratic import Exact, Squares, squares, weighted_sum

Owners: TypeAlias = Mapping[Expression, str]
"""Whose each component of a state is."""

Separated: TypeAlias = tuple[dict[str, Expression], Scalar, list[Expression]]

AS_STATED = "one sum as stated"
_REST = symbol("v")
_LARGE_EXPONENT = 700  # of e, in float64
_MANY = 12  # states beyond which slower ways are tried only if the fast ones find nothing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decomposed:
    """A constraint as sums in a public set.

    Attributes:
        sums: formulas whose every term names one agent.
        lower, upper: bounds of each sum, infinite where there is none or a region holds it.
        phi: the sums' symbols and the convex function of them that must not be positive, if one
            holds them together.
        how: how it was done, for people.
        as_stated: whether it was one sum already, whose price is the constraint's multiplier.
    """

    sums: tuple[Expression, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    phi: tuple[tuple[Expression, ...], Expression] | None
    how: str
    as_stated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Named:
    """A formula as ``phi(u) + rest`` with affine sums u.

    Attributes:
        names: the sums and what phi calls them.
        phi: convex on all values that the sums can take.
        rest: what is left, a sum of convex terms that name one agent each.
        how: what was named, for people.
    """

    names: Mapping[Expression, Expression]
    phi: Expression
    rest: Expression
    how: str

    def __len__(self) -> int:
        return len(self.names) + (not self.rest.is_zero)


def decompose(g: Expression, owners: Owners, *, name: str, equality: bool = False) -> Decomposed:
    """Write ``g(x) <= 0``, or an affine ``g(x) = 0``, as few sums in a public set."""
    if equality:
        require_affine(name, g)
        parts, constant, _ = separated(expand(g), owners)
        return replace(_one(parts, -constant, -constant, AS_STATED), as_stated=True)
    return _smallest(g, owners)


def require_affine(name: str, g: Expression) -> None:
    """Refuse an equality whose solutions would not be a convex set."""
    if not curvature(expand(g)).is_affine:
        raise ProblemError(
            f"constraint {name} must be affine to be an equality, got {g}: only then are its "
            "solutions a convex set; write <= or >="
        )


def separated(expr: Expression, owners: Owners) -> Separated:
    """Split a formula into what names one agent each, a constant, and what mixes agents."""
    parts: dict[str, list[Expression]] = {}
    constant, rest = split_constant(expr)
    coupled: list[Expression] = []
    for term in addends(rest):
        names = {owners[s] for s in term.symbols}
        if len(names) == 1:
            parts.setdefault(names.pop(), []).append(term)
        elif names:
            coupled.append(term)
    return {name: add(*terms) for name, terms in parts.items()}, constant, coupled


def named(g: Expression, owners: Owners) -> Named:
    """Name the sums inside a formula that mixes agents, as few as it takes.

    Inside phi are the affine parts of what mixes agents and of what is not convex beside it. Or all
    that agents in phi add by themselves is inside as well: a phi that mixes agents may be convex
    only together with it. It is by its form, or because sums that share no component take all
    values of a box together: there phi is convex where g is, if nothing else of g depends on these
    components. The last way always works: a convex g is a convex phi of every component that it
    mixes with another agent's, and what shares no component with these is convex by itself.
    """
    parts, constant, coupled = separated(g, owners)
    terms = [t for part in parts.values() for t in addends(part)]
    inside = _linked(coupled, terms)
    linked = [t for t in terms if t.symbols & inside]
    ways = []
    for mixing in ([t for t in linked if not curvature(t).is_convex], linked):
        names, phi = affine_sums(add(*coupled, *mixing), owners)
        if curvature(phi).is_convex or (mixing is linked and _apart(names)):
            single = sum(1 for h in names if len({owners[s] for s in h.symbols}) == 1)
            how = f"{len(names)} sums" if len(names) > 1 else "a sum"
            how += " inside a formula" + (f", {single} of them a single agent's" if single else "")
            ways.append((names, phi, mixing, how))
    states = in_order(inside)
    names = dict(zip(states, _symbols(len(states)), strict=True))
    how = f"{len(states)} components of states, of which it is a formula"
    ways.append((names, substitute(add(*coupled, *linked), names), linked, how))
    named_ways = (
        Named(
            names=names,
            phi=add(phi, number(constant)),
            rest=subtract(add(*terms), add(*mixing)),
            how=how,
        )
        for names, phi, mixing, how in ways
    )
    return min(named_ways, key=len)


def _one(parts: Mapping[str, Expression], low: Scalar, high: Scalar, how: str) -> Decomposed:
    total = add(*parts.values())
    return Decomposed(sums=(total,), lower=(float(low),), upper=(float(high),), phi=None, how=how)


def _smallest(g: Expression, owners: Owners) -> Decomposed:
    return min(_candidates(g, owners), key=lambda candidate: len(candidate.sums))


def _candidates(g: Expression, owners: Owners) -> Iterator[Decomposed]:
    """All decompositions that are tried; those that need few sums first."""
    parts, constant, coupled = separated(g, owners)
    if not coupled:
        yield replace(_one(parts, -math.inf, -constant, AS_STATED), as_stated=True)
        return
    parts, constant, coupled = separated(expand(g), owners)
    if not coupled:
        yield _one(parts, -math.inf, -constant, "one sum, multiplied out")
        return
    fast = [d for d in (_unwrapped(g, owners), _quadratic(g, owners)) if d is not None]
    yield from fast
    if fast and len(g.symbols) > _MANY:
        return
    yield _held(named(g, owners))


def _unwrapped(g: Expression, owners: Owners) -> Decomposed | None:
    """``a F(h) + c <= 0`` with F rising is ``h <= F^-1(-c/a)``; ``h^2 <= c`` bounds h both ways."""
    constant, rest = split_constant(g)
    factor, outer = coefficient(rest)
    if factor <= 0 or outer.op in (Op.ADD, Op.MUL):
        return None
    level, inner = _ratio(-constant, factor), outer.args[0]
    bound: Scalar
    if outer.op in NONSMOOTH:
        return _of_size(outer, level, owners)
    if outer.op == Op.LOG:
        if level > _LARGE_EXPONENT:
            return None
        bound, where = math.exp(level), "a logarithm"  # h = exp(log h) is convex as well
    elif outer.op == Op.EXP:
        if level <= 0 or not curvature(inner).is_convex:
            return None
        bound, where = math.log(level), "an exponential"
    else:
        p = outer.value
        if level <= 0 or p <= 0:
            return None
        bound = _root(level, p)
        if is_even(p) and curvature(inner).is_affine:
            return _between(inner, bound, owners)
        rising = not is_even(p) or never_negative(inner)
        if p >= 1 and not (rising and curvature(inner).is_convex):
            return None
        where = "a power" if p >= 1 else "a root"
    best = _smallest(subtract(inner, number(bound)), owners)
    how = "one sum" if best.as_stated else best.how
    return replace(best, how=f"{how}, inside {where}", as_stated=False)


def _ratio(above: Scalar, below: Scalar) -> Scalar:
    exact = isinstance(above, int | Fraction) and isinstance(below, int | Fraction)
    return scalar(Fraction(above) / Fraction(below)) if exact else float(above) / float(below)


def _root(level: Scalar, p: Scalar) -> Scalar:
    """``level^(1/p)``, exactly where it is a number like 4^(1/2)."""
    near = scalar(round(float(level) ** (1.0 / float(p)), 9))
    if isinstance(p, int) and Fraction(near) ** p == level:
        return near
    if p == Fraction(1, 2):
        return scalar(level * level)
    return math.sqrt(level) if p == 2 else float(level) ** (1.0 / float(p))


def _of_size(outer: Expression, level: Scalar, owners: Owners) -> Decomposed | None:
    """``|h| <= c`` bounds an affine h both ways; ``||h|| <= c`` is a ball."""
    if level <= 0 or not all(curvature(a).is_affine for a in outer.args):
        return None
    if outer.op == Op.ABS:
        return _between(outer.args[0], level, owners)
    if outer.op != Op.NORM:
        return None
    inside = add(*(power(a, 2) for a in outer.args), number(-level * level))
    best = _smallest(inside, owners)
    return replace(best, how=f"{best.how}, inside a norm", as_stated=False)


def _between(inner: Expression, root: Scalar, owners: Owners) -> Decomposed:
    parts, constant, _ = separated(expand(inner), owners)
    return _one(parts, -root - constant, root - constant, "one sum between two bounds")


def _quadratic(g: Expression, owners: Owners) -> Decomposed | None:
    """``x'Qx + q'x + c <= 0`` by squares of sums and what is separable."""
    form: Squares | None = squares(g, owners)
    if form is None:
        return None
    if len(form) == 1 and form.sums and form.constant < 0:
        root = _root(scalar(-form.constant / form.weights[0]), 2)
        return _between(subtract(form.sums[0], number(form.centres[0])), root, owners)
    names, phi = _of_squares(form)
    how = f"{len(names)} squares of sums" if len(names) > 1 else "the square of a sum"
    if not form.rest.is_zero:
        how += " and a separable rest"
    return _held(Named(names=names, phi=phi, rest=form.rest, how=how))


def _of_squares(form: Squares) -> tuple[dict[Expression, Expression], Expression]:
    """The sums with what phi calls them, and ``phi(u) = sum_k w_k (u_k - m_k)^2 + c``."""
    names = dict(zip(form.sums, _symbols(len(form.sums)), strict=True))
    terms = zip(form.weights, names.values(), form.centres, strict=True)
    squared = (multiply(number(w), power(add(u, number(-m)), 2)) for w, u, m in terms)
    return names, add(number(form.constant), *squared)


def _symbols(count: int) -> tuple[Expression, ...]:
    return tuple(symbol(f"u{k + 1}") for k in range(count))


def _held(mixture: Named) -> Decomposed:
    """The region ``phi(u) + v <= 0`` with v the rest, if there is one."""
    sums, symbols, phi = tuple(mixture.names), tuple(mixture.names.values()), mixture.phi
    if not mixture.rest.is_zero:  # which may be one of the sums once more
        sums, symbols, phi = (*sums, mixture.rest), (*symbols, _REST), add(phi, _REST)
    return Decomposed(
        sums=sums,
        lower=(-np.inf,) * len(sums),
        upper=(np.inf,) * len(sums),
        phi=(symbols, phi),
        how=mixture.how,
    )


def affine_sums(
    mixture: Expression, owners: Owners
) -> tuple[dict[Expression, Expression], Expression]:
    """Name the affine parts of a formula, or the sums in its squares if these are fewer."""
    parts: dict[Expression, Expression] = {}
    phi = name_affine(mixture, parts)
    names, phi = _independent(parts, phi)
    form = squares(mixture, owners)
    if form is not None and form.rest.is_zero and len(form.sums) < len(names):
        return _of_squares(form)
    return names, phi


def _apart(names: Iterable[Expression]) -> bool:
    """Whether no two sums share a component."""
    symbols = [s for h in names for s in h.symbols]
    return len(symbols) == len(set(symbols))


def _linked(coupled: Sequence[Expression], terms: Iterable[Expression]) -> set[Expression]:
    """The components that some term links, step by step, to what mixes agents."""
    inside = {s for t in coupled for s in t.symbols}
    each = [t.symbols for t in terms]
    while True:
        more = {s for symbols in each if symbols & inside for s in symbols} - inside
        if not more:
            return inside
        inside |= more


def name_affine(expr: Expression, names: dict[Expression, Expression]) -> Expression:
    """Put a symbol for every affine part of a formula, constants apart; equal parts share one."""
    if not expr.symbols:
        return expr
    if curvature(expr).is_affine:
        constant, part = split_constant(expand(expr))
        name = names.setdefault(part, symbol(f"u{len(names) + 1}"))
        return add(name, number(constant))
    if expr.op == Op.ADD:
        flat = [a for a in expr.args if curvature(a).is_affine]
        bent = [a for a in expr.args if not curvature(a).is_affine]
        return add(name_affine(add(*flat), names), *(name_affine(a, names) for a in bent))
    return rebuilt(expr, [name_affine(a, names) for a in expr.args])


def _independent(
    names: dict[Expression, Expression], phi: Expression
) -> tuple[dict[Expression, Expression], Expression]:
    """Keep sums that are linearly independent and write the others as combinations of them."""
    sums = list(names)
    weights = [{rest: Fraction(c) for c, rest in map(coefficient, addends(h))} for h in sums]
    states = in_order({s for h in sums for s in h.symbols})
    matrix = [[w.get(s, Fraction(0)) for w in weights] for s in states]
    shares, pivots = _reduced(np.array(matrix, dtype=object).reshape(len(states), len(sums)))
    if any(scalar(share) != share for share in shares.ravel()):
        return names, phi  # a combination must not be rounded
    kept = {sums[p]: symbol(f"u{k + 1}") for k, p in enumerate(pivots)}
    combined = {
        old: weighted_sum(shares[:, j], list(kept.values())) for j, old in enumerate(names.values())
    }
    return kept, substitute(phi, combined)


def _reduced(matrix: Exact) -> tuple[Exact, list[int]]:
    """The rows of the reduced echelon form that are not 0, and the columns of their pivots."""
    pivots: list[int] = []
    for column in range(matrix.shape[1]):
        row = len(pivots)
        below = np.flatnonzero(matrix[row:, column])
        if below.size:
            matrix[[row, row + below[0]]] = matrix[[row + below[0], row]]
            matrix[row] /= matrix[row, column]
            others = np.delete(np.arange(len(matrix)), row)
            matrix[others] -= np.outer(matrix[others, column], matrix[row])
            pivots.append(column)
    return matrix[: len(pivots)], pivots
