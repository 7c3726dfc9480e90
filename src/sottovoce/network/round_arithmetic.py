"""One round of the cloud: add up, release, step. The only place where raw values become noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol, final

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike

from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.errors import InputError
from sottovoce.kernels.core.plain import LANES
from sottovoce.kernels.run_kernel import normals, stream_seed
from sottovoce.network.cloud_state import Verdict, cloud_state
from sottovoce.network.config import RunConfig
from sottovoce.network.failures import DivergedError
from sottovoce.network.identity.pledges import HelperKeys, terms_of
from sottovoce.network.masks import MaskSums, Stream
from sottovoce.network.protocol.actions import (
    AnswerRecord,
    AnswerRound,
    HelperSetup,
    MaskOwner,
    Part,
    Party,
    Record,
)
from sottovoce.network.protocol.codec import (
    MASK_HEAD,
    Integers,
    MalformedError,
    pack,
    pack_whole,
    unpack,
)
from sottovoce.network.protocol.messages import Gap
from sottovoce.network.protocol.receipt import next_digest
from sottovoce.network.setup import Parties, Ranges
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import (
    Released,
    ResidueSampler,
    Sampler,
    SecureSampler,
    grid_of,
)
from sottovoce.privacy.trust import SplitCloud
from sottovoce.problem.agents import Array, lower_bounds
from sottovoce.problem.numeric import Rows

_FARTHEST = 2**33
"""Grid steps that the noise of both halves moves a sum at most: 90 standard deviations."""

_UNMASKED = (
    "a sum left its certified range (an agent broke the protocol, or its key for masks is not the "
    "one that the helper knows)"
)


class CloudRelease(Protocol):
    """What agents said, turned into what is released, and that into what the cloud steps with."""

    def release(self, parts: Sequence[Part], sampler: Sampler, answer: bytes) -> Released:
        """Add noise to what was said; ``answer`` is the helper's, of a split cloud."""

    def outputs(self, values: Array) -> tuple[Array, Array]:
        """Return the sums, or values of all constraints, and the gradient entries."""


@final
class Rounds:
    """Turns what was said in a round into the record that is committed and sent.

    ``y = s(x(k)) + w(k)`` and ``lambda(k+1) = cloud_round(y)``; or what ``plan.release`` makes of
    states.

    Args:
        plan: the noise.
        algorithm: gives the cloud's step.
        sampler: adds the noise; one output per noisy output of the plan, in order.
        rounds: T.
    """

    def __init__(
        self, plan: NoisePlan, algorithm: Algorithm, sampler: Sampler, rounds: int
    ) -> None:
        self._turns = cloud_state(plan, algorithm, rounds)
        self._release = _release_of(plan)
        self._sampler = sampler
        self._grid = grid_of(noisy_sigma(plan))
        self._verdict = None if plan.feasible is None else Verdict(plan, rounds)
        self.prepare()

    def prepare(self) -> None:
        """Have the noise of rounds to come drawn while nobody knows what will be said in them.

        The next round's is there afterwards; that of the rounds after it is drawn meanwhile.
        """
        if isinstance(self._sampler, SecureSampler):
            self._sampler.refill(releases=1)
            self._sampler.refill_beside()

    def restart(self) -> None:
        """Begin another run, from round 1."""
        self._turns.restart()
        if self._verdict is not None:
            self._verdict.restart()

    def play(
        self,
        k: int,
        parts: tuple[Part, ...],
        previous: bytes,
        held: frozenset[int],
        answer: bytes = b"",
    ) -> tuple[Record, Released]:
        """Return round k and what was released in it.

        Args:
            k: the round, the one after the last that was played or replayed.
            parts: what was said, each part within its range, of every agent once.
            previous: digest(k-1).
            held: agents whose last contribution was reused, from 1.
            answer: the helper's, of a split cloud: the sum of their masks with its noise.

        Raises:
            PrivacyError: an output is not finite; nothing is released then.
            DivergedError: prices diverged, or of a split cloud a released sum is not in its
                range; nothing may be released then.
        """
        released = self._release.release(parts, self._sampler, answer)
        if isinstance(self._release, _MaskedSums) and not self._release.plausible(released):
            raise DivergedError(k, _UNMASKED)
        missed = () if self._verdict is None else self._verdict.news(parts)
        record = self._stepped(k, released.values, release_bytes(released), previous, held, missed)
        return replace(record, parts=parts), released

    def replay(
        self,
        k: int,
        release: bytes,
        *,
        secure: bool,
        previous: bytes,
        held: frozenset[int] = frozenset(),
        missed: tuple[Gap, ...] = (),
    ) -> Record:
        """Take the step of a round that was released before, and return it without its parts.

        Args:
            k: the round.
            release: as it was stored.
            secure: whether it is whole numbers, or the floats of a simulation.
            previous: digest(k-1).
            held: agents whose last contribution was reused, from 1.
            missed: gaps in agents' averages that are known since.
        """
        values = np.frombuffer(release, "<i8") * self._grid if secure else unpack(release)
        return self._stepped(k, values, release, previous, held, missed)

    def _stepped(
        self,
        k: int,
        values: Array,
        release: bytes,
        previous: bytes,
        held: frozenset[int],
        missed: tuple[Gap, ...],
    ) -> Record:
        y, entries = self._release.outputs(values)
        told = self._turns.take(k, y)
        price = self._turns.price
        return Record(
            k=k,
            parts=(),
            told=told,
            price=price,
            answer=self._turns.answer,
            released=y,
            y=entries,
            digest=next_digest(previous, k, pack(price), release),
            held=held,
            missed=missed,
            confirmed=self._confirmed(k, held, missed),
        )

    def _confirmed(self, k: int, held: frozenset[int], missed: tuple[Gap, ...]) -> bool | None:
        if self._verdict is None:
            return None
        return self._verdict(k, self._turns.averaged, held, missed)


@final
class _Sums:
    """Contributions: whole numbers, added up without an error."""

    def __init__(self, plan: NoisePlan) -> None:
        sigma = plan.sigma
        self._totals = ContributionTotals(plan)
        self._noisy = np.flatnonzero(sigma > 0)
        # Sums that no agent moves are public: taken at a public point, they cannot leak a state.
        rows = Rows(plan.cloud, plan.cloud.sums.families)
        self._public = rows.values(lower_bounds(plan.domain))

    def release(self, parts: Sequence[Part], sampler: Sampler, answer: bytes) -> Released:
        return sampler.release_multiples(self._totals(parts)[self._noisy])

    def outputs(self, values: Array) -> tuple[Array, Array]:
        y = self._public.copy()
        y[self._noisy] = values
        return y, np.zeros(0)


@final
class _MaskedSums:
    """Masked contributions: added up modulo 2^64, and the sum of their masks taken off.

    What is left has the helper's noise. Nothing looks at it before it has the cloud's too: whether
    it is in its range would tell the helper, who knows its own noise, more than is promised.
    """

    def __init__(self, plan: NoisePlan) -> None:
        self._totals = ContributionTotals(plan, skip=MASK_HEAD)
        self._sums = _Sums(plan)
        self._noisy = np.flatnonzero(plan.sigma > 0)
        everybody = np.arange(plan.cloud.agents)
        _, _, self._least, self._most = Ranges(plan).of(everybody)

    def release(self, parts: Sequence[Part], sampler: Sampler, answer: bytes) -> Released:
        masks = np.frombuffer(answer, dtype="<i8")
        if masks.size != self._noisy.size:
            raise MalformedError("an answer must hold one whole number per noisy sum")
        if not isinstance(sampler, ResidueSampler):
            raise InputError("a split cloud's noise must be for whole numbers modulo 2^64")
        return sampler.release_residues(self._totals(parts)[self._noisy] - masks)

    def plausible(self, released: Released) -> bool:
        """Whether what is released lies as near its certified range as noise can have moved it."""
        numbers = released.multiples
        assert numbers is not None  # noqa: S101  residues are released as whole numbers
        return bool(
            ((numbers >= self._least - _FARTHEST) & (numbers <= self._most + _FARTHEST)).all()
        )

    def outputs(self, values: Array) -> tuple[Array, Array]:
        return self._sums.outputs(values)


@final
class ContributionTotals:
    """Adds up the contributions of all parties: ``parts -> one whole number per sum``.

    No overflow: the plan certifies that all agents together stay below 2^51 steps, and what a
    party says is kept in its range.

    Args:
        plan: knows how many sums there are.
        skip: bytes before the numbers of every part.
    """

    def __init__(self, plan: NoisePlan, *, skip: int = 0) -> None:
        self._sums = plan.cloud.sums.count
        self._skip = skip
        self._parties: list[Party] = []
        self._index: Integers = np.zeros(0, dtype=np.int64)

    def __call__(self, parts: Sequence[Part]) -> Integers:
        """Return the sums, in steps of their grids; 0 for sums without noise."""
        parties = [part.party for part in parts]
        if parties != self._parties:
            self._index = np.concatenate([party.sums for party in parties])
            self._parties = parties
        total = np.zeros(self._sums, dtype=np.int64)
        skip = self._skip
        said = np.frombuffer(b"".join([part.data[skip:] for part in parts]), dtype="<i8")
        np.add.at(total, self._index, said)
        return total


def _release_of(plan: NoisePlan) -> CloudRelease:
    if plan.release is not None:
        release: CloudRelease = plan.release.outputs(plan)
        return release
    return _MaskedSums(plan) if isinstance(plan.trust, SplitCloud) else _Sums(plan)


def release_bytes(released: Released) -> bytes:
    """Return a release as it is stored: integers on the grid, or floats of a simulation."""
    if released.multiples is None:
        return pack(released.values)
    return np.ascontiguousarray(released.multiples, dtype="<i8").tobytes()


def deployed_sampler(plan: NoisePlan) -> Sampler:
    """Return the sampler that keeps a plan's promise: what a cloud draws its noise from."""
    return SecureSampler(noisy_sigma(plan))


def noisy_sigma(plan: NoisePlan) -> Any:
    """Return the sigma of every noisy output, in the order of a release.

    Raises:
        InputError: if the plan releases nothing with noise.
    """
    sigma = plan.sigma[plan.sigma > 0]
    if sigma.size == 0:
        raise InputError("plan must add noise to at least one output, got a plan without any")
    return sigma


_SESSIONS = 1 << 14


class Blinding(Protocol):
    """Adds noise to whole numbers modulo 2^64; ``SecureSampler`` does."""

    def blind(self, residues: Integers) -> Integers:
        """Return the numbers with noise."""


@final
class Answers:
    """The helper's arithmetic in one run: ``sum_i m_i(k) + w(k) mod 2^64``.

    Args:
        plan: the noise, and which sums agents take part in.
        config: the run.
        keys: the helper's.
        sampler: adds the noise; one number per noisy sum.
        sign: signs what is asked of agents; the helper's own key by default.
    """

    def __init__(
        self,
        plan: NoisePlan,
        config: RunConfig,
        keys: HelperKeys,
        sampler: Blinding,
        *,
        sign: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._parties = lru_cache(maxsize=_SESSIONS)(Parties(plan))
        self._noisy = np.flatnonzero(plan.sigma > 0)
        self._hash, self._rounds = config.hash, config.rounds
        self._keys = keys
        self._sign = keys.sign if sign is None else sign
        self._sampler = sampler
        self._secret = lru_cache(maxsize=_SESSIONS)(keys.secret)
        self._stream = lru_cache(maxsize=_SESSIONS)(self._new_stream)
        self._total = MaskSums(self._noisy.size)
        self._hold = not isinstance(plan.hide, Trajectory)

    @property
    def numbers(self) -> int:
        """How many numbers an answer has."""
        return int(self._noisy.size)

    @property
    def setup(self) -> HelperSetup:
        """What the helper's machine goes by."""
        return HelperSetup(
            config_hash=self._hash,
            rounds=self._rounds,
            hold=self._hold,
            certified=lambda owner: self._keys.certified(owner.agents, owner.mask),
            pledge=self._pledge,
        )

    def answer(self, asked: AnswerRound) -> AnswerRecord:
        """Return the answer to a question, to be committed before it is sent."""
        if all(said.round == asked.k for said in asked.taken):
            names = tuple((said.owner, said.session) for said in asked.taken)
            total = self._total(asked.k, names, lambda: self._streams(asked))
        else:
            total = np.zeros(self.numbers, dtype=np.int64)
            for (stream, places), said in zip(self._streams(asked), asked.taken, strict=True):
                total[places] += stream.rounds(said.round, 1)[0]
        values = pack_whole(self._sampler.blind(total))
        return AnswerRecord(
            k=asked.k,
            question=asked.question,
            values=values,
            digest=next_digest(asked.previous, asked.k, asked.question, values),
            previous=asked.previous,
        )

    def _streams(self, asked: AnswerRound) -> list[tuple[Stream, Integers]]:
        return [
            (self._stream(said.owner, said.session), self._places(said.owner))
            for said in asked.taken
        ]

    def _pledge(self, owner: MaskOwner) -> bytes:
        terms = terms_of(self._hash, owner.mask, self._parties(owner.agents))
        return self._sign(terms)

    def _places(self, owner: MaskOwner) -> Integers:
        return np.searchsorted(self._noisy, self._parties(owner.agents).sums)

    def _new_stream(self, owner: MaskOwner, session: bytes) -> Stream:
        numbers = self._parties(owner.agents).sums.size
        return self._secret(owner.mask).stream(self._hash, session, owner.agents, numbers)


@final
class SimulatedSampler(Sampler):
    """The normals of ``simulate``'s first run with the same seed: float64 noise, not private.

    Anybody with the seed subtracts it, and even without, the low bits of a sum of doubles depend on
    the summand that was to be hidden.

    Args:
        sigma: standard deviation of each output.
        seed: of ``simulate``.
        done: rounds already released; the next release is that of round ``done + 1``.
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
