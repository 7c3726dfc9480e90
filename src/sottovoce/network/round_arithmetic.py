"""One round of the cloud: add up, add noise, step; after the last test the answer.

It hands raw sums to a sampler and passes on what that releases, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, final

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike

from sottovoce.algorithm.algorithm import (
    Algorithm,
    GradientSteps,
    PriceRounds,
    noisy_shares,
    require_release,
)
from sottovoce.algorithm.dual_averaging import steering
from sottovoce.algorithm.price_memory import PriceMemory
from sottovoce.algorithm.public_sum import public_sums
from sottovoce.errors import InputError
from sottovoce.kernels.cloud_kernel import CloudKernel, make_cloud, price_memory
from sottovoce.kernels.core.plain import LANES
from sottovoce.kernels.run_kernel import normals, stream_seed
from sottovoce.network.failures import DivergedError
from sottovoce.network.protocol.actions import CloudMemory, JournalRow, Part, Record, agents_in
from sottovoce.network.protocol.codec import (
    MASK_HEAD,
    NOTHING,
    Integers,
    MalformedError,
    pack,
    pack_release,
    unpack,
)
from sottovoce.network.protocol.collected import ContributionTotals, merge_gaps
from sottovoce.network.protocol.messages import Gap
from sottovoce.network.protocol.receipt import next_digest
from sottovoce.network.setup import fallbacks_of, ranges_of
from sottovoce.privacy.averaging import answer_shares, answer_weights
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import Released, ResidueSampler, Sampler, SecureSampler, grid_of
from sottovoce.privacy.trust import SplitCloud
from sottovoce.problem.groups import Array, lower_bounds
from sottovoce.problem.numeric import Numeric

_FARTHEST = 2**33
"""Grid steps that the noise of both halves moves a sum at most: 90 standard deviations."""

_UP = 1.0 + 2.0**-30  # rounds a bound up: far above the error of a few float64 operations

_UNMASKED = (
    "a sum left its certified range (an agent broke the protocol, or its key for masks is not the "
    "one that the helper knows)"
)


class CloudRelease(Protocol):
    """Contributions, turned into what is released, and that into what the cloud steps with."""

    def release(
        self, parts: Sequence[Part], absent: frozenset[int], sampler: Sampler, answer: bytes
    ) -> Released:
        """Add noise to contributions, and the fallbacks of absent agents.

        ``answer`` is the helper's, of a split cloud.
        """

    def outputs(self, values: Array) -> tuple[Array, Array]:
        """Return the sums, or values of all constraints, and the gradient entries."""


@final
class Rounds:
    """Turns the contributions of a round into the record that is committed and sent.

    ``y = s(x(k)) + w(k)`` and ``lambda(k+1) = cloud_round(y)``; or what ``plan.release`` makes of
    states. The sampler has one output per noisy output of the plan, in order. ``warm`` is what an
    earlier run's cloud learnt from what it released.
    """

    def __init__(
        self,
        plan: NoisePlan,
        algorithm: Algorithm,
        sampler: Sampler,
        rounds: int,
        warm: PriceMemory | None = None,
    ) -> None:
        require_release(plan, algorithm)
        if warm is not None:
            warm.require_use(algorithm, plan.cloud.sums.labels)
        self._release: CloudRelease
        self._state: CloudState
        if isinstance(algorithm, GradientSteps):
            assert plan.release is not None  # noqa: S101  else the plan was refused
            self._release = plan.release.outputs(plan)
            self._state = plan.release.prices(plan, algorithm)
        else:
            self._release, self._state = _Sums(plan), PriceState(plan, algorithm, rounds, warm)
        self._sampler = sampler
        self._grid = grid_of(noisy_sigma(plan))
        self._test = None if plan.feasible is None else AnswerTest(plan, rounds)
        self.prepare()

    def prepare(self) -> None:
        """Draw the noise of rounds to come, before their contributions are known."""
        if isinstance(self._sampler, SecureSampler):
            self._sampler.draw_ahead()

    def restart(self, sampler: Sampler) -> None:
        """Begin another run, from round 1."""
        self._sampler = sampler
        self._state.restart()
        if self._test is not None:
            self._test.restart()

    def price_memory(self, k: int) -> PriceMemory | None:
        """Return what the next run may begin with after round k; None without prices of sums."""
        return self._state.price_memory(k) if isinstance(self._state, PriceState) else None

    def play(
        self,
        k: int,
        parts: tuple[Part, ...],
        previous: bytes,
        held: frozenset[int],
        answer: bytes = b"",
    ) -> tuple[Record, Released]:
        """Return round k, the one after the last, and what was released in it.

        Nothing may be released where this raises: an output is not finite, prices diverged, or of
        a split cloud a released sum is not in its range.

        The parts are within their ranges, of an agent at most once; for those of the ``held`` who
        have none their fallback counts. The answer is the helper's, of a split cloud: the sum of
        masks with its noise.
        """
        absent = held and held.difference(agents_in(parts))
        released = self._release.release(parts, absent, self._sampler, answer)
        if isinstance(self._release, _Sums) and not self._release.plausible(released):
            raise DivergedError(k, _UNMASKED)
        outputs = self._release.outputs(released.values)
        self._state.take(k, outputs[0])
        missed: tuple[Gap, ...] = ()
        confirmed: bool | None = None
        if self._test is not None:
            missed = self._test.new_gaps(parts)
            confirmed = self._test(k, self._state.averaged, held, missed)
        digest = next_digest(previous, k, pack(self._state.price), pack_release(released))
        record = self._record(k, outputs, digest, held, confirmed)
        return replace(record, parts=parts, missed=missed), released

    def resume(
        self,
        row: JournalRow,
        memory: CloudMemory,
        held: frozenset[int],
        gaps: Iterable[Gap],
        *,
        secure: bool,
    ) -> Record:
        """Go on from what was remembered after a round; return its record, without parts.

        What was released in it is integers if ``secure``, or the floats of a simulation; ``gaps``
        are those known until then.
        """
        values = np.frombuffer(row.release, "<i8") * self._grid if secure else unpack(row.release)
        self._state.restore(unpack(memory.state))
        if self._test is not None:
            self._test.restore(unpack(memory.discrepancy), gaps)
        outputs = self._release.outputs(values)
        return self._record(row.k, outputs, row.digest, held, memory.confirmed)

    def _record(
        self,
        k: int,
        outputs: tuple[Array, Array],
        digest: bytes,
        held: frozenset[int],
        confirmed: bool | None,
    ) -> Record:
        state, discrepancy = self._state, NOTHING if self._test is None else self._test.discrepancy
        return Record(
            k=k,
            parts=(),
            sent_price=state.sent,
            price=state.price,
            answer=state.answer,
            released=outputs[0],
            y=outputs[1],
            digest=digest,
            held=held,
            confirmed=confirmed,
            memory=CloudMemory(
                k=k,
                state=pack(state.memory),
                discrepancy=pack(discrepancy),
                confirmed=confirmed,
            ),
        )


class CloudState(Protocol):
    """Takes releases in, gives prices out, round by round."""

    price: Array  # lambda(k+1) after round k; zeros before round 1
    sent: Array  # the prices that agents are sent after it
    answer: Array  # the prices to report: averaged, or the last
    averaged: Array  # the releases so far, averaged with the answer's weights

    @property
    def memory(self) -> Array:
        """All that it goes on from after a restart."""

    def take(self, k: int, y: Array) -> None:
        """Turn the release of round k into prices."""

    def restart(self) -> None:
        """Forget all rounds."""

    def restore(self, memory: Array) -> None:
        """Go on from a memory; MalformedError if it has another length."""


@final
class PriceState:
    """The step of an algorithm with prices, the one that ``simulate`` takes."""

    def __init__(
        self, plan: NoisePlan, algorithm: PriceRounds, rounds: int, warm: PriceMemory | None
    ) -> None:
        feasible = plan.feasible
        target = None if feasible is None else feasible.target
        self._public = public_sums(plan.cloud.sums, plan.domain, plan.released_sigma, target)
        self._algorithm, self._warm = algorithm, warm
        self._labels = plan.cloud.sums.labels
        self._shares = noisy_shares(algorithm, rounds)
        self._steered, self._rounds = feasible is not None, rounds
        self.restart()

    def restart(self) -> None:
        """Forget all rounds."""
        self._cloud = make_cloud(self._algorithm, self._public, planned=True, warm=self._warm)
        self._copy()

    @property
    def memory(self) -> Array:
        """Prices, answer, averages, and what the algorithm keeps besides."""
        return np.concatenate(self._parts())

    def price_memory(self, k: int) -> PriceMemory | None:
        """Return what the next run may begin with after round k."""
        if not isinstance(self._cloud, CloudKernel):
            return None
        rounds = k if self._warm is None else self._warm.begun + k
        return price_memory(
            self._cloud.memory, self._cloud.answer, self._public, self._labels, rounds
        )

    def take(self, k: int, y: Array) -> None:
        """Turn the noisy sums of round k into lambda(k+1)."""
        steer = float(steering(k, self._rounds)[0]) if self._steered else 0.0
        if not self._cloud.round(k, y, share=self._shares[k], steer=steer):
            raise DivergedError(k)
        self._copy()

    def restore(self, memory: Array) -> None:
        """Go on from a memory."""
        for part, values in zip(self._parts(), split_memory(memory, self._parts()), strict=True):
            part[:] = values
        self._copy()

    def _parts(self) -> list[Array]:
        cloud = self._cloud
        return [cloud.price, cloud.answer, cloud.released, cloud.kept]

    def _copy(self) -> None:
        """Records keep these, and rounds change the cloud's own."""
        self.price, self.answer = self._cloud.price.copy(), self._cloud.answer.copy()
        self.sent, self.averaged = self.price, self._cloud.released.copy()


def split_memory(memory: Array, parts: Sequence[Array]) -> list[Array]:
    """Return parts of these lengths of a memory; MalformedError if it has another length."""
    ends = np.cumsum([part.size for part in parts])
    if memory.size != ends[-1]:
        raise MalformedError(f"a memory must have {ends[-1]} numbers, got {memory.size}")
    return np.split(memory, ends[:-1])


@final
class AnswerTest:
    """Follows the T rounds of a plan with margins, and tests the averaged release after the last.

    Where an agent's fallback or last contribution counted, the state it averages need not be the
    one that was released: their contributions differ by its range at most, which counts with the
    weight of the round. So do rounds that its average lacks. Everything here is public.
    """

    def __init__(self, plan: NoisePlan, rounds: int) -> None:
        assert plan.feasible is not None  # noqa: S101  the caller has asked
        self._feasible, self._rounds = plan.feasible, rounds
        self._sums = plan.cloud.sums.count
        self._ranges = ranges_of(plan)
        self.restart()

    def restart(self) -> None:
        """Forget all rounds."""
        self.restore(np.zeros(self._sums), ())

    def restore(self, discrepancy: Array, gaps: Iterable[Gap]) -> None:
        """Go on from a round: how far the average may be off, and the gaps known until then."""
        if discrepancy.size != self._sums:
            raise MalformedError("a discrepancy must have a number per sum")
        self.discrepancy, self._gaps = discrepancy, set(gaps)

    def new_gaps(self, parts: Iterable[Part]) -> tuple[Gap, ...]:
        """Return the gaps that agents report and that are not known yet."""
        return tuple(sorted({gap for part in parts for gap in part.missed} - self._gaps))

    def __call__(
        self, k: int, averaged: Array, held: frozenset[int], missed: Iterable[Gap] = ()
    ) -> bool | None:
        """Take round k; return whether the answer is confirmed after the last, else None.

        ``averaged`` are the releases up to it, ``held`` the agents that missed it, ``missed`` gaps
        in averages that are known since.
        """
        self._gaps.update(missed)
        if held or self.discrepancy.any():
            share = float(answer_shares(k, self._rounds)[0])
            self.discrepancy = self.discrepancy + share * (self._widths(held) - self.discrepancy)
        if k < self._rounds:
            return None
        discrepancy = (self.discrepancy + self._gap_discrepancy()) * _UP
        return bool(self._feasible.confirmed(averaged, discrepancy)[0])

    def _gap_discrepancy(self) -> Array:
        """How far gaps in averages can move the answer from the averaged release."""
        discrepancy = np.zeros(self._sums)
        weights = answer_weights(self._rounds) if self._gaps else discrepancy
        for first, last, begin, end in merge_gaps(self._gaps):
            share = float(weights[begin - 1 : end].sum())
            discrepancy += share * self._widths(range(first, last + 1))
        return discrepancy

    def _widths(self, agents: Iterable[int]) -> Array:
        """The widths of the ranges of what these agents contribute together."""
        widths = np.zeros(self._sums)
        sums, grid, least, most = self._ranges.of(np.array(sorted(agents), dtype=np.int64) - 1)
        widths[sums] = (most - least) * grid
        return widths


@final
class _Sums:
    """Contributions: integers, added up without an error.

    Those of a split cloud are masked: they are added up modulo 2^64, and the sum of their masks is
    taken off. What is left has the helper's noise. Nothing looks at it before it has the cloud's
    too: whether it is in its range would tell the helper, who knows its own noise, more than is
    promised.
    """

    def __init__(self, plan: NoisePlan) -> None:
        self._masked = isinstance(plan.trust, SplitCloud)
        self._totals = ContributionTotals(
            plan.cloud.sums.count, skip=MASK_HEAD if self._masked else 0
        )
        self._noisy, self._fallbacks = np.flatnonzero(plan.sigma > 0), fallbacks_of(plan)
        # Sums that no agent moves are public: taken at a public point, they cannot leak a state.
        rows = Numeric(plan.cloud, plan.cloud.sums.families)
        self._public = rows.constraints(lower_bounds(plan.domain))
        if self._masked:
            _, _, self._least, self._most = ranges_of(plan).of(np.arange(plan.cloud.agents))

    def release(
        self, parts: Sequence[Part], absent: frozenset[int], sampler: Sampler, answer: bytes
    ) -> Released:
        totals = self._totals(parts)[self._noisy]
        if absent:
            totals += self._fallbacks(absent)[self._noisy]
        if not self._masked:
            return sampler.release_multiples(totals)
        masks = np.frombuffer(answer, dtype="<i8")
        if masks.size != self._noisy.size:
            raise MalformedError("an answer must hold one integer per noisy sum")
        if not isinstance(sampler, ResidueSampler):
            raise InputError("a split cloud's noise must be for integers modulo 2^64")
        return sampler.release_modular(totals - masks)

    def plausible(self, released: Released) -> bool:
        """Whether what is released lies as near its certified range as noise can have moved it."""
        numbers = released.multiples
        if not self._masked or numbers is None:
            return True  # contributions that can be read are within their ranges
        near = (numbers >= self._least - _FARTHEST) & (numbers <= self._most + _FARTHEST)
        return bool(near.all())

    def outputs(self, values: Array) -> tuple[Array, Array]:
        y = self._public.copy()
        y[self._noisy] = values
        return y, np.zeros(0)


def deployed_sampler(plan: NoisePlan) -> Sampler:
    """Return the sampler that keeps a plan's promise: what a cloud draws its noise from."""
    return SecureSampler(noisy_sigma(plan))


def noisy_sigma(plan: NoisePlan) -> Array:
    """Return the sigma of every noisy output, in the order of a release."""
    sigma = plan.sigma[plan.sigma > 0]
    if sigma.size == 0:
        raise InputError("plan must add noise to at least one output, got a plan without any")
    return sigma


@final
class SimulatedSampler(Sampler):
    """The normals of ``simulate``'s first run with the same seed: float64 noise, not private.

    Anybody with the seed subtracts it, and even without, the low bits of a sum of doubles depend on
    the summand that was to be hidden.

    ``done`` rounds were released before.
    """

    def __init__(self, sigma: Array, seed: int, *, done: int = 0) -> None:
        self._sigma = sigma
        self._stream = stream_seed(seed, 0)
        self._done = self._drawn = done
        self._normals = np.empty((0, sigma.size))

    def release_multiples(self, multiples: Integers) -> Released:
        """Return multiples * grid + sigma z, as a simulation does with contributions."""
        return self.release(multiples * grid_of(self._sigma))

    def release(self, values: ArrayLike) -> Released:
        """Return values + sigma z with a simulation's z of this round."""
        if self._done == self._drawn:
            self._normals = normals(self._stream, LANES, self._sigma.size, done=self._done)
            self._drawn += LANES
        noise = self._sigma * self._normals[self._done - self._drawn]
        self._done += 1
        return Released(values=np.asarray(values, dtype=np.float64) + noise)
