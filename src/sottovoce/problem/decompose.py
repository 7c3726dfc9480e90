"""One constraint over named agents as sums of terms that name one agent each, and a public set.

Every way below is sound for a constraint that is convex. A region's function is convex by its form,
or its sums share no component of a state, as in the fallback, whose sums are such components: then
sums take all values of a box together, and the function is convex there because the constraint is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import sympy as sp
from sympy.polys.matrices import DomainMatrix

from sottovoce.errors import ProblemError
from sottovoce.problem import kinks
from sottovoce.problem.quadratic import Squares, squares
from sottovoce.problem.shape import bends_up, never_negative, shape, whole

Owners: TypeAlias = Mapping[sp.Symbol, str]
"""Whose each component of a state is."""

Separated: TypeAlias = tuple[dict[str, sp.Expr], sp.Expr, list[sp.Expr]]

AS_STATED = "one sum as stated"
_REST = sp.Symbol("v")
_MANY = 12  # states beyond which slower ways are tried only if the fast ones find nothing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decomposed:
    """A constraint as sums in a public set.

    Attributes:
        sums: formulas whose every term names one agent.
        lower: least value of each sum, minus infinity where there is none or a region holds it.
        upper: largest value, likewise.
        phi: the sums' symbols and the convex function of them that must not be positive, if one
            holds them together.
        how: how it was done, for people.
        as_stated: whether it was one sum already, whose price is the constraint's multiplier.
    """

    sums: tuple[sp.Expr, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    phi: tuple[tuple[sp.Symbol, ...], sp.Expr] | None
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

    names: Mapping[sp.Expr, sp.Symbol]
    phi: sp.Expr
    rest: sp.Expr
    how: str

    def __len__(self) -> int:
        return len(self.names) + int(self.rest != 0)


def decompose(g: sp.Expr, owners: Owners, *, name: str, equality: bool = False) -> Decomposed:
    """Write ``g(x) <= 0``, or ``g(x) = 0``, as sums in a public set, with as few sums as it takes.

    Args:
        g: a formula in the states of named agents.
        owners: whose states these are.
        name: the constraint's, for errors.
        equality: whether g must be 0; then it must be affine.

    Raises:
        ProblemError: if an equality is not affine.
    """
    if equality:
        require_affine(name, g)
        parts, constant, _ = separated(sp.expand(g), owners)
        at = -constant
        return replace(_one(sp.Add(*parts.values()), at, at, AS_STATED), as_stated=True)
    return min(_candidates(g, owners), key=lambda d: len(d.sums))


def require_affine(name: str, g: sp.Expr) -> None:
    """Refuse an equality whose solutions would not be a convex set."""
    if shape(sp.expand(g)) != "affine":
        raise ProblemError(
            f"constraint {name} must be affine to be an equality, got {g}: only then are its "
            "solutions a convex set; write <= or >="
        )


def separated(expr: sp.Expr, owners: Owners) -> Separated:
    """Split a formula into what names one agent each, a constant, and what mixes agents."""
    parts: dict[str, sp.Expr] = {}
    constant: sp.Expr = sp.Integer(0)
    coupled: list[sp.Expr] = []
    for term in sp.Add.make_args(expr):
        names = {owners[s] for s in term.free_symbols}
        if not names:
            constant += term
        elif len(names) == 1:
            (name,) = names
            parts[name] = parts.get(name, sp.Integer(0)) + term
        else:
            coupled.append(term)
    return parts, constant, coupled


def named(expr: sp.Expr, owners: Owners) -> Named:
    """Name the sums inside a formula that mixes agents, as few as it takes."""
    tried = (
        _affine_parts(expr, owners, all_in=False),
        _affine_parts(expr, owners, all_in=True),
        _components(expr, owners),
    )
    return min((n for n in tried if n is not None), key=len)


def _one(total: sp.Expr, low: sp.Expr, high: sp.Expr, how: str) -> Decomposed:
    return Decomposed(sums=(total,), lower=(float(low),), upper=(float(high),), phi=None, how=how)


def _candidates(g: sp.Expr, owners: Owners) -> Iterator[Decomposed]:
    """All ways that are tried; those that need few sums first."""
    parts, constant, coupled = separated(g, owners)
    if not coupled:
        plain = _one(sp.Add(*parts.values()), -sp.oo, -constant, AS_STATED)
        yield replace(plain, as_stated=True)
        return
    expanded = sp.expand(g)
    parts, constant, coupled = separated(expanded, owners)
    if not coupled:
        yield _one(sp.Add(*parts.values()), -sp.oo, -constant, "one sum, multiplied out")
        return
    fast = [d for d in (_unwrapped(g, owners), _quadratic(g, owners)) if d is not None]
    yield from fast
    if fast and len(g.free_symbols) > _MANY:
        return
    found = named(g, owners)
    sums, symbols, phi = tuple(found.names), tuple(found.names.values()), found.phi
    if found.rest != 0:
        sums, symbols, phi = (*sums, found.rest), (*symbols, _REST), phi + _REST
    yield _held(sums, symbols, phi, found.how)


def _unwrapped(g: sp.Expr, owners: Owners) -> Decomposed | None:
    """``a F(h) + c <= 0`` with F rising is ``h <= F^-1(-c/a)``; ``h^2 <= c`` bounds h both ways."""
    constant, rest = g.as_independent(*g.free_symbols, as_Add=True)
    factor, outer = rest.as_independent(*g.free_symbols, as_Add=False)
    if not factor.is_positive or outer.is_Add or outer.is_Mul:
        return None
    level, inner = -constant / factor, outer.args[0]
    if isinstance(outer, sp.Function) and outer.func in kinks.CONVEX:
        return _of_size(outer, level, owners)
    if isinstance(outer, sp.log):
        inside, where = inner - sp.exp(level), "a logarithm"  # h = exp(log h) is convex as well
    elif isinstance(outer, sp.exp):
        if not (level.is_positive and bends_up(inner)):
            return None
        inside, where = inner - sp.log(level), "an exponential"
    else:
        power = whole(outer.exp)
        if not (level.is_positive and power.is_positive):
            return None
        root = level ** (1 / power)
        if power.is_even and shape(inner) == "affine":
            return _between(inner, root, owners)
        rising = power.is_even is not True or never_negative(inner)
        if power >= 1 and not (rising and bends_up(inner)):
            return None
        inside, where = inner - root, "a power" if power >= 1 else "a root"
    best = min(_candidates(inside, owners), key=lambda d: len(d.sums))
    how = "one sum" if best.as_stated else best.how
    return replace(best, how=f"{how}, inside {where}", as_stated=False)


def _of_size(outer: sp.Expr, level: sp.Expr, owners: Owners) -> Decomposed | None:
    """``|h| <= c`` bounds an affine h both ways; ``||h|| <= c`` is a ball."""
    if not (level.is_positive and all(shape(a) == "affine" for a in outer.args)):
        return None
    if isinstance(outer, kinks.absolute):
        return _between(outer.args[0], level, owners)
    if not isinstance(outer, kinks.norm):
        return None
    inside = sp.Add(*(a**2 for a in outer.args)) - level**2
    best = min(_candidates(inside, owners), key=lambda d: len(d.sums))
    return replace(best, how=f"{best.how}, inside a norm", as_stated=False)


def _between(inner: sp.Expr, root: sp.Expr, owners: Owners) -> Decomposed:
    parts, constant, _ = separated(sp.expand(inner), owners)
    total = sp.Add(*parts.values())
    return _one(total, -root - constant, root - constant, "one sum between two bounds")


def _quadratic(g: sp.Expr, owners: Owners) -> Decomposed | None:
    """``x'Qx + q'x + c <= 0`` by squares of sums and what is separable."""
    found: Squares | None = squares(g, owners)
    if found is None:
        return None
    if len(found.sums) == 1 and found.rest == 0 and found.constant.is_negative:
        root = sp.sqrt(-found.constant / found.weights[0])
        return _between(found.sums[0] - found.centres[0], root, owners)
    symbols = _symbols(len(found.sums))
    sums, phi = found.sums, _of_squares(found, symbols)
    how = f"{len(sums)} squares of sums" if len(sums) > 1 else "the square of a sum"
    if found.rest != 0:
        sums, symbols, phi = (*sums, found.rest), (*symbols, _REST), phi + _REST
        how += " and a separable rest"
    return _held(sums, symbols, phi, how)


def _of_squares(found: Squares, symbols: Sequence[sp.Symbol]) -> sp.Expr:
    terms = zip(found.weights, symbols, found.centres, strict=True)
    return sp.Add(found.constant, *(w * (u - m) ** 2 for w, u, m in terms))


def _symbols(count: int) -> tuple[sp.Symbol, ...]:
    return tuple(sp.Symbol(f"u{k + 1}") for k in range(count))


def _held(
    sums: Sequence[sp.Expr], symbols: tuple[sp.Symbol, ...], phi: sp.Expr, how: str
) -> Decomposed:
    count = len(sums)
    return Decomposed(
        sums=tuple(sums),
        lower=(-np.inf,) * count,
        upper=(np.inf,) * count,
        phi=(symbols, phi),
        how=how,
    )


def _affine_parts(g: sp.Expr, owners: Owners, *, all_in: bool) -> Named | None:
    """Name the affine parts of what mixes agents; None unless phi must be convex.

    It is by its form, or because sums that share no component take all values of a box together:
    there phi is convex where g is, if nothing else of g depends on these components.

    Args:
        g: the formula.
        owners: whose its states are.
        all_in: put all that agents in phi add by themselves into phi as well: a phi that mixes
            agents may be convex only together with it.
    """
    parts, constant, coupled = separated(g, owners)
    inside = _linked(coupled, parts)
    terms = [t for part in parts.values() for t in sp.Add.make_args(part)]
    mixing = [t for t in terms if t.free_symbols & inside and (all_in or not bends_up(t))]
    names: dict[sp.Expr, sp.Symbol] = {}
    phi = _put(sp.Add(*coupled, *mixing), names)
    names, phi = _independent(names, phi)
    form = squares(sp.Add(*coupled, *mixing), owners)
    if form is not None and form.rest == 0 and len(form.sums) < len(names):
        names = dict(zip(form.sums, _symbols(len(form.sums)), strict=True))
        phi = _of_squares(form, list(names.values()))
    if not (bends_up(phi) or (all_in and _apart(names))):
        return None
    single = sum(1 for h in names if len({owners[s] for s in h.free_symbols}) == 1)
    how = f"{len(names)} sums inside a formula" if len(names) > 1 else "a sum inside a formula"
    how += f", {single} of them a single agent's" if single else ""
    rest = sp.Add(*terms) - sp.Add(*mixing)
    return Named(names=names, phi=phi + constant, rest=rest, how=how)


def _apart(names: Mapping[sp.Expr, sp.Symbol]) -> bool:
    """Whether no two sums share a component."""
    return sum(len(h.free_symbols) for h in names) == len(
        {s for h in names for s in h.free_symbols}
    )


def _components(g: sp.Expr, owners: Owners) -> Named:
    """Name every component that g mixes with another agent's: a convex g is a convex phi of them.

    What shares no component with these is convex by itself, because g is, and stays a sum.
    """
    parts, constant, coupled = separated(g, owners)
    inside = _linked(coupled, parts)
    terms = [t for part in parts.values() for t in sp.Add.make_args(part)]
    mixing = [t for t in terms if t.free_symbols & inside]
    states = sorted(inside, key=str)
    names = dict(zip(states, _symbols(len(states)), strict=True))
    phi = sp.Add(*coupled, *mixing).xreplace(names)
    how = f"{len(states)} components of states, of which it is a formula"
    rest = sp.Add(*terms) - sp.Add(*mixing)
    return Named(names=names, phi=phi + constant, rest=rest, how=how)


def _linked(coupled: Sequence[sp.Expr], parts: Mapping[str, sp.Expr]) -> set[sp.Symbol]:
    """The components that some term links, step by step, to what mixes agents."""
    inside = {s for t in coupled for s in t.free_symbols}
    terms = [t.free_symbols for part in parts.values() for t in sp.Add.make_args(part)]
    while True:
        more = {s for symbols in terms if symbols & inside for s in symbols} - inside
        if not more:
            return inside
        inside |= more


def _put(expr: sp.Expr, names: dict[sp.Expr, sp.Symbol]) -> sp.Expr:
    """Put a symbol for every affine part of a formula, constants apart; equal parts share one."""
    if not expr.free_symbols:
        return expr
    if shape(expr) == "affine":
        constant, part = sp.expand(expr).as_independent(*expr.free_symbols, as_Add=True)
        return names.setdefault(part, sp.Symbol(f"u{len(names) + 1}")) + constant
    if expr.is_Add:
        flat = [a for a in expr.args if shape(a) == "affine"]
        bent = [a for a in expr.args if shape(a) != "affine"]
        terms = [_put(sp.Add(*flat), names)] if flat else []
        return sp.Add(*terms, *(_put(a, names) for a in bent))
    return expr.func(*(_put(a, names) for a in expr.args))


def _independent(
    names: dict[sp.Expr, sp.Symbol], phi: sp.Expr
) -> tuple[dict[sp.Expr, sp.Symbol], sp.Expr]:
    """Keep sums that are linearly independent and write the others as combinations of them."""
    sums, states = list(names), sorted({s for h in names for s in h.free_symbols}, key=str)
    exact = [h.xreplace({f: sp.Rational(f) for f in h.atoms(sp.Float)}) for h in sums]
    matrix = [[h.coeff(s) for h in exact] for s in states]
    if not all(c.is_Rational for row in matrix for c in row):
        return names, phi
    reduced, pivots = DomainMatrix.from_Matrix(sp.Matrix(matrix)).to_field().rref()
    shares = reduced.to_Matrix()
    kept = {sums[p]: sp.Symbol(f"u{k + 1}") for k, p in enumerate(pivots)}
    new = list(kept.values())
    return kept, phi.xreplace(
        {
            old: sp.Add(*(shares[k, j] * u for k, u in enumerate(new)))
            for j, old in enumerate(names.values())
        }
    )
