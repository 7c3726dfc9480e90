"""The helper's arithmetic: sums of masks, with noise of the full sigma."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol, final

import numpy as np

from sottovoce.network.config import RunConfig
from sottovoce.network.identity.pledges import HelperKeys, terms_of
from sottovoce.network.masks import MaskSums, Stream
from sottovoce.network.protocol.actions import AnswerRound, JournalRow
from sottovoce.network.protocol.codec import Integers, pack_whole
from sottovoce.network.protocol.receipt import next_digest
from sottovoce.network.setup import Parties
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.noise_plan import NoisePlan

_SESSIONS = 1 << 14


class Blinding(Protocol):
    """Adds noise to integers modulo 2^64; ``SecureSampler`` does."""

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

    Attributes:
        config_hash: SHA-256 of the configuration.
        rounds: T.
        hold: whether what is said may count again in a later round.
        certified: whether a key for masks is certified for agents.
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

    def answer(self, asked: AnswerRound) -> JournalRow:
        """Return the answer to a question, to be committed before it is sent."""
        if all(said.mask.round == asked.k for said in asked.taken):
            names = tuple((said.agents, said.mask.key, said.mask.session) for said in asked.taken)
            total = self._total(asked.k, names, lambda: self._streams(asked))
        else:
            total = np.zeros(self._noisy.size, dtype=np.int64)
            for (stream, places), said in zip(self._streams(asked), asked.taken, strict=True):
                total[places] += stream.rounds(said.mask.round, 1)[0]
        values = pack_whole(self._sampler.blind(total))
        digest = next_digest(asked.previous, asked.k, asked.question, values)
        return JournalRow(k=asked.k, context=asked.question, release=values, digest=digest)

    def _streams(self, asked: AnswerRound) -> list[tuple[Stream, Integers]]:
        return [self._stream(p.agents, p.mask.key, p.mask.session) for p in asked.taken]

    def _new_stream(
        self, agents: tuple[int, ...], key: bytes, session: bytes
    ) -> tuple[Stream, Integers]:
        """The masks of a session, and the noisy sums that they belong to."""
        sums = self._parties(agents).sums
        stream = self._secret(key).stream(self.config_hash, session, agents, sums.size)
        return stream, np.searchsorted(self._noisy, sums)
