"""One constraint over named agents as sums of terms that name one agent each, and a public set.

Every way below is sound for a constraint that is convex. A region's function is convex by its form,
or its sums share no component of a state, as in the fallback, whose sums are such components: then
sums take all values of a box together, and the function is convex there because the constraint is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    is_even,
    multiply,
    positive_by_form,
    power,
    rebuild,
    split_constant,
    substitute,
    subtract,
)
from sottovoce.formula.curvature import curvature
from sottovoce.formula.derive import quadratic_form
from sottovoce.formula.expression import NONSMOOTH, Expression, Op, Scalar, number, scalar, symbol
from sottovoce.formula.order import in_order
from sottovoce.problem.quadratic import Exact, Squares, sum_of_squares, weighted_sum

Owners: TypeAlias = Mapping[Expression, str]  # the agent of every component of a state

Separated: TypeAlias = tuple[dict[str, Expression], Scalar, list[Expression]]

AS_STATED = "one sum as stated"
_REST = symbol("v")
_LARGE_EXPONENT = 700  # of e, in float64
_LIBRARY = 2  # units in the last place that exp and log may err by
_LARGE_POWER = 64  # beyond it exact powers take long
_ROUGH = 2.0**-40  # more than the relative error of a power, whose exponent is rounded too
_ROUNDED = 1e-13  # of a sum's length: what products of float64 leave where nothing should be
_MANY = 12  # states beyond which slower ways are tried only if the fast ones find nothing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decomposition:
    """A constraint as sums in a public set."""

    sums: tuple[Expression, ...]  # formulas whose every term names one agent
    lower: tuple[float, ...]  # bounds, infinite where there is none or the sum is in a region
    upper: tuple[float, ...]  # likewise
    # the sums' symbols, and the convex function of them that must not be positive, if there is one
    phi: tuple[tuple[Expression, ...], Expression] | None
    how: str  # how it was done, in words
    as_stated: bool = False  # whether it was one sum already, whose price is the multiplier


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AffineComposition:
    """A formula as ``phi(u) + rest`` with affine sums u."""

    names: Mapping[Expression, Expression]  # the sums and what phi calls them
    phi: Expression  # convex on all values that the sums can take
    rest: Expression  # what is left, a sum of convex terms that name one agent each
    how: str  # what was named, in words

    def __len__(self) -> int:
        return len(self.names) + (not self.rest.is_zero)


def decompose(g: Expression, owners: Owners, *, name: str, equality: bool = False) -> Decomposition:
    """Write ``g(x) <= 0``, or an affine ``g(x) = 0``, as few sums in a public set."""
    if equality:
        require_affine(name, g)
        parts, constant, _ = separate(expand(g), owners)
        return replace(_single_sum(parts, -constant, -constant, AS_STATED), as_stated=True)
    _require_room(name, g)
    return _fewest_sums(g, owners)


def _require_room(name: str, g: Expression) -> None:
    """Refuse a size that must be 0 or less: its set has no interior, or no point."""
    constant, rest = split_constant(g)
    factor, outer = coefficient(rest)
    if factor > 0 and outer.op in (Op.ABS, Op.NORM) and constant >= 0:
        zero = " and ".join(f"{a} == 0" for a in outer.args)
        remedy = "relax it" if constant else f"only {zero} meets it, state equalities"
        raise ProblemError(
            f"constraint {name} must bound {outer} by a positive number, got {g} <= 0: {remedy}"
        )


def require_affine(name: str, g: Expression) -> None:
    """Refuse an equality whose solutions would not be a convex set."""
    if not curvature(expand(g)).is_affine:
        raise ProblemError(
            f"constraint {name} must be affine to be an equality, got {g}: only then are its "
            "solutions a convex set; write <= or >="
        )


def separate(expr: Expression, owners: Owners) -> Separated:
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


def compose_affine(g: Expression, owners: Owners) -> AffineComposition:
    """Name the sums inside a formula that mixes agents, as few as it takes.

    Inside phi are the affine parts of what mixes agents and of what is not convex beside it. Or all
    that agents in phi add by themselves is inside as well: a phi that mixes agents may be convex
    only together with it. It is by its form, or because sums that share no component take all
    values of a box together: there phi is convex where g is, if nothing else of g depends on these
    components. The last way always works: a convex g is a convex phi of every component that it
    mixes with another agent's, and what shares no component with these is convex by itself.
    """
    parts, constant, coupled = separate(g, owners)
    terms = [t for part in parts.values() for t in addends(part)]
    inside = _linked_components(coupled, terms)
    linked = [t for t in terms if t.symbols & inside]
    candidates = []
    for mixing in ([t for t in linked if not curvature(t).is_convex], linked):
        names, phi = affine_sums(add(*coupled, *mixing), owners)
        if curvature(phi).is_convex or (mixing is linked and _disjoint(names)):
            single = sum(1 for h in names if len({owners[s] for s in h.symbols}) == 1)
            how = f"{len(names)} sums" if len(names) > 1 else "a sum"
            how += " inside a formula" + (f", {single} of them a single agent's" if single else "")
            candidates.append((names, phi, mixing, how))
    states = in_order(inside)
    names = dict(zip(states, _sum_symbols(len(states)), strict=True))
    how = f"{len(states)} components of states, of which it is a formula"
    candidates.append((names, substitute(add(*coupled, *linked), names), linked, how))
    compositions = (
        AffineComposition(
            names=names,
            phi=add(phi, number(constant)),
            rest=subtract(add(*terms), add(*mixing)),
            how=how,
        )
        for names, phi, mixing, how in candidates
    )
    return min(compositions, key=len)


def _single_sum(
    parts: Mapping[str, Expression], low: Scalar, high: Scalar, how: str
) -> Decomposition:
    total, ends = add(*parts.values()), (float(low), float(high))
    if low != high:
        ends = -_float_rounded_down(-low), _float_rounded_down(high)
    return Decomposition(sums=(total,), lower=ends[:1], upper=ends[1:], phi=None, how=how)


def _fewest_sums(g: Expression, owners: Owners) -> Decomposition:
    return min(_decompositions(g, owners), key=lambda candidate: len(candidate.sums))


def _decompositions(g: Expression, owners: Owners) -> Iterator[Decomposition]:
    """All decompositions that are tried; those that need few sums first."""
    parts, constant, coupled = separate(g, owners)
    if not coupled:
        yield replace(_single_sum(parts, -math.inf, -constant, AS_STATED), as_stated=True)
        return
    parts, constant, coupled = separate(expand(g), owners)
    if not coupled:
        yield _single_sum(parts, -math.inf, -constant, "one sum, multiplied out")
        return
    fast = [d for d in (_invert_outer(g, owners), _quadratic(g, owners)) if d is not None]
    yield from fast
    if fast and len(g.symbols) > _MANY:
        return
    yield _in_region(compose_affine(g, owners))


def _invert_outer(g: Expression, owners: Owners) -> Decomposition | None:
    """``a F(h) + c <= 0`` with F rising is ``h <= F^-1(-c/a)``; ``h^2 <= c`` bounds h both ways."""
    constant, rest = split_constant(g)
    factor, outer = coefficient(rest)
    if factor <= 0 or outer.op in (Op.ADD, Op.MUL):
        return None
    level, inner = _rounded_down(-Fraction(constant) / Fraction(factor)), outer.args[0]
    bound: Scalar
    if outer.op in NONSMOOTH:
        return _bound_size(outer, level, owners)
    if outer.op == Op.LOG:
        if level > _LARGE_EXPONENT:
            return None
        bound, where = _transcendental(math.exp, level), "a logarithm"  # h = exp(log h) is convex
    elif outer.op == Op.EXP:
        if level <= 0 or not curvature(inner).is_convex:
            return None
        bound, where = _transcendental(math.log, level), "an exponential"
    else:
        p = outer.value
        if level <= 0 or p <= 0:
            return None
        bound = _root(level, p)
        if is_even(p) and curvature(inner).is_affine:
            return _bound_both_ways(inner, bound, owners)
        rising = not is_even(p) or positive_by_form(inner, strict=False)
        if p >= 1 and not (rising and curvature(inner).is_convex):
            return None
        where = "a power" if p >= 1 else "a root"
    shift, rest = split_constant(inner)
    shift = -_rounded_down(Fraction(bound) - Fraction(shift))
    best = _fewest_sums(add(rest, number(shift)), owners)
    how = "one sum" if best.as_stated else best.how
    return replace(best, how=f"{how}, inside {where}", as_stated=False)


# Levels are rounded so that no point meets a row that does not meet the stated one.


def _rounded_down(value: Fraction) -> Scalar:
    """A constant as formulas hold it, not above a fraction."""
    near = scalar(value)
    return near if near <= value else scalar(math.nextafter(near, -math.inf))


def _float_rounded_down(value: Scalar) -> float:
    """The largest float64 that is not above a constant."""
    near = float(value)
    return near if near <= value else math.nextafter(near, -math.inf)


def _transcendental(function: Callable[[float], float], level: Scalar) -> Scalar:
    """``e^level`` or ``ln level``, rounded down; exact at ``e^0`` and ``ln 1``."""
    near = function(_float_rounded_down(level))
    if level == (0 if function is math.exp else 1):
        return scalar(near)
    for _ in range(_LIBRARY):
        near = math.nextafter(near, -math.inf)
    return near


def _root(level: Scalar, p: Scalar) -> Scalar:
    """``level^(1/p)``, exactly where it is a number like 4^(1/2), elsewhere rounded down."""
    near = scalar(round(float(level) ** (1.0 / float(p)), 9))
    if isinstance(p, int) and Fraction(near) ** p == level:
        return near
    if p == Fraction(1, 2):
        return _rounded_down(Fraction(level) ** 2)
    root = math.sqrt(level) if p == 2 else float(level) ** (1.0 / float(p))
    above, below = Fraction(p).as_integer_ratio()
    if max(above, below) > _LARGE_POWER:
        return root * (1.0 - _ROUGH)
    while Fraction(root) ** above > Fraction(level) ** below:
        root = math.nextafter(root, 0.0)
    return root


def _bound_size(outer: Expression, level: Scalar, owners: Owners) -> Decomposition | None:
    """``|h| <= c`` bounds an affine h both ways; ``||h|| <= c`` is a ball."""
    if level <= 0 or not all(curvature(a).is_affine for a in outer.args):
        return None
    if outer.op == Op.ABS:
        return _bound_both_ways(outer.args[0], level, owners)
    if outer.op != Op.NORM:
        return None
    inside = add(*(power(a, 2) for a in outer.args), number(-_rounded_down(Fraction(level) ** 2)))
    best = _fewest_sums(inside, owners)
    return replace(best, how=f"{best.how}, inside a norm", as_stated=False)


def _bound_both_ways(inner: Expression, root: Scalar, owners: Owners) -> Decomposition:
    parts, constant, _ = separate(expand(inner), owners)
    radius, centre = Fraction(root), -Fraction(constant)
    return _single_sum(parts, centre - radius, centre + radius, "one sum between two bounds")


def _quadratic(g: Expression, owners: Owners) -> Decomposition | None:
    """``x'Qx + q'x + c <= 0`` by squares of sums and what is separable."""
    form: Squares | None = sum_of_squares(g, owners)
    if form is None:
        return None
    if len(form) == 1 and form.sums and form.constant < 0:
        root = _root(_rounded_down(-form.constant / form.weights[0]), 2)
        return _bound_both_ways(subtract(form.sums[0], number(form.centres[0])), root, owners)
    names, phi = _compose_squares(form)
    how = f"{len(names)} squares of sums" if len(names) > 1 else "the square of a sum"
    if not form.rest.is_zero:
        how += " and a separable rest"
    return _in_region(AffineComposition(names=names, phi=phi, rest=form.rest, how=how))


def _compose_squares(form: Squares) -> tuple[dict[Expression, Expression], Expression]:
    """The sums with what phi calls them, and ``phi(u) = sum_k w_k (u_k - m_k)^2 + c``."""
    names = dict(zip(form.sums, _sum_symbols(len(form.sums)), strict=True))
    terms = zip(form.weights, names.values(), form.centres, strict=True)
    squared = (multiply(number(w), power(add(u, number(-m)), 2)) for w, u, m in terms)
    return names, add(number(form.constant), *squared)


def _sum_symbols(count: int) -> tuple[Expression, ...]:
    return tuple(symbol(f"u{k + 1}") for k in range(count))


def _in_region(mixture: AffineComposition) -> Decomposition:
    """The region ``phi(u) + v <= 0`` with v the rest, if there is one."""
    sums, symbols, phi = tuple(mixture.names), tuple(mixture.names.values()), mixture.phi
    if not mixture.rest.is_zero:  # which may be one of the sums once more
        sums, symbols, phi = (*sums, mixture.rest), (*symbols, _REST), add(phi, _REST)
    return Decomposition(
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
    names, phi = reduce_to_basis(parts, phi)
    form = sum_of_squares(mixture, owners)
    if form is not None and form.rest.is_zero and len(form.sums) < len(names):
        return _compose_squares(form)
    return names, phi


def _disjoint(names: Iterable[Expression]) -> bool:
    """Whether no two sums share a component."""
    symbols = [s for h in names for s in h.symbols]
    return len(symbols) == len(set(symbols))


def _linked_components(
    coupled: Sequence[Expression], terms: Iterable[Expression]
) -> set[Expression]:
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
    terms = expr.args if expr.op == Op.ADD else (expr,)  # of long sums no curvature is known
    if all(curvature(a).is_affine for a in terms):
        constant, part = split_constant(expand(expr))
        name = names.setdefault(part, symbol(f"u{len(names) + 1}"))
        return add(name, number(constant))
    if expr.op == Op.ADD:
        affine_terms = [a for a in terms if curvature(a).is_affine]
        nonlinear_terms = [a for a in terms if not curvature(a).is_affine]
        return add(
            name_affine(add(*affine_terms), names),
            *(name_affine(a, names) for a in nonlinear_terms),
        )
    return rebuild(expr, [name_affine(a, names) for a in expr.args])


def reduce_to_basis(
    names: dict[Expression, Expression], phi: Expression
) -> tuple[dict[Expression, Expression], Expression]:
    """Keep sums that are linearly independent and write the others as combinations of them."""
    names = dict(sorted(names.items(), key=lambda pair: len(pair[0].symbols)))  # shares are rounder
    sums = list(names)
    weights = [{rest: Fraction(c) for c, rest in map(coefficient, addends(h))} for h in sums]
    states = in_order({s for h in sums for s in h.symbols})
    matrix = [[w.get(s, Fraction(0)) for w in weights] for s in states]
    shares, pivots = _row_echelon(np.array(matrix, dtype=object).reshape(len(states), len(sums)))
    if any(scalar(share) != share for share in shares.ravel()):
        return names, phi  # a combination must not be rounded
    basis = {sums[p]: symbol(f"u{k + 1}") for k, p in enumerate(pivots)}
    combined = {
        old: weighted_sum(shares[:, j], list(basis.values()))
        for j, old in enumerate(names.values())
    }
    return basis, substitute(phi, combined)


def merge_rounded_sums(
    names: dict[Expression, Expression], phi: Expression
) -> tuple[dict[Expression, Expression], Expression]:
    """Keep, in a quadratic form, sums of which the others are combinations up to rounding.

    ``s @ P @ s`` names the sums of s and of ``P @ s``, and its products alone are not convex.
    """
    sums, states = list(names), in_order({s for h in names for s in h.symbols})
    if quadratic_form(phi) is None:
        return names, phi
    weights = [{rest: float(c) for c, rest in map(coefficient, addends(h))} for h in sums]
    W = np.array([[w.get(s, 0.0) for w in weights] for s in states])
    size = np.linalg.norm(W, axis=0)
    W, left, kept = W / size, W / size, list[int]()
    while np.max(length := np.linalg.norm(left, axis=0)) > _ROUNDED:
        kept.append(int(np.argmax(length)))
        unit = left[:, kept[-1]] / np.max(length)
        left = left - np.outer(unit, unit @ left)
    if len(kept) == len(sums):
        return names, phi
    shares = np.linalg.lstsq(W[:, kept], W)[0] * size / size[kept][:, np.newaxis]
    shares[:, kept] = np.eye(len(kept))
    basis = {sums[k]: names[sums[k]] for k in kept}
    combined = {
        old: weighted_sum(shares[:, j].tolist(), list(basis.values()))
        for j, old in enumerate(names.values())
    }
    return basis, _centred(substitute(phi, combined))


def _centred(phi: Expression) -> Expression:
    """A quadratic form as products of ``u_i - m_i``, as far as its linear part fits in them."""
    form = quadratic_form(phi)
    if form is None:
        return phi
    Q, q = np.array(form.quadratic, dtype=float), np.array(form.linear, dtype=float)
    m = np.linalg.lstsq(-2.0 * Q, q)[0]
    left = q + 2.0 * Q @ m
    left[np.abs(left) <= _ROUNDED * np.abs(q).max()] = 0.0
    off = [add(u, number(-c)) for u, c in zip(form.symbols, m.tolist(), strict=True)]
    products = (
        multiply(number((1 + (i < j)) * float(Q[i, j])), off[i], off[j])
        for i, j in zip(*np.triu_indices(len(off)), strict=True)
    )
    constant = float(form.constant) - float(m @ Q @ m)
    return add(*products, weighted_sum(left.tolist(), form.symbols), number(constant))


def _row_echelon(matrix: Exact) -> tuple[Exact, list[int]]:
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
