"""All named agents as one, as gradient steps take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.formula.canonical import add
from sottovoce.formula.expression import Expression
from sottovoce.problem.agents import Group
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.fleet import Fleet, FleetContribution
from sottovoce.problem.fleets import named_rows
from sottovoce.problem.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedAgents:
    """All agents stated one by one, as one long vector: what gradient steps need.

    Attributes:
        symbols: their states.
        places: the groups, from 0, that they are.
        objective: ``sum_i f_i``.
        rows: what they add to each of the m rows of g, constants apart.
    """

    symbols: tuple[Expression, ...]
    places: tuple[int, ...]
    objective: Expression
    rows: tuple[Expression, ...]


def named_agents(problem: Problem, families: Sequence[Constraint]) -> NamedAgents:
    """Return all named agents; sums over a fleet of one belong to them."""
    groups = problem.groups
    places = [i for i, g in enumerate(groups) if g.count == 1]
    return NamedAgents(
        symbols=tuple(s for i in places for s in groups[i].symbols),
        places=tuple(places),
        objective=add(*(groups[i].fill(problem.objectives[i]) for i in places)),
        rows=tuple(named_rows(families)),
    )


def as_fleet(named: NamedAgents, groups: Sequence[Group]) -> Fleet:
    """Return all named agents as one agent with a long state: gradient steps know no difference."""
    own = [groups[i] for i in named.places]
    group = Group(
        name="named",
        count=1,
        symbols=named.symbols,
        lower=np.concatenate([g.lower for g in own], axis=1),
        upper=np.concatenate([g.upper for g in own], axis=1),
        parameters={},
    )
    begin = np.cumsum([0, *(g.count * g.dim for g in groups)])
    columns = [np.arange(begin[i], begin[i + 1]) for i in named.places]
    return Fleet(
        group=group,
        objective=named.objective,
        sums=tuple(
            FleetContribution(row=j, terms=(h,)) for j, h in enumerate(named.rows) if not h.is_zero
        ),
        places=named.places,
        columns=np.concatenate(columns),
    )
