"""One round of the cloud: evaluate, release, step. The only place where raw values become noise."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from sottovoce.algorithm.algorithm import Algorithm, cloud_rows
from sottovoce.certify.gradients import coupled_rows
from sottovoce.errors import InputError, PrivacyError
from sottovoce.network.outputs import Outputs
from sottovoce.network.protocol.actions import Record
from sottovoce.network.protocol.codec import pack
from sottovoce.network.protocol.receipt import next_digest
from sottovoce.network.schedule import Schedule
from sottovoce.privacy.plan import NoisePlan
from sottovoce.privacy.sampler import Released, Sampler, SecureSampler
from sottovoce.problem.agents import Array, lower_bounds


@final
class Rounds:
    """Turns the states of a round into the record that is committed and sent.

    ``y = (g(x(k)), dg/dx (x(k))) + w(k)`` and ``mu(k+1) = cloud_step(mu(k), y_g)``.

    Args:
        plan: the noise.
        algorithm: gives the cloud's step.
        sampler: adds the noise; one output per noisy row of g, then one per gradient entry.
        rounds: T.
    """

    def __init__(
        self, plan: NoisePlan, algorithm: Algorithm, sampler: Sampler, rounds: int
    ) -> None:
        self._outputs = Outputs(plan)
        self._sampler = sampler
        self._algorithm = algorithm
        self._schedule = Schedule(algorithm, rounds)
        self._noisy = np.flatnonzero(plan.sigma_g > 0)
        self._row_facts = {"sigma": plan.sigma_g, "coupled": coupled_rows(plan.cloud)}
        # Rows that no agent moves are public: taken at a public point, they cannot leak a state.
        corner = lower_bounds(plan.domain)
        self._public, _ = self._outputs(corner)
        self.prepare()

    def prepare(self) -> None:
        """Draw the next round's noise while nobody knows its states yet."""
        if isinstance(self._sampler, SecureSampler):
            self._sampler.refill(releases=1)

    def play(
        self, k: int, x: Array, carried: Array, previous: bytes, held: frozenset[int]
    ) -> tuple[Record, Released]:
        """Return round k and what was released in it.

        Args:
            k: the round.
            x: x(k), inside the domain.
            carried: what the round before left, see ``first_carried``.
            previous: digest(k-1).
            held: agents held at their last state.

        Raises:
            PrivacyError: if an output is not finite; nothing is released then.
        """
        g, entries = self._outputs(x)
        released = self._sampler.release(np.concatenate([g[self._noisy], entries]))
        y_g = self._public.copy()
        y_g[self._noisy] = released.values[: self._noisy.size]
        after = self._stepped(k, y_g, carried.reshape(-1, y_g.size))
        mu = after[: y_g.size] if self._algorithm.thinks else carried[: y_g.size]
        record = Record(
            k=k,
            x=x,
            mu=mu,
            y=released.values[self._noisy.size :],
            carried=after,
            digest=next_digest(previous, k, pack(mu), release_bytes(released)),
            held=held,
        )
        return record, released

    def _stepped(self, k: int, y_g: Array, before: Array) -> Array:
        mu, memory = cloud_rows(
            self._algorithm, self._schedule[k], before[0], before[1:], y_g, **self._row_facts
        )
        after = np.concatenate([mu, *memory])
        if not np.isfinite(after[: y_g.size]).all():
            raise PrivacyError("the multipliers are no longer finite: the steps are too long")
        return after


def first_carried(algorithm: Algorithm, rows: int) -> Array:
    """Return what the cloud carries into round 1, m numbers at a time.

    mu comes first, then the algorithm's memory, whose last part is the answer if it has one: so
    the first m numbers are the multipliers and the last m the answer.
    """
    mu = np.zeros(rows)
    return np.concatenate([mu, *algorithm.start(mu)])


def release_bytes(released: Released) -> bytes:
    """Return a release as it is stored: integers on the grid, or floats of a simulation."""
    if released.multiples is None:
        return pack(released.values)
    return np.ascontiguousarray(released.multiples, dtype="<i8").tobytes()


def deployed_sampler(plan: NoisePlan) -> Sampler:
    """Return the sampler that keeps a plan's promise: what a cloud draws its noise from."""
    return SecureSampler(noisy_sigma(plan))


def noisy_sigma(plan: NoisePlan) -> Any:
    """Return the sigma of every output in the order of a release.

    Raises:
        InputError: if the plan releases nothing with noise.
    """
    sigma = np.concatenate([plan.sigma_g[plan.sigma_g > 0], plan.gradient_sigma])
    if sigma.size == 0:
        raise InputError("plan must add noise to at least one output, got a plan without any")
    return sigma
