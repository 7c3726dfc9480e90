"""The cloud's half of Algorithm 1 on the network: states in, noisy g(x), dg/dx and mu out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from sottovoce.formula.expression import ZERO
from sottovoce.network.errors import DivergedError
from sottovoce.network.protocol.actions import Part
from sottovoce.network.protocol.codec import unpack
from sottovoce.network.scalars import Scalars
from sottovoce.paper.gradients import gradient_entries
from sottovoce.paper.tikhonov import Schedule, Tikhonov, cloud_step
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import Released, Sampler
from sottovoce.problem.agents import Array, lower_bounds


@final
class PaperOutputs:
    """``x -> (g(x), the released entries of dg/dx)`` for one plan, from public formulas alone."""

    def __init__(self, plan: NoisePlan) -> None:
        cloud = plan.cloud
        self._size = cloud.size
        self._offset = np.concatenate([c.offset for c in cloud.constraints])
        # The paper lists also entries that are zero everywhere.
        known = {(e.row, e.column): e.formula for e in gradient_entries(cloud)}
        pairs = [(o.row, o.column) for o in plan.outputs if o.column is not None]
        rows = [row for family in cloud.constraints for row in family.named]
        symbols = [s for group in cloud.groups for s in group.symbols]
        self._scalars = Scalars([*rows, *(known.get(pair, ZERO) for pair in pairs)], symbols)
        values = [o for o in plan.outputs if o.kind == "value"]
        self._noisy = np.array([o.row for o in values if o.sigma > 0], dtype=np.int64)
        self._public, _ = self(lower_bounds(plan.domain))

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Return g, shape (m,), and the entries in the plan's order."""
        g, entries = np.split(self._scalars(*x.tolist()), [self._offset.size])
        return self._offset + g, entries

    def release(self, parts: Sequence[Part], sampler: Sampler, answer: bytes) -> Released:
        """Work out values and gradients from all states, and add noise to them."""
        g, entries = self(states_of(parts, self._size))
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
        self._schedule = Schedule(algorithm)
        self.restart()

    def restart(self) -> None:
        """Forget all rounds."""
        self.price = self.answer = self.averaged = np.zeros(self._rows)

    def take(self, k: int, y: Array) -> Array:
        """Turn the noisy values of round k into mu(k+1), and return mu(k)."""
        told = self.price
        with np.errstate(all="ignore"):  # what overflows is refused below
            price = np.asarray(cloud_step(told, y, *self._schedule[k]), dtype=np.float64)
        if not np.isfinite(price).all():
            raise DivergedError(k)
        self.price = self.answer = price
        return told


def states_of(parts: Sequence[Part], size: int) -> Array:
    """Return the states of all agents, from their messages."""
    x = np.empty(size)
    for part in parts:
        x[part.party.columns] = unpack(part.data)
    return x
