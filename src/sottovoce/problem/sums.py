"""The sums that couple agents, and their public set: ``s(x) = sum_i h_i(x_i)`` must lie in C.

Every stated constraint becomes some sums of terms that name one agent each, and a set that these
sums must lie in: an interval where the terms already are a sum, a region ``{phi(u) <= 0}`` of
several sums where the constraint mixes agents. Only noisy sums are ever released, so that of
several ways to write a constraint the one with the fewest sums is taken.

    as it is written                       sums                      C
    sum_i h_i(x_i) <= b                    that sum                  s <= b
    a'x == b                               a'x                       s = b
    log(sum_i h_i) <= c, sqrt(...) <= c    sum_i h_i                 s <= e^c, s <= c^2
    (a'x)^2 <= c                           a'x                       -sqrt(c) <= s <= sqrt(c)
    x'Qx + q'x <= c                        U x with U'U = Q          |u - m|^2 <= r^2
    Phi(a'x, b'x, ...) + sum_i h_i <= c    a'x, b'x, ..., sum_i h_i  Phi(u) + v <= c

The last row always works: a state by itself is such an ``a'x``. Constraints that name one agent
need no sum, no multiplier and no release: they belong to the agent's own set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import (
    add,
    addends,
    expand,
    multiply,
    negate,
    split_constant,
    substitute,
    subtract,
)
from sottovoce.formula.derive import is_affine, is_smooth, quadratic_form
from sottovoce.formula.expression import ZERO, Expression, exact_sum, number, symbol
from sottovoce.problem.constraints import Constraint, numbered, row_labels
from sottovoce.problem.costs import Cost, CostTerm, cost_terms, row_keys
from sottovoce.problem.decompose import (
    AS_STATED,
    Owners,
    compose_affine,
    decompose,
    require_affine,
    separate,
)
from sottovoce.problem.fleets import fleets_of
from sottovoce.problem.groups import Array, Group, read_only
from sottovoce.problem.linear_rows import Linear, coefficients, entries_of, read_linear
from sottovoce.problem.local import component_bounds, require_convex_row, rules_of
from sottovoce.problem.stating import Row


@final
class SplitConstraints:
    """Constraints by who has to keep them: rows that name one agent, and those that couple agents.

    The former belong to the set of the agent, or of every agent of the fleet: as a bound if they
    are on one component. A row of a named agent that the rules do not show to be convex stays a
    constraint with a price, which a certificate may prove convex.

    Attributes:
        coupling: the constraints that couple agents: weights where a family is linear, formulas
            elsewhere.
        separable: those that name one agent, or the agents of one fleet one by one, a row each.
    """

    def __init__(self, stated: Sequence[Group], families: Sequence[Constraint]) -> None:
        self._boxes = {group.name: group for group in stated}
        self._owner = {s: g.name for g in stated for s in (*g.symbols, *g.parameters)}
        self._local_rows: dict[str, list[Row]] = {group.name: [] for group in stated}
        self.coupling: list[Constraint] = []
        self.separable: list[Constraint] = []
        single = (group for group in stated if group.count == 1)
        numbers = {s: number(float(a[0])) for g in single for s, a in g.parameters.items()}
        for family in families:
            rest = tuple(substitute(e, numbers) for e in family.rest)
            for part in _normal_form(replace(family, rest=rest)):
                self._split(part)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The agents with their smaller boxes; a fleet of one has numbers for parameters."""
        return tuple(replace(g, parameters={}) if g.count == 1 else g for g in self._boxes.values())

    @property
    def local_rows(self) -> tuple[tuple[Row, ...], ...]:
        """Of ``separable``, per group, the rows that are no bounds: its agents' sets have them."""
        return tuple(map(tuple, self._local_rows.values()))

    def _split(self, part: Constraint) -> None:
        if part.sums:
            self.coupling += _without_single(part)
            return
        owners = self._owners(part)
        if all(len(names) > 1 for names in owners):
            self.coupling.append(part)
            return
        for r, names in enumerate(owners):
            row = part if part.rows == 1 else part.only(r)
            if not names:
                raise ProblemError(
                    f"constraint {row.name} must name a state, got one whose coefficients are all "
                    "0: remove it"
                )
            if len(names) > 1 or not self._absorb(row, *names):
                self.coupling.append(row)

    def _owners(self, family: Constraint) -> list[set[str]]:
        """Whose states each row names."""
        if family.linear is None:
            return [{self._owner[s] for s in g.symbols} for g in family.rest]
        names, column = [self._owner[s] for s in family.linear.symbols], family.linear.column
        return [{names[c] for c in column[a:b]} for a, b in pairwise(family.linear.indptr)]

    def _absorb(self, stated: Constraint, name: str) -> bool:
        """Give a row to the set of the one agent, or fleet, that it names; False if it stays."""
        group, where = self._boxes[name], f"constraint {stated.name}"
        (g,) = stated.formulas
        row = Row(g=g, equality=stated.equality, written=stated.name)
        if stated.linear is None:
            rules = rules_of(group)
            if not (rules.affine(g) if row.equality else rules.curvature(g).is_convex):
                if group.count == 1:
                    return False
                require_convex_row(row, group, where)
        self.separable.append(replace(stated, rest=stated.named, linear=None))
        ends = component_bounds(group, row, (group.lower, group.upper), where)
        if ends is None:
            self._local_rows[name].append(row)
        else:
            lower, upper = map(read_only, ends)
            self._boxes[name] = replace(group, lower=lower, upper=upper)
        return True


def _normal_form(family: Constraint) -> list[Constraint]:
    """Rows as they are kept: weights where all are linear, formulas one by one elsewhere."""
    if family.sums:  # constants in the offset, as files have them
        split = [split_constant(g) for g in family.named]
        sides = zip([c for c, _ in split], family.offset.tolist(), strict=bool(split))
        offset = read_only([float(exact_sum(side)) for side in sides]) if split else family.offset
        return [replace(family, rest=tuple(g for _, g in split), linear=None, offset=offset)]
    if not family.rest:
        return [family]
    whole = replace(family, rest=family.named, linear=None)
    read = read_linear(whole.rest)
    if read is not None:
        linear, constants = read
        offset = read_only(family.offset + constants)
        return [replace(whole, rest=(), linear=linear, offset=offset)]
    if family.rows == 1:  # the constant inside, as text has it
        return [replace(whole, rest=whole.formulas, offset=read_only([0.0]))]
    return [part for r in range(family.rows) for part in _normal_form(whole.only(r))]


def _without_single(family: Constraint) -> list[Constraint]:
    """A family with sums over fleets of one as formulas of these agents."""
    single = [part for part in family.sums if part.group.count == 1]
    if not single:
        return [family]
    rows = [family.rest] if family.rest else []
    for part in single:
        terms = [part.group.fill(h) for h in part.terms]
        weights = np.ones((1, 1)) if part.weights is None else part.weights
        column = weights if isinstance(weights, np.ndarray) else weights.toarray()
        rows.append(tuple(multiply(number(w), h) for w in column[:, 0].tolist() for h in terms))
    rest = tuple(add(*terms) for terms in zip(*rows, strict=True))
    sums = tuple(part for part in family.sums if part.group.count > 1)
    return _normal_form(replace(family, sums=sums, rest=rest))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Region:
    """Sums that a public convex set holds together: ``phi(u) <= 0``."""

    name: str  # the label of the stated constraint
    stated: int  # its row of g, from 0
    rows: tuple[int, ...]  # the sums u, from 0, which phi calls ``symbols``
    symbols: tuple[Expression, ...]
    phi: Expression  # convex, and nondecreasing in every sum whose terms are not affine


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which sums a family of stated constraints became."""

    name: str
    first: int  # its first sum, from 0, of ``count``; that of row r is at ``first + r``
    count: int
    as_stated: bool  # whether its rows were sums already, so that their prices are its multipliers
    how: str  # how it was written as sums, in words


@dataclass(frozen=True, kw_only=True, eq=False)
class Sums:
    """The sums that couple agents and the set C that they must lie in."""

    # rows ``sum_i h_i(x_i)``, in order; their offsets are 0, and every term of a formula over named
    # agents names one of them
    families: tuple[Constraint, ...]
    lower: Array  # least value of each sum, shape (p,); minus infinity where C has no such bound
    upper: Array  # largest value, likewise
    regions: tuple[Region, ...]  # disjoint; a sum in a region has no bounds
    origins: tuple[Origin, ...]  # for each stated family, which sums it became and why
    costs: tuple[CostTerm, ...] = ()  # of disjoint groups of sums, none of them in a region

    @property
    def count(self) -> int:
        """The number of sums p."""
        return int(self.lower.size)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels of the sums, in order."""
        return tuple(row_labels(self.families))

    @property
    def free(self) -> bool:
        """Whether all stated constraints were sums already, so that prices are multipliers."""
        return not self.costs and all(origin.as_stated for origin in self.origins)


def sums_of(
    groups: Sequence[Group], constraints: Sequence[Constraint], cost: Cost | None = None
) -> Sums:
    """Write all constraints as sums and a public set, and the public cost as a function of sums."""
    owners = {s: group.name for group in groups if group.count == 1 for s in group.symbols}
    sums = _SumsBuilder(owners)
    for stated in constraints:
        if stated.sums or stated.linear is not None:
            sums.add_sums(stated)
        else:
            sums.add_formula(stated)
    if cost is not None:
        sums.add_cost(cost)
    return Sums(
        families=tuple(sums.families),
        lower=read_only(np.concatenate(sums.lower)),
        upper=read_only(np.concatenate(sums.upper)),
        regions=tuple(sums.regions),
        origins=tuple(sums.origins),
        costs=tuple(sums.costs),
    )


def contributions(sums: Sums, group: Group) -> Mapping[int, Expression]:
    """Return ``h_oi`` of a named agent by the sums o, from 0, that it takes part in."""
    states = set(group.symbols)
    by_sum: dict[int, Expression] = {}
    for first, family in numbered(sums.families):
        for row, formula in enumerate(family.rest):
            terms = [t for t in addends(formula) if t.symbols & states]
            if terms:
                by_sum[first + row] = add(*terms)
        if family.linear is not None:
            own_part = family.linear.select(states)
            rows = np.flatnonzero(np.diff(own_part.indptr)).tolist()
            by_sum |= {first + r: own_part.formula(r) for r in rows}
    return dict(sorted(by_sum.items()))


def agents_of(sums: Sums, groups: Sequence[Group]) -> NDArray[np.int64]:
    """Return how many agents each sum is over, shape (p,)."""
    count = np.zeros(sums.count, dtype=np.int64)
    for fleet in fleets_of(groups, sums.families):
        for part in fleet.sums:  # not ``fleet.parts()``, which loads SciPy
            weights = np.ones((1, fleet.group.count)) if part.weights is None else part.weights
            row, _, _ = entries_of(weights)
            terms = 1 if part.table else len(part.terms)
            for t in range(terms):
                np.add.at(count, part.row + row * terms + t, 1)
    return count


@final
class _SumsBuilder:
    """Adds one family of constraints after the other; ``owners`` has the agent of each state."""

    def __init__(self, owners: Owners) -> None:
        self.owners = owners
        self.families: list[Constraint] = []
        self.lower: list[Array] = []
        self.upper: list[Array] = []
        self.regions: list[Region] = []
        self.origins: list[Origin] = []
        self.costs: list[CostTerm] = []
        self.rows = 0
        self.stated = 0

    def add_formula(self, stated: Constraint) -> None:
        """One row, a formula over named agents."""
        (g,), first = stated.formulas, self.rows
        parts = decompose(g, self.owners, name=stated.name, equality=stated.equality)
        if parts.phi is not None:
            self._add_region(stated, 0, range(first, first + len(parts.sums)), *parts.phi)
        self._family(stated.name, parts.sums, np.array(parts.lower), np.array(parts.upper))
        self._record_origin(stated, first, parts.how, as_stated=parts.as_stated)

    def add_sums(self, stated: Constraint) -> None:
        """Rows that are sums already, but for what mixes named agents beside fleets."""
        if stated.equality:
            for row in range(stated.rows):
                _require_affine_row(stated, row)
        first, none = self.rows, np.full(stated.rows, np.inf)
        rest = [_multiplied_out(formula, self.owners) for formula in stated.rest]
        split = [separate(formula, self.owners) for formula in rest]
        constants = np.array([float(c) for _, c, _ in split] or np.zeros(stated.rows))
        mixing = {
            row: compose_affine(rest[row], self.owners) for row, (*_, m) in enumerate(split) if m
        }
        high = 0.0 - (stated.offset + constants)  # no -0.0, which people would read
        low = high.copy() if stated.equality else -none
        high[list(mixing)] = np.inf
        sums = replace(stated, offset=read_only(np.zeros(stated.rows)), equality=False)
        if rest:
            separable = [
                mixing[row].rest if row in mixing else add(*parts.values())
                for row, (parts, _, _) in enumerate(split)
            ]
            nonlinear, linear = _take_out_linear(separable, self.owners)
            sums = replace(sums, rest=nonlinear, linear=linear)
        self._add_family(sums, low, high)
        for row, mixture in mixing.items():
            v, count = symbol("total"), len(mixture.names)
            rows = (first + row, *range(self.rows, self.rows + count))
            phi = add(mixture.phi, v, number(stated.offset[row]))
            self._add_region(stated, row, rows, (v, *mixture.names.values()), phi)
            free = np.full(count, np.inf)
            self._family(f"{stated.label(row)} mixed", tuple(mixture.names), -free, free)
        how = AS_STATED if stated.rows == 1 else f"{stated.rows} sums as stated"
        if mixing:
            how = f"{self.rows - first} sums: over the fleet, and of what mixes agents beside it"
        self._record_origin(stated, first, how, as_stated=not mixing)

    def add_cost(self, cost: Cost) -> None:
        """The sums of a cost; those that a constraint bounds already are shared with it."""
        keys = [key for family in self.families for key in row_keys(family)]
        inside = {row for region in self.regions for row in region.rows}
        places = {key: (row, 1) for row, key in enumerate(keys) if row not in inside}
        for first, family in numbered(self.families):  # total >= 2 is -total <= -2
            places |= {
                key: (first + r, -1)
                for r, key in enumerate(row_keys(family.times(-1.0)))
                if first + r not in inside and key not in places
            }
        rows: list[int] = []
        negative: dict[Expression, Expression] = {}
        for stated in cost.families:
            stated_keys = row_keys(stated)
            symbols = cost.symbols[len(rows) : len(rows) + stated.rows]
            signs = {places[key][1] for key in stated_keys if key in places}
            if all(key in places for key in stated_keys) and (
                signs == {1} or cost.rising.isdisjoint(symbols)
            ):
                rows += [places[key][0] for key in stated_keys]
                pairs = zip(symbols, stated_keys, strict=True)
                negative |= {s: negate(s) for s, key in pairs if places[key][1] < 0}
                continue
            rows += range(self.rows, self.rows + stated.rows)
            for family in _without_single(stated):
                rest, linear = family.rest, family.linear
                if linear is None:
                    rest, linear = _take_out_linear(rest, self.owners)
                free = np.full(family.rows, np.inf)
                self._add_family(replace(family, rest=rest, linear=linear), -free, free)
        formula = substitute(cost.formula, negative)
        self.costs += cost_terms(replace(cost, formula=formula), rows)

    def _record_origin(self, stated: Constraint, first: int, how: str, *, as_stated: bool) -> None:
        count = self.rows - first
        self.origins.append(
            Origin(name=stated.name, first=first, count=count, as_stated=as_stated, how=how)
        )
        self.stated += stated.rows

    def _add_region(
        self,
        stated: Constraint,
        row: int,
        rows: Sequence[int],
        symbols: tuple[Expression, ...],
        phi: Expression,
    ) -> None:
        if not is_smooth(phi):
            raise ProblemError(
                f"constraint {stated.label(row)} must not mix agents inside a norm or Huber's "
                f"function beside other terms, got {stated.rest[row]}: bound the norm by itself, "
                "or write it with squares"
            )
        self.regions.append(
            Region(
                name=stated.label(row),
                stated=self.stated + row,
                rows=tuple(rows),
                symbols=symbols,
                phi=phi,
            )
        )

    def _family(self, name: str, sums: Sequence[Expression], low: Array, high: Array) -> None:
        offset = read_only(np.zeros(len(sums)))
        rest, linear = _take_out_linear(sums, self.owners)
        family = Constraint(name=name, sums=(), rest=rest, offset=offset, linear=linear)
        self._add_family(family, low, high)

    def _add_family(self, family: Constraint, lower: Array, upper: Array) -> None:
        self.families.append(family)
        self.lower.append(lower)
        self.upper.append(upper)
        self.rows += family.rows


def _take_out_linear(
    formulas: Sequence[Expression], owners: Owners
) -> tuple[tuple[Expression, ...], Linear | None]:
    """Take what agents add that is linear out of formulas; what is left, or nothing, and it."""
    rest: list[Expression] = []
    linear_part: list[Expression] = []
    for formula in formulas:
        parts = separate(formula, owners)[0].values()
        linear_terms = [part for part in parts if coefficients(part) is not None]
        linear_part.append(add(*linear_terms))
        rest.append(subtract(formula, linear_part[-1]) if len(linear_terms) < len(parts) else ZERO)
    read = read_linear(linear_part)
    if read is None or all(h.is_zero for h in linear_part):
        return tuple(formulas), None
    return (() if all(h.is_zero for h in rest) else tuple(rest)), read[0]


def _multiplied_out(formula: Expression, owners: Owners) -> Expression:
    """A formula multiplied out if that is all it takes to separate agents."""
    expanded = expand(formula)
    return formula if separate(expanded, owners)[2] else expanded


def _require_affine_row(stated: Constraint, row: int) -> None:
    terms = [part.terms[row % len(part.terms)] for part in stated.sums]
    states = {s for part in stated.sums for s in part.group.symbols}
    for formula in (*stated.rest[row : row + 1], *terms):
        if not is_affine(expand(formula), formula.symbols & states or formula.symbols):
            require_affine(stated.label(row), formula)


def ball_of(region: Region) -> tuple[list[float], float] | None:
    """Return the centre and radius of the region if it is a ball."""
    form = quadratic_form(region.phi)
    if form is None or len(form.symbols) < len(region.symbols):
        return None
    weight = form.quadratic[0][0]
    same = all(
        entry == (weight if i == j else 0)
        for i, row in enumerate(form.quadratic)
        for j, entry in enumerate(row)
    )
    if weight <= 0 or not same:
        return None
    centre = {s: -q / (2 * weight) for s, q in zip(form.symbols, form.linear, strict=True)}
    square = sum(m * m for m in centre.values()) - form.constant / weight
    if square < 0:
        return None
    return [float(centre[s]) for s in region.symbols], math.sqrt(square)
