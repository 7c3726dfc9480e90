"""An agent's half of Algorithm 1 on the network: x(k), mu(k) and dg/dx_i in, x(k+1) out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from sottovoce.errors import InputError
from sottovoce.formula.derive import gradient
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.network.agent_group import LocalGroup
from sottovoce.network.scalars import Scalars
from sottovoce.paper.gradients import gradient_entries
from sottovoce.paper.tikhonov import Schedule, Tikhonov, agent_step
from sottovoce.problem.agents import Array
from sottovoce.problem.fleet import Fleet
from sottovoce.problem.problem import CloudView
from sottovoce.simulation.own_set import require_no_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """``mu_row dg_row/dx_component``, part of an agent's slope.

    Attributes:
        row: the constraint, from 0.
        component: of the agent's state.
        place: where in a round's y the derivative lies; None: the agent works it out.
        formula: the derivative.
    """

    row: int
    component: int
    place: int | None
    formula: Expression


def own_terms(
    cloud: CloudView, fleet: Fleet, sent: Mapping[tuple[int, int], int]
) -> tuple[Term, ...]:
    """Return what the constraints add to the slope of a named agent, by rows.

    Args:
        cloud: the public problem.
        fleet: the agent.
        sent: where in a round's y the derivatives lie that the cloud sends, by row and component.

    Raises:
        InputError: other agents move a derivative that the cloud does not send.
    """
    group = fleet.group
    index = [g.name for g in cloud.groups].index(group.name)
    first = sum(g.count * g.dim for g in cloud.groups[:index])
    entries = [e for e in gradient_entries(cloud) if first <= e.column < first + group.dim]
    known = {(e.row, e.column - first): e for e in entries}
    terms = []
    for row, component in sorted({*known, *sent}):
        place, entry = sent.get((row, component)), known.get((row, component))
        if place is None and entry is not None and entry.kind == "released":
            raise InputError(
                f"constraint {row + 1} couples {group.name} with other agents, but the cloud does "
                "not send its gradient: the run was planned for another problem"
            )
        formula = ZERO if entry is None else entry.formula
        terms.append(Term(row=row, component=component, place=place, formula=formula))
    return tuple(terms)


@final
class GradientStep:
    """``x(k) -> x(k+1)`` of one agent by itself, one step against the slope of the Lagrangian.

    Args:
        own: the agent, a group of one.
        algorithm: whose step it takes.
        bounds: lower and upper, shape (1, d) each.
        terms: what the constraints add to its slope.
    """

    def __init__(
        self,
        own: LocalGroup,
        algorithm: Tikhonov,
        *,
        bounds: tuple[Array, Array],
        terms: Sequence[Term],
    ) -> None:
        if own.fleet.local is not None:
            require_no_rows([own.fleet.local])
        self._schedule = Schedule(algorithm)
        self._gradient, self._terms = own.gradient, terms
        group, slopes = own.fleet.group, gradient(own.fleet.objective, own.fleet.group.symbols)
        formulas = [slopes.get(s, ZERO) for s in group.symbols]
        formulas += [ZERO if term.place is not None else term.formula for term in terms]
        self._derivatives = Scalars(formulas, [*group.symbols, *group.parameters])
        self._parameters = [float(values[0]) for values in group.parameters.values()]
        self._bounds = bounds

    def begin(self, x: Array) -> Array:
        """The point of the agent's own bounds nearest to x, shape (1, d)."""
        return np.clip(x, *self._bounds)

    def __call__(self, k: int, x: Array, price: Array, y: Array) -> Array:
        """Return x(k+1), shape (1, d)."""
        derivatives = self._derivatives(*x[0].tolist(), *self._parameters)
        slope, local = np.split(derivatives, [x.size])
        if self._gradient is not None:
            slope = slope + self._gradient(x[0])
        with np.errstate(all="ignore"):  # a step that is not finite is replaced
            for term, own in zip(self._terms, local, strict=True):
                derivative = own if term.place is None else y[term.place]
                slope[term.component] += price[term.row] * derivative
            gamma, alpha = self._schedule[k]
            after = agent_step(x, slope[np.newaxis], gamma, alpha, *self._bounds)
        return np.asarray(after)
