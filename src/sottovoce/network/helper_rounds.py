"""One round of the helper: the sum of the masks of those who took part, with noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, Protocol, final

import numpy as np

from sottovoce.network.config import RunConfig
from sottovoce.network.masks import HelperKeys, ReadAhead, Stream, terms_of
from sottovoce.network.protocol.actions import AnswerRound, JournalRow
from sottovoce.network.protocol.codec import Integers, pack_whole
from sottovoce.network.protocol.receipt import next_digest
from sottovoce.network.setup import parties_of
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.noise_plan import NoisePlan

_SESSIONS: Final = 1 << 14  # connections whose key streams a helper keeps in memory


class Blinding(Protocol):
    """Adds noise to integers modulo 2^64; ``SecureSampler`` does."""

    def blind(self, residues: Integers) -> Integers:
        """Return the numbers with noise."""


@final
class HelperRounds:
    """The helper's arithmetic in one run, and its ``HelperRun``: ``sum_i m_i(k) + w(k) mod 2^64``.

    ``sign`` signs what is asked of agents; the helper's own key does by default.
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
        self._parties = lru_cache(maxsize=_SESSIONS)(parties_of(plan))
        self._noisy = np.flatnonzero(plan.sigma > 0)
        self.config_hash, self.rounds = config.hash, config.rounds
        self.certified = keys.certified
        self._sign = keys.sign if sign is None else sign
        self._sampler = sampler
        self._secret = lru_cache(maxsize=_SESSIONS)(keys.secret)
        self._stream = lru_cache(maxsize=_SESSIONS)(self._new_stream)
        self._total = MaskSums(self._noisy.size)
        self.hold = not isinstance(plan.hide, Trajectory)

    def pledge(self, agents: tuple[int, ...], key: bytes) -> bytes:
        """Sign what the run asks of agents."""
        return self._sign(terms_of(self.config_hash, key, self._parties(agents)))

    def answer(self, question: AnswerRound) -> JournalRow:
        """Return the answer to a question, to be committed before it is sent."""
        parties = [self._stream(p.agents, p.mask.key, p.mask.session) for p in question.taken]
        rounds = [participant.mask.round for participant in question.taken]
        if set(rounds) == {question.k}:
            total = self._total(question.k, parties)
        else:
            total = np.zeros(self._noisy.size, dtype=np.int64)
            for (stream, places), k in zip(parties, rounds, strict=True):
                total[places] += stream.rounds(k, 1)[0]
        values = pack_whole(self._sampler.blind(total))
        digest = next_digest(question.previous, question.k, question.question, values)
        return JournalRow(k=question.k, context=question.question, release=values, digest=digest)

    def _new_stream(
        self, agents: tuple[int, ...], key: bytes, session: bytes
    ) -> tuple[Stream, Integers]:
        """The masks of a session, and the noisy sums that they belong to."""
        sums = self._parties(agents).sums
        stream = self._secret(key).stream(self.config_hash, session, agents, sums.size)
        return stream, np.searchsorted(self._noisy, sums)


@final
class MaskSums:
    """Sums of many parties' masks, drawn ahead as long as the same parties take part."""

    def __init__(self, sums: int) -> None:
        self._sums = sums
        self._parties: Sequence[tuple[Stream, Integers]] = ()
        self._totals: ReadAhead

    def __call__(self, k: int, parties: Sequence[tuple[Stream, Integers]]) -> Integers:
        """Return the sum of the parties' masks of round k, modulo 2^64, one number per sum.

        Of each party its stream, and the sums that its numbers belong to.
        """
        if parties != self._parties:
            self._parties = parties
            self._totals = ReadAhead(self._draw, 8 * self._sums * (1 + len(parties)))
        return self._totals[k]

    def _draw(self, first: int, count: int) -> Integers:
        total = np.zeros((count, self._sums), dtype=np.int64)
        for stream, sums in self._parties:
            total[:, sums] += stream.rounds(first, count)  # wraps around, as it should
        return total
