"""Algorithm 1 on the network: the agent's step, and the cloud's release and step.

An agent takes x(k), mu(k) and dg/dx_i to x(k+1). The cloud takes all states to noisy g(x) and
dg/dx, and these to mu(k+1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from sottovoce.algorithm.algorithm import RoundValues
from sottovoce.errors import InputError
from sottovoce.formula.canonical import substitute
from sottovoce.formula.derive import gradient
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.formula.tape import tape
from sottovoce.network.agent_group import LocalGroup
from sottovoce.network.failures import DivergedError
from sottovoce.network.protocol.actions import Part
from sottovoce.network.protocol.codec import unpack
from sottovoce.network.round_arithmetic import split_memory
from sottovoce.paper.tikhonov import Tikhonov, multiplier_step, state_step
from sottovoce.privacy.feasibility import default_fallbacks
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import Released, Sampler
from sottovoce.problem.constraints import named_rows
from sottovoce.problem.groups import Array, Group, lower_bounds
from sottovoce.problem.local import require_no_rows
from sottovoce.problem.problem import CloudView


@final
class GradientStep:
    """``x(k) -> x(k+1)`` of one agent by itself, one step against the slope of the Lagrangian.

    The ``local`` group has one agent, and bounds have shape (1, d) each. ``sent`` is the index in a
    round's y of the derivatives of constraints that the cloud sends, by row and component of the
    state; the agent computes the others.
    """

    def __init__(
        self,
        cloud: CloudView,
        local: LocalGroup,
        algorithm: Tikhonov,
        *,
        bounds: tuple[Array, Array],
        sent: Mapping[tuple[int, int], int],
    ) -> None:
        require_no_rows([local.fleet.local])
        self._schedule: RoundValues[list[float]] = RoundValues(algorithm.schedule)
        group, stated = local.fleet.group, cloud.groups[local.fleet.places[0]]
        as_stated = dict(zip(group.symbols, stated.symbols, strict=True))
        slopes = gradient(substitute(group.fill(local.fleet.objective), as_stated), stated.symbols)
        slopes_by_row = _derivatives(cloud, stated, sent)
        # mu_row dg_row/dx_component: row, component, and the derivative's index in y, if sent.
        self._terms = [(*place, sent.get(place)) for place in sorted({*slopes_by_row, *sent})]
        formulas = [slopes.get(s, ZERO) for s in stated.symbols]
        formulas += [
            slopes_by_row.get((row, c), ZERO) if i is None else ZERO for row, c, i in self._terms
        ]
        self._derivatives = tape(formulas, stated.symbols)
        self._gradient, self._bounds = local.gradient, bounds

    def begin(self, x: Array) -> Array:
        """The point of the agent's own bounds nearest to x, shape (1, d)."""
        return np.clip(x, *self._bounds)

    def __call__(self, k: int, x: Array, price: Array, y: Array) -> Array:
        """Return x(k+1), shape (1, d)."""
        derivatives = np.array(self._derivatives(*x[0].tolist()))
        slope, computed = np.split(derivatives, [x.size])
        if self._gradient is not None:
            slope = slope + self._gradient(x[0])
        with np.errstate(all="ignore"):  # a step that is not finite is replaced
            for (row, component, index), value in zip(self._terms, computed, strict=True):
                slope[component] += price[row] * (value if index is None else y[index])
            gamma, alpha = self._schedule[k]
            after = state_step(x, slope[np.newaxis], gamma, alpha, *self._bounds)
        return np.asarray(after)


def _derivatives(
    cloud: CloudView, group: Group, sent: Mapping[tuple[int, int], int]
) -> dict[tuple[int, int], Expression]:
    """The derivatives of the constraints by a named agent's state, by row and component."""
    derivatives, components = {}, {s: c for c, s in enumerate(group.symbols)}
    for row, g in enumerate(named_rows(cloud.constraints)):
        for symbol, formula in gradient(g, group.symbols).items():
            place = (row, components[symbol])
            if place not in sent and formula.symbols - components.keys():
                raise InputError(
                    f"constraint {row + 1} couples {group.name} with other agents, but the cloud "
                    "does not send its gradient: the run was planned for another problem"
                )
            derivatives[place] = formula
    return derivatives


@final
class PaperOutputs:
    """``x -> (g(x), the released entries of dg/dx)`` for one plan, from public formulas alone."""

    def __init__(self, plan: NoisePlan) -> None:
        cloud = plan.cloud
        self._fallback = lower_bounds(default_fallbacks(plan.domain))
        self._offset = np.concatenate([c.offset for c in cloud.constraints])
        rows = [row for family in cloud.constraints for row in family.named]
        symbols = [s for group in cloud.groups for s in group.symbols]
        slopes = [gradient(row, symbols) for row in rows]
        # The paper lists also entries that are zero everywhere.
        entries = [slopes[o.row].get(symbols[o.column], ZERO)
                   for o in plan.outputs if o.column is not None]  # fmt: skip
        self._formulas = tape([*rows, *entries], symbols)
        values = [o for o in plan.outputs if o.kind == "value"]
        self._noisy = np.array([o.row for o in values if o.sigma > 0], dtype=np.int64)
        self._public, _ = self(lower_bounds(plan.domain))

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Return g, shape (m,), and the entries in the plan's order."""
        g, entries = np.split(np.array(self._formulas(*x.tolist())), [self._offset.size])
        return self._offset + g, entries

    def release(
        self, parts: Sequence[Part], absent: frozenset[int], sampler: Sampler, answer: bytes
    ) -> Released:
        """Compute values and gradients from all states' messages, and add noise to them.

        Absent agents count with the public fallbacks of their states.
        """
        g, entries = self(states_of(parts, self._fallback))
        return sampler.release(np.concatenate([g[self._noisy], entries]))

    def outputs(self, values: Array) -> tuple[Array, Array]:
        """Return the values of all constraints, and the gradient entries."""
        y = self._public.copy()
        y[self._noisy] = values[: self._noisy.size]
        return y, values[self._noisy.size :]


@final
class Multipliers:
    """The cloud's step: agents step with mu(k) while the cloud works out mu(k+1)."""

    def __init__(self, plan: NoisePlan, algorithm: Tikhonov) -> None:
        self._rows = plan.cloud.rows
        self._schedule: RoundValues[list[float]] = RoundValues(algorithm.schedule)
        self.restart()

    def restart(self) -> None:
        """Forget all rounds."""
        self.restore(np.zeros(2 * self._rows))

    @property
    def memory(self) -> Array:
        """mu(k+1) and mu(k)."""
        return np.concatenate([self.price, self.sent])

    def restore(self, memory: Array) -> None:
        """Go on from a memory."""
        rows = np.zeros(self._rows)
        self.price, self.sent = split_memory(memory, (rows, rows))
        self.answer, self.averaged = self.price, rows

    def take(self, k: int, y: Array) -> None:
        """Turn the noisy values of round k into mu(k+1), and send mu(k)."""
        before = self.price
        with np.errstate(all="ignore"):  # what overflows is refused below
            price = np.asarray(multiplier_step(before, y, *self._schedule[k]), dtype=np.float64)
        if not np.isfinite(price).all():
            raise DivergedError(k)
        self.price, self.answer, self.sent = price, price, before


def states_of(parts: Sequence[Part], others: Array) -> Array:
    """Return the states of all agents, from their messages; ``others`` for those without."""
    x = others.copy()
    for part in parts:
        x[part.party.columns] = unpack(part.data)
    return x
