"""Public costs: one convex function U of sums over agents, which everybody knows.

    minimise  sum_i f_i(x_i) + U(s),    s_o = sum_i h_oi(x_i),    h affine

U is read as a function of as few sums as it takes, and adds up over groups of them that share no
sum. A group is smooth, or depends on one sum alone, or is one of two kinds with kinks:

    psi(u) + w max(c_1 u_1 + b_1, ..., c_m u_m + b_m, floor)      psi smooth and separable
    w ||u - c||
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import (
    add,
    addends,
    canonical,
    coefficient,
    multiply,
    pieces_of,
    split_constant,
    substitute,
    subtract,
)
from sottovoce.formula.curvature import curvature
from sottovoce.formula.derive import is_affine, is_smooth
from sottovoce.formula.enclosure import domain_conditions
from sottovoce.formula.expression import ZERO, Expression, Op, Scalar, number, scalar, symbol
from sottovoce.formula.order import in_order
from sottovoce.formula.tape import tape
from sottovoce.problem.agents import Agents, Array, Group, RowName, owners, read_only, rewritten
from sottovoce.problem.constraints import Constraint, FleetSum, row_symbols, without_rows
from sottovoce.problem.decompose import merge_rounded_sums, name_affine, reduce_to_basis
from sottovoce.problem.fingerprint import fingerprint
from sottovoce.problem.linear_rows import exact_float

MOST_SUMS = 128  # as in kernels.core.prices: a day has 96 quarter-hours
SumRow: TypeAlias = tuple[FleetSum, int]  # a row of a sum over a fleet


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cost:
    """A public cost as it was stated."""

    families: tuple[Constraint, ...]  # the sums, rows without a bound
    symbols: tuple[Expression, ...]  # what ``formula`` calls them, one per row
    formula: Expression  # U


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostTerm:
    """What one group of sums adds to U."""

    rows: tuple[int, ...]  # the sums u, from 0, which the formulas call ``symbols``
    symbols: tuple[Expression, ...]
    formula: Expression  # all that they add to U
    smooth: Expression  # psi; with one sum all of it
    peak: tuple[tuple[float, float], ...] = ()  # ``(w c_i, w b_i)`` of every sum; empty without one
    floor: float = -math.inf  # what the maximum is at least, times w
    center: tuple[float, ...] = ()  # c of a norm; empty without one
    weight: float = 0.0  # its w, 0 without one

    @property
    def everywhere(self) -> bool:
        """Whether it is convex and defined for all numbers, not only where its sums can be."""
        return curvature(self.formula).is_convex and not domain_conditions(self.formula)


def plain_cost(formula: Expression, named: Set[Agents]) -> Expression:
    """Return a cost in plain symbols; the same total stated twice is one.

    Totals over the agents ``named``, which are stated one by one, are written out.
    """
    formula = rewritten(without_rows(formula, named), {})
    known: dict[object, FleetSum] = {}
    values: dict[Expression, Expression] = {}
    for s in row_symbols(formula):
        part = s.value.part
        group = next((a.fleet for a in owners(part.terms)), part.group)
        plain = replace(part.mapped(lambda h: canonical(rewritten(h, {}))), group=group)
        plain = known.setdefault(sum_key(plain), plain)
        place = list(known.values()).index(plain) + 1
        values[s] = symbol(RowName(f"total {place}[{s.value.row + 1}]", plain, s.value.row))
    return canonical(rewritten(formula, values) if values else formula)


def read_cost(formula: Expression, groups: Sequence[Group]) -> Cost:
    """Return ``cost=``, in plain symbols, as a function of sums."""
    rows: dict[Expression, SumRow] = {s: (s.value.part, s.value.row) for s in row_symbols(formula)}
    owner = {s: g.name for g in groups if g.count == 1 for s in g.symbols}
    for s in in_order(formula.symbols):
        if s not in owner and s not in rows:
            raise ProblemError(
                f"cost must be a function of sums over agents, got {s}: add over a fleet with "
                "sv.total(...)"
            )
    if not formula.symbols:
        raise ProblemError(f"cost must depend on sums over agents, got {formula}: remove it")
    straight = [t for t in addends(formula) if is_affine(t, t.symbols)]
    for term in (*(t for t in addends(formula) if t not in set(straight)), add(*straight)):
        names = {owner.get(s, s) for s in term.symbols}
        if len(names) == 1 and not names & rows.keys():
            raise ProblemError(
                f"cost must be a function of sums over agents, got the term {term} of "
                f"{names.pop()} alone: put it into its objective"
            )
    for part, row in rows.values():
        h = part.terms[row % len(part.terms)]
        if not part.enters[row]:
            raise ProblemError(
                f"cost must be a function of sums that agents enter, got row {row + 1} of a total "
                f"over {part.group.name} whose weights are all 0: remove it"
            )
        if not is_affine(h, part.group.symbols):
            raise ProblemError(
                f"cost must be a function of sums of affine terms, got a total of {h}: put what "
                "an agent pays by itself into its objective"
            )
    parts: dict[Expression, Expression] = {}
    phi = name_affine(formula, parts)
    try:
        return _cost_of_sums(*merge_rounded_sums(*reduce_to_basis(parts, phi)), rows)
    except ProblemError:  # of fewer sums some are combinations, which a kink may not mix
        return _cost_of_sums(parts, phi, rows)


def _cost_of_sums(
    names: Mapping[Expression, Expression], phi: Expression, rows: Mapping[Expression, SumRow]
) -> Cost:
    """A cost phi of the sums ``names``; of proportional sums one is kept."""
    known: dict[Expression, Expression] = {}
    values: dict[Expression, Expression] = {}
    for h, u in names.items():
        factor, unit = _normalised(h)
        values[u] = multiply(number(factor), known.setdefault(unit, u))
    names, phi = known, substitute(phi, values)
    place = {s: k for k, s in enumerate(rows)}
    sums = sorted(names, key=lambda h: place.get(h, len(place)))
    # By content: the same cost, written in another order, is one.
    families = sorted(_families(sums, rows), key=lambda pair: fingerprint(pair[0]))
    ordered = [h for _, members in families for h in members]
    symbols = {names[h]: symbol(f"s{k + 1}") for k, h in enumerate(ordered)}
    label = "cost {}" if len(families) > 1 else "cost"
    cost = Cost(
        families=tuple(
            replace(family, name=label.format(k + 1)) for k, (family, _) in enumerate(families)
        ),
        symbols=tuple(symbols.values()),
        formula=substitute(phi, symbols),
    )
    list(cost_terms(cost, range(len(symbols))))  # refuses what no prox is known of
    return cost


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
        formula = add(*terms, number(constant if k == 0 else 0))
        if len(ordered) > MOST_SUMS:
            raise ProblemError(
                f"cost must mix at most {MOST_SUMS} sums, got {len(ordered)}: state it as a sum of "
                "several"
            )
        yield replace(_kind(formula, ordered), rows=tuple(place[s] for s in ordered))


def _kind(formula: Expression, symbols: tuple[Expression, ...]) -> CostTerm:
    plain = CostTerm(rows=(), symbols=symbols, formula=formula, smooth=formula)
    if len(symbols) == 1 or is_smooth(formula):
        return plain
    kinked = [t for t in addends(formula) if not is_smooth(t)]
    factor, inner = coefficient(kinked[0])
    smooth = subtract(formula, kinked[0])
    if len(kinked) == 1 and factor > 0 and is_smooth(smooth):
        weight = float(factor)
        if inner.op == Op.MAX and all(len(t.symbols) <= 1 for t in addends(smooth)):
            peak = _peak(inner, symbols, weight)
            if peak is not None:
                return replace(plain, smooth=smooth, peak=peak[0], floor=peak[1])
        if inner.op == Op.NORM and not smooth.symbols:
            norm = _norm(inner, symbols)
            if norm is not None:
                return replace(plain, smooth=smooth, center=norm[0], weight=weight * norm[1])
    raise ProblemError(
        f"cost must be smooth where it mixes sums, or a maximum of sums beside smooth costs of "
        f"single sums, or the norm of sums alone, got {formula!r:.80}: write it with these"
    )


def _peak(
    inner: Expression, symbols: tuple[Expression, ...], weight: float
) -> tuple[tuple[tuple[float, float], ...], float] | None:
    """The slope and the offset of every sum in a maximum, and its constant piece."""
    pieces: dict[Expression, tuple[float, float]] = {}
    floor = -math.inf
    for piece in pieces_of(inner):
        offset, part = split_constant(piece)
        if not part.symbols:
            floor = max(floor, weight * float(offset))
            continue
        slope, u = coefficient(part)
        if not u.is_symbol or u in pieces:
            return None
        pieces[u] = weight * float(slope), weight * float(offset)
    return tuple(pieces.get(s, (0.0, 0.0)) for s in symbols), floor


def _norm(
    inner: Expression, symbols: tuple[Expression, ...]
) -> tuple[tuple[float, ...], float] | None:
    """The centre of a norm of differences, and by what all of them are multiplied."""
    center: dict[Expression, float] = {}
    sizes = set()
    for part in inner.args:
        offset, varying = split_constant(part)
        slope, u = coefficient(varying)
        if not u.is_symbol or u in center:
            return None
        center[u] = -float(offset) / float(slope)
        sizes.add(abs(float(slope)))
    if len(sizes) != 1:
        return None
    return tuple(center[s] for s in symbols), sizes.pop()


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


def sum_key(part: FleetSum) -> object:
    """Return what a sum over a fleet is: the same for the same total, stated twice."""
    weights = part.weights
    if weights is not None and weights.shape[0] == 1 and np.all(weights == 1.0):
        weights = None
    if weights is not None:
        weights = (weights if isinstance(weights, np.ndarray) else weights.toarray()).tobytes()
    return part.group.name, tuple(map(canonical, part.terms)), weights


def row_keys(family: Constraint) -> list[object]:
    """Return what the rows of a family are, apart from their constants: equal rows, equal keys."""
    named = family.named or (ZERO,) * family.rows
    return [
        (
            frozenset(sum_key(part.only(row)) for part in family.sums),
            canonical(split_constant(named[row])[1]),
        )
        for row in range(family.rows)
    ]
