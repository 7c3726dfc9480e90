"""What one agent alone must keep: its own convex set inside its public box.

    X_i = {x in B_i : c(x; p_i) <= 0, e(x; p_i) = 0, lower_i <= x <= upper_i}

Rows of ``local=[...]`` are private: they are in no ``CloudView``, and nothing that reaches the
cloud depends on them but through the noisy sums. Rows on one component become bounds at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sottovoce.arguments import entries
from sottovoce.errors import InputError, ProblemError
from sottovoce.formula.canonical import expand
from sottovoce.formula.expression import Expression
from sottovoce.problem.agents import Array, Group, read_only, read_states
from sottovoce.problem.constraints import Constraint, Total
from sottovoce.problem.own_rows import component_bounds, require_convex_row
from sottovoce.problem.stating import Row, read_row, written_rows


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

    def some(self, places: NDArray[np.int64]) -> LocalSet:
        """The sets of the agents ``places`` (from 0)."""
        return replace(self, lower=self.lower[places], upper=self.upper[places])

    def of_agent(self, group: Group, place: int) -> LocalSet:
        """The set of agent ``place`` (from 0) of the group, parameters filled in."""
        if group.count == 1 and not group.parameters:
            return self
        return replace(
            self.some(np.array([place])),
            inequalities=tuple(group.fill(c, place) for c in self.inequalities),
            equalities=tuple(group.fill(e, place) for e in self.equalities),
            stated=tuple(replace(r, g=group.fill(r.g, place)) for r in self.stated),
        )


def box_of(group: Group) -> LocalSet:
    """Return the set of agents that have their box and nothing else."""
    return LocalSet(inequalities=(), equalities=(), labels=(), lower=group.lower, upper=group.upper)


def local_rows(given: object, groups: Sequence[Group]) -> dict[str, list[Row]]:
    """Return the rows of ``local=[...]`` by the group that each names.

    Raises:
        ProblemError: if a row is no comparison, or names no agent or two.
    """
    symbols = {s.name: s for g in groups for s in (*g.symbols, *g.parameters)}
    found: dict[str, list[Row]] = {group.name: [] for group in groups}
    for written in written_rows([] if given is None else given, "local"):
        where = f"local row {written.name}" if written.named else "a local row"
        if isinstance(written.row, Constraint | Total):
            raise ProblemError(
                f"{where} must name one agent, got a total over a fleet, which couples its "
                "agents: write the row for one agent, such as ev.x.sum() >= "
                'ev["need"], or put it into constraints'
            )
        read = read_row(written.row, symbols, where)
        if written.named:
            read = replace(read, written=written.name)
        group = owner(read, groups, where)
        read = replace(read, g=group.fill(read.g)) if group.count == 1 else read
        found[group.name].append(read)
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
        private: rows that only their agents know.

    Raises:
        ConvexityError: naming the row and the rule that failed.
        ProblemError: if no point between an agent's bounds meets a row on one component.
    """
    found = box_of(group)
    if not (public or private):
        return found
    found = replace(found, stated=tuple(private))
    rest = list(public)
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


def fed(local: Sequence[LocalSet]) -> Iterator[tuple[Expression, bool]]:
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


def per_group(what: str, given: object, groups: Sequence[Group]) -> list[object]:
    """Return what is stated per agent or fleet, None for each where it is not stated.

    Raises:
        ProblemError: if there are more entries than agents and fleets, or fewer.
    """
    listed: list[object] = [None] * len(groups)
    if given is not None:
        listed = entries(what, given, "a list with one entry per agent or fleet")
    if len(listed) != len(groups):
        raise ProblemError(
            f"{what} must have one entry per agent or fleet ({len(groups)}), got {len(listed)}"
        )
    return listed


def read_start(given: object, group: Group) -> Array:
    """Return where the agents of a group start, shape (count, d): by default nearest to 0."""
    if given is None:
        same = not (group.lower.strides[0] or group.upper.strides[0])
        some = slice(1) if same else slice(None)
        return read_states("start", np.clip(0.0, group.lower[some], group.upper[some]), group)
    array = read_states("start", given, group)
    if not np.all((array >= group.lower) & (array <= group.upper)):
        raise ProblemError(f"start of {group.name} must lie in its box: move it inside the bounds")
    return array
