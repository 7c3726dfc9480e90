"""Entries of dg/dx, by who knows them: everybody, the agent itself, or only the cloud."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sottovoce.formula.derive import gradient
from sottovoce.formula.expression import Expression
from sottovoce.problem.agents import Group
from sottovoce.problem.problem import CloudView

EntryKind = Literal["public", "own", "released"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientEntry:
    """One entry ``d g_row / d x_column`` that is not zero everywhere.

    Attributes:
        row: the constraint, from 0.
        column: the component of the state vector of all agents, from 0. For a fleet, the
            component of its first agent: one entry stands for all agents of the fleet.
        agent: the agent it belongs to, from 0; the first agent of a fleet.
        kind: "public", a constant that everybody knows; "own", a public formula in the agent's own
            state, evaluated locally; "released", moved by other agents, so that the cloud must
            send it with noise.
        formula: the derivative.
    """

    row: int
    column: int
    agent: int
    kind: EntryKind
    formula: Expression


def gradient_entries(cloud: CloudView) -> tuple[GradientEntry, ...]:
    """Classify every entry of ``dg/dx``, named agents first row by row, then sums over fleets."""
    return tuple(sorted(_entries(cloud), key=lambda e: (e.row, e.column)))


def _entries(cloud: CloudView) -> Iterator[GradientEntry]:
    places: dict[str, tuple[int, int, Group]] = {}
    column = agent = 0
    for group in cloud.groups:
        places[group.name] = (column, agent, group)
        column += group.count * group.dim
        agent += group.count
    first = 0
    for family in cloud.constraints:
        for row, g in enumerate(family.named):
            for group in cloud.groups:
                if group.count == 1:
                    yield from _of_term(first + row, g, *places[group.name])
        for part in family.sums:
            for row in range(part.rows):
                h = part.terms[row % len(part.terms)]
                yield from _of_term(first + row, h, *places[part.group.name])
        first += family.rows


def _of_term(
    row: int, term: Expression, column: int, agent: int, group: Group
) -> Iterator[GradientEntry]:
    place = {s: c for c, s in enumerate(group.symbols)}
    for symbol, formula in gradient(term, group.symbols).items():
        states = formula.symbols - set(group.parameters)
        kind: EntryKind = "public"
        if states:
            kind = "own" if states <= set(group.symbols) else "released"
        yield GradientEntry(
            row=row, column=column + place[symbol], agent=agent, kind=kind, formula=formula
        )
