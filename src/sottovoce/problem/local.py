"""What one agent alone must keep: its own convex set inside its public box.

    X_i = {x in B_i : c(x; p_i) <= 0, e(x; p_i) = 0, lower_i <= x <= upper_i}

Rows of ``local=[...]`` are private: they are in no ``CloudView``, and nothing that reaches the
cloud depends on them but through the noisy sums. Rows on one component become bounds at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce.errors import ConvexityError, InputError, ProblemError
from sottovoce.formula.canonical import expand
from sottovoce.formula.expression import Expression
from sottovoce.formula.tape import tape
from sottovoce.problem.agents import Array, Group, read_only, read_states
from sottovoce.problem.constraints import Constraint, Total
from sottovoce.problem.own_rows import component_bounds, rules_of
from sottovoce.problem.relations import Row, labelled_rows, read_row

_CLOSE = 1e-9  # how far off a row of a fallback may be, relative to the size of what it adds up


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalSet:
    """The set that each agent of one group stays in, beside its public box.

    Attributes:
        inequalities: convex ``c(x; p) <= 0`` in the group's symbols and parameters.
        equalities: affine ``e(x; p) = 0``.
        labels: the rows as they were written, inequalities first.
        lower: private lower bounds inside the public box, shape (count, d).
        upper: private upper bounds, likewise.
        stated: all private rows as they were written, those that became bounds too.
    """

    inequalities: tuple[Expression, ...]
    equalities: tuple[Expression, ...]
    labels: tuple[str, ...]
    lower: Array
    upper: Array
    stated: tuple[Row, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows each agent keeps beside its bounds."""
        return len(self.inequalities) + len(self.equalities)

    def plain(self, group: Group) -> bool:
        """Whether it is the public box of the group and nothing else."""
        same = self.lower is group.lower and self.upper is group.upper
        return not self.rows and (
            same or (np.array_equal(self.lower, group.lower)
                     and np.array_equal(self.upper, group.upper))
        )  # fmt: skip

    def of_agent(self, group: Group, place: int) -> LocalSet:
        """The set of agent ``place`` (from 0) of the group, parameters filled in."""
        if group.count == 1 and not group.parameters:
            return self
        return replace(
            self,
            inequalities=tuple(group.fill(c, place) for c in self.inequalities),
            equalities=tuple(group.fill(e, place) for e in self.equalities),
            lower=self.lower[place : place + 1],
            upper=self.upper[place : place + 1],
            stated=tuple(replace(r, g=group.fill(r.g, place)) for r in self.stated),
        )


def box_of(group: Group) -> LocalSet:
    """Return the set of agents that have their box and nothing else."""
    return LocalSet(inequalities=(), equalities=(), labels=(), lower=group.lower, upper=group.upper)


def local_rows(given: Any, groups: Sequence[Group]) -> dict[str, list[Row]]:
    """Return the rows of ``local=[...]`` by the group that each names.

    Raises:
        ProblemError: if a row is no comparison, or names no agent or two.
    """
    symbols = {s.name: s for g in groups for s in (*g.symbols, *g.parameters)}
    found: dict[str, list[Row]] = {group.name: [] for group in groups}
    for name, row in labelled_rows([] if given is None else given, "local"):
        where = f"local row {name}" if isinstance(given, Mapping) else "a local row"
        if isinstance(row, Constraint | Total):
            raise ProblemError(
                f"{where} must name one agent, got a total over a fleet, which couples its "
                "agents: write the row for one agent, such as ev.x.sum() >= "
                'ev["need"], or put it into constraints'
            )
        read = read_row(row, symbols, where)
        if isinstance(given, Mapping):
            read = replace(read, label=name)
        found[owner(read, groups, where).name].append(read)
    return found


def owner(row: Row, groups: Sequence[Group], where: str) -> Group:
    """Return the one group whose agents a row speaks of.

    Raises:
        ProblemError: if there is none, or more than one.
    """
    used = row.g.symbols
    named = [g for g in groups if used & {*g.symbols, *g.parameters}]
    if len(named) != 1:
        who = " and ".join(g.name for g in named)
        raise ProblemError(
            f"{where} must name one agent, got {who} in {row.label:.80}: what couples agents is a "
            "constraint, move it to constraints=[...]"
        )
    if not used & set(named[0].symbols):
        raise ProblemError(
            f"{where} must name the state of {named[0].name}, got {row.label}, which names its "
            "parameters alone: remove it"
        )
    return named[0]


def local_set(group: Group, public: Sequence[Row], private: Sequence[Row]) -> LocalSet:
    """Return what each agent of a group must keep.

    Args:
        group: the agents with their public boxes.
        public: rows that the cloud knows, on several components.
        private: rows that nobody else knows.

    Raises:
        ConvexityError: naming the row and the rule that failed.
        ProblemError: if no point between an agent's bounds meets a row on one component.
    """
    found = box_of(group)
    if not (public or private):
        return found
    found = replace(found, stated=tuple(private))
    rest = list(public)
    for row in public:
        require_convex_row(row, group, f"constraint {row.label}")
    # Bounds first: a private formula need be convex only where the agent can be.
    for row in sorted(private, key=lambda row: len(row.g.symbols & set(group.symbols))):
        where = f"local row {row.label}"
        require_convex_row(row, replace(group, lower=found.lower, upper=found.upper), where)
        ends = component_bounds(group, row, (found.lower, found.upper), where)
        if ends is None:
            rest.append(row)
        else:
            found = replace(found, lower=read_only(ends[0]), upper=read_only(ends[1]))
    kept = [row for row in (*public, *private) if row in rest]
    bent, flat = [r for r in kept if not r.equality], [r for r in kept if r.equality]
    return replace(
        found,
        inequalities=tuple(r.g for r in bent),
        equalities=tuple(expand(r.g) for r in flat),
        labels=tuple(r.label for r in (*bent, *flat)),
    )


def require_convex_row(row: Row, group: Group, where: str) -> None:
    """Refuse a row whose solutions the rules do not show to be a convex set.

    Raises:
        ConvexityError: naming the row and the rule that failed.
    """
    rules = rules_of(group)
    if row.equality:
        if not rules.affine(row.g):
            raise ConvexityError(
                f"{where} must be affine to be an equality: only then are its solutions a convex "
                "set; write <= or >="
            )
        return
    found = rules.of(row.g)
    if not found.is_convex:
        c = str(row.g)
        why = found.why or f"{c} is concave"
        raise ConvexityError(
            f"{where} must be convex, c(x) <= 0 with c convex, got c = {c}: {why}; restate it with "
            "convex terms on the smaller side"
        )


def fed(local: Sequence[LocalSet]) -> Iterator[Any]:
    """Yield what a fingerprint of local sets is made of."""
    for own in local:
        for row in own.stated:
            yield (row.g, row.equality)


def require_no_rows(local: Sequence[LocalSet]) -> None:
    """Refuse sets with rows: a gradient step ends in a box.

    Raises:
        InputError: naming the first row.
    """
    for own in local:
        if own.rows:
            raise InputError(
                "gradient steps keep agents in boxes, got the local row "
                f"{own.labels[0]:.80}: use the default algorithm"
            )


def read_fallback(given: Any, group: Group, own: LocalSet) -> Array | None:
    """Return what the agents of a group apply without an answer, shape (count, d), if it is said.

    Args:
        given: one state for all of them, or one for each.
        group: the agents.
        own: the set that each of them keeps to.

    Raises:
        ProblemError: if it is no such state; the values stay unsaid, they are private.
    """
    if given is None:
        return None
    points = read_states("fallback", given, group)
    inside = np.all((points >= own.lower) & (points <= own.upper), axis=1)
    inside &= np.all(_off(group, own, points) <= 0.0, axis=1)
    if not inside.all():
        place = int(np.argmin(inside))
        raise ProblemError(
            f"fallback of {group.label(place)} must lie in its own set, bounds and local rows, got "
            "a state that does not: it is applied when there is no answer"
        )
    return points


def _off(group: Group, own: LocalSet, points: Array) -> Array:
    """How much each row is off beyond rounding, shape (count, rows)."""
    values = [*points.T, *group.parameters.values()]
    rows = tape((*own.inequalities, *own.equalities), (*group.symbols, *group.parameters))
    found = np.stack([np.zeros(group.count), *rows.arrays(values, (group.count,))], axis=1)[:, 1:]
    equal = len(own.inequalities)
    found[:, equal:] = np.abs(found[:, equal:])
    size = np.abs(values).sum(axis=0)
    beyond = found - _CLOSE * (1.0 + size[:, np.newaxis])
    return np.where(np.isfinite(beyond), beyond, np.inf)
