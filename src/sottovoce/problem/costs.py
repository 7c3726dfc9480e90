"""Public costs: one convex function U of sums over agents, which everybody knows.

    minimise  sum_i f_i(x_i) + U(s),    s_o = sum_i h_oi(x_i)

h_oi is affine, or convex where U does not decrease in s_o. U is read as a function of as few sums
as it takes, and adds up over groups of them that share no sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias, final

import numpy as np

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import (
    add,
    addends,
    canonical,
    coefficient,
    maximum_of,
    multiply,
    negate,
    rebuild,
    split_constant,
    substitute,
)
from sottovoce.formula.curvature import curvature
from sottovoce.formula.derive import gradient, is_affine, rationalise
from sottovoce.formula.enclosure import domain_conditions, enclose, value_range
from sottovoce.formula.expression import (
    ZERO,
    Expression,
    Scalar,
    exact_arithmetic,
    number,
    scalar,
    symbol,
)
from sottovoce.formula.intervals import interval
from sottovoce.formula.order import in_order
from sottovoce.formula.tape import tape
from sottovoce.problem.constraints import Constraint, FleetSum, row_symbols
from sottovoce.problem.decompose import merge_rounded_sums, name_affine, reduce_to_basis
from sottovoce.problem.fingerprint import fingerprint
from sottovoce.problem.groups import Array, Group, read_only
from sottovoce.problem.linear_rows import exact_float
from sottovoce.problem.local import rules_of

MOST_SUMS = 128  # as in kernels.core.prices: a day has 96 quarter-hours
SumRow: TypeAlias = tuple[FleetSum, int]  # a row of a sum over a fleet


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cost:
    """A public cost as it was stated."""

    families: tuple[Constraint, ...]  # the sums, rows without a bound
    symbols: tuple[Expression, ...]  # what ``formula`` calls them, one per row
    formula: Expression  # U
    rising: frozenset[Expression]  # symbols of sums whose terms are not affine


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostTerm:
    """What one group of sums adds to U."""

    rows: tuple[int, ...]  # the sums u, from 0, which the formula calls ``symbols``
    symbols: tuple[Expression, ...]
    formula: Expression  # all that they add to U
    rising: frozenset[Expression]  # sums of terms that are not affine: U must not fall in them

    def extended(self, box: Mapping[Expression, tuple[float, float]]) -> Expression:
        """``U(max(u, least))`` in sums of terms that are not affine: nondecreasing everywhere."""
        return substitute(
            self.formula,
            {s: maximum_of(s, number(box[s][0])) for s in self.symbols if s in self.rising},
        )


@exact_arithmetic()
def is_rising(
    formula: Expression, s: Expression, box: Mapping[Expression, tuple[float, float]]
) -> bool:
    """Whether a function, convex on a box, is proven to be nondecreasing in one of its symbols.

    Slopes of a convex function rise: where the symbol is least, so is the slope.
    """
    low = {s: (box[s][0],) * 2} if np.isfinite(box[s][0]) else {}
    ends = {t: interval(*ends) for t, ends in {**box, **low}.items()}
    slope = gradient(rationalise(formula), [s]).get(s, ZERO)
    return bool(np.all(enclose(slope, ends).lower >= 0.0))


def is_convex_everywhere(formula: Expression) -> bool:
    """Whether a formula is convex and defined for all numbers, as its form shows."""
    return curvature(formula).is_convex and not domain_conditions(formula)


def read_cost(formula: Expression, groups: Sequence[Group]) -> Cost:
    """Return ``cost=``, in plain symbols, as a function of sums."""
    rows: dict[Expression, SumRow] = {s: (s.value.part, s.value.row) for s in row_symbols(formula)}
    owner = {s: g for g in groups if g.count == 1 for s in g.symbols}
    for s in in_order(formula.symbols):
        if s not in owner and s not in rows:
            raise ProblemError(
                f"cost must be a function of sums over agents, got {s}: add over a fleet with "
                "sv.total(...)"
            )
    if not formula.symbols:
        raise ProblemError(f"cost must depend on sums over agents, got {formula}: remove it")
    straight = [t for t in addends(formula) if is_affine(t, t.symbols)]
    mixing = [t for t in addends(formula) if t not in set(straight)]
    for term in (*mixing, add(*straight)):
        names = {owner[s].name if s in owner else s for s in term.symbols}
        if len(names) == 1 and not names & rows.keys():
            raise ProblemError(
                f"cost must be a function of sums over agents, got the term {term} of "
                f"{names.pop()} alone: put it into its objective"
            )
    terms = _Terms(owner, rows)
    mixed = frozenset[Expression]().union(*(t.symbols for t in mixing))
    for s, (part, row) in rows.items():
        if not part.enters[row]:
            raise ProblemError(
                f"cost must be a function of sums that agents enter, got row {row + 1} of a total "
                f"over {part.group.name} whose weights are all 0: remove it"
            )
        if not part.terms[row % len(part.terms)].symbols & set(part.group.symbols):
            raise ProblemError(
                "cost must be a function of sums of states, got a total of parameters over "
                f"{part.group.name}: write its value as a number"
            )
        if s not in mixed and not terms.affine(s):
            raise ProblemError(
                "cost must be more than a total of terms that are not affine, got one of "
                f"{part.terms[row % len(part.terms)]}: put what an agent pays by itself into its "
                "objective"
            )
    costs = [_cost_of_sums(*_affine_parts(formula, terms), terms)]
    curved: dict[Expression, Expression] = {}
    phi = terms.name(formula, curved)
    if len(curved) < len(costs[0].symbols) and terms.convex(curved, phi):
        costs.append(_cost_of_sums(curved, phi, terms))
    return costs[-1]


def _affine_parts(
    formula: Expression, terms: _Terms
) -> tuple[dict[Expression, Expression], Expression]:
    """The affine parts of a cost, as few as it takes, and the cost as a function of them."""
    names: dict[Expression, Expression] = {}
    phi = name_affine(formula, names)
    curved = {h: symbol(f"v{k + 1}") for k, h in enumerate(names) if not terms.affine(h)}
    phi = substitute(phi, {names.pop(h): v for h, v in curved.items()})
    names, phi = merge_rounded_sums(*reduce_to_basis(names, phi)) if names else (names, phi)
    return names | curved, phi


@final
class _Terms:
    """The terms of sums: formulas in the states of one agent, and rows of sums over fleets."""

    def __init__(
        self, owner: Mapping[Expression, Group], rows: Mapping[Expression, SumRow]
    ) -> None:
        self._owner, self.rows = owner, rows
        groups = {group.name: group for group in owner.values()}.values()
        self._box = {
            s: (float(g.lower[0, c]), float(g.upper[0, c]))
            for g in groups
            for c, s in enumerate(g.symbols)
        }

    def _of(self, term: Expression) -> tuple[Expression, Group, list[int]] | None:
        """The formula of a term, whose it is, and the signs of its weights; None of several."""
        if term in self.rows:
            part, row = self.rows[term]
            return part.terms[row % len(part.terms)], part.group, part.only(row).signs
        groups = [self._owner.get(s) for s in term.symbols]
        if not groups or groups[0] is None or any(g is not groups[0] for g in groups):
            return None
        return term, groups[0], [1]

    def name(self, expr: Expression, names: dict[Expression, Expression]) -> Expression:
        """Put a symbol for every sum of terms of one agent each; equal sums share one."""
        alone = [t for t in addends(expr) if self._of(coefficient(t)[1]) is not None]
        if alone:
            name = names.setdefault(add(*alone), symbol(f"u{len(names) + 1}"))
            others = (t for t in addends(expr) if t not in set(alone))
            return add(name, *(self.name(t, names) for t in others))
        return rebuild(expr, [self.name(a, names) for a in expr.args]) if expr.symbols else expr

    def affine(self, h: Expression) -> bool:
        """Whether all terms of a sum are affine."""
        return all(
            of is not None and is_affine(of[0], of[1].symbols)
            for of in (self._of(coefficient(t)[1]) for t in addends(h))
        )

    def bends(self, h: Expression, sign: int) -> bool:
        """Whether a sum, or its negative, is shown to be convex by all of its terms."""
        for term in addends(h):
            factor, rest = coefficient(term)
            of = self._of(rest)
            if of is None:
                return False
            curvature_of = rules_of(of[1]).curvature(of[0])
            for weight in of[2]:
                upwards = factor * weight * sign > 0
                if not (curvature_of.is_convex if upwards else curvature_of.is_concave):
                    return False
        return True

    def convex(self, names: Mapping[Expression, Expression], phi: Expression) -> bool:
        """Whether phi is shown to be convex, and nondecreasing in what is convex alone."""
        box = dict.fromkeys(names.values(), (-np.inf, np.inf))
        rising = []
        for h, u in names.items():
            if not self.affine(h):
                if not self.bends(h, 1):
                    return False
                if not h.symbols & self.rows.keys():
                    box[u] = float(value_range(h, self._box)[0]), np.inf
                rising.append(u)
        return curvature(phi).is_convex and all(is_rising(phi, u, box) for u in rising)


def _cost_of_sums(names: Mapping[Expression, Expression], phi: Expression, terms: _Terms) -> Cost:
    """A cost phi of the sums ``names``; of proportional sums one is kept."""
    units: dict[Expression, Expression] = {}
    values: dict[Expression, Expression] = {}
    for h, u in names.items():
        factor, unit = _normalised(h)
        if not terms.affine(unit) and terms.bends(unit, -1):
            factor, unit = -factor, add(*map(negate, addends(unit)))
        values[u] = multiply(number(factor), units.setdefault(unit, u))
    names, phi = units, substitute(phi, values)
    place = {s: k for k, s in enumerate(terms.rows)}
    sums = sorted(names, key=lambda h: place.get(h, len(place)))
    # By content: the same cost, written in another order, is one.
    families = sorted(_families(sums, terms.rows), key=lambda pair: fingerprint(pair[0]))
    ordered = [h for _, members in families for h in members]
    symbols = {names[h]: symbol(f"s{k + 1}") for k, h in enumerate(ordered)}
    label = "cost {}" if len(families) > 1 else "cost"
    return Cost(
        families=tuple(
            replace(family, name=label.format(k + 1)) for k, (family, _) in enumerate(families)
        ),
        symbols=tuple(symbols.values()),
        formula=substitute(phi, symbols),
        rising=frozenset(symbols[names[h]] for h in ordered if not terms.affine(h)),
    )


def _normalised(h: Expression) -> tuple[Scalar, Expression]:
    """A sum as a factor times one that begins with 1, if float64 holds all its weights."""
    pairs = [coefficient(term) for term in addends(h)]
    factor = pairs[0][0]
    weights = [Fraction(weight) / Fraction(factor) for weight, _ in pairs]
    if any(exact_float(scalar(weight)) is None for weight in weights):
        return 1, h
    return factor, add(*(multiply(number(w), e) for w, (_, e) in zip(weights, pairs, strict=True)))


def cost_of(terms: Sequence[CostTerm], sums: Array) -> Array:
    """Return ``U(s)`` of sums along the last axis; what is not defined is NaN or infinite."""
    total = np.zeros(sums.shape[:-1])
    with np.errstate(all="ignore"):
        for term in terms:
            (values,) = tape([term.formula], term.symbols)(*(sums[..., o] for o in term.rows))
            total += values
    return total


def cost_terms(cost: Cost, rows: Sequence[int]) -> Iterator[CostTerm]:
    """Yield what groups of sums add to U; ``rows`` are the sums of its symbols, from 0."""
    place = dict(zip(cost.symbols, rows, strict=True))
    constant, varying = split_constant(cost.formula)
    groups: list[tuple[set[Expression], list[Expression]]] = []
    for term in addends(varying):
        joined = [g for g in groups if g[0] & term.symbols]
        groups = [g for g in groups if g not in joined]
        symbols = set(term.symbols).union(*(g[0] for g in joined))
        groups.append((symbols, [*(t for g in joined for t in g[1]), term]))
    for k, (symbols, terms) in enumerate(groups):
        ordered = tuple(s for s in cost.symbols if s in symbols)
        if len(ordered) > MOST_SUMS:
            raise ProblemError(
                f"cost must mix at most {MOST_SUMS} sums, got {len(ordered)}: state it as a sum of "
                "several"
            )
        yield CostTerm(
            rows=tuple(place[s] for s in ordered),
            symbols=ordered,
            formula=add(*terms, number(constant if k == 0 else 0)),
            rising=cost.rising.intersection(ordered),
        )


def _families(
    sums: Sequence[Expression], rows: Mapping[Expression, SumRow]
) -> Iterator[tuple[Constraint, list[Expression]]]:
    """The sums as rows, each family with those that it is of; a whole total is one family."""
    done: set[Expression] = set()
    for h in sums:
        if h in done:
            continue
        whole = [s for s, (part, _) in rows.items() if h in rows and part is rows[h][0]]
        complete = h in rows and len(whole) == rows[h][0].rows > 1 and set(whole) <= set(sums)
        if complete and done.isdisjoint(whole):
            done.update(whole)
            yield _family([rows[h][0]], ZERO), whole
            continue
        pairs = [coefficient(term) for term in addends(h)]
        parts: dict[str, FleetSum] = {}
        for factor, s in pairs:
            if s in rows:
                part = rows[s][0].only(rows[s][1])
                part = replace(part, terms=(multiply(number(factor), part.terms[0]),))
                name = part.group.name
                parts[name] = _add_sums(parts[name], part) if name in parts else part
        named = add(*(multiply(number(f), e) for f, e in pairs if e not in rows))
        yield _family([parts[name] for name in sorted(parts)], named), [h]


def _add_sums(one: FleetSum, other: FleetSum) -> FleetSum:
    """The sum of two rows over one fleet, as one row."""
    if one.weights is not None or other.weights is not None:
        raise ProblemError(
            f"cost must not add totals over {one.group.name} with weights inside one formula, got "
            "several: write one total with the weights of their sum"
        )
    return replace(one, terms=(add(one.terms[0], other.terms[0]),))


def _family(parts: Sequence[FleetSum], named: Expression) -> Constraint:
    return Constraint(
        name="cost",
        sums=tuple(parts),
        rest=(named,) if named.symbols else (),
        offset=read_only(np.zeros(parts[0].rows if parts else 1)),
    )


def row_keys(family: Constraint) -> list[object]:
    """Return what the rows of a family are, apart from their constants: equal rows, equal keys."""
    named = family.named or (ZERO,) * family.rows
    return [
        (
            frozenset(part.only(row).key for part in family.sums),
            canonical(split_constant(named[row])[1]),
        )
        for row in range(family.rows)
    ]
