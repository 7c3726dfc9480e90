"""What a helper answers: sums of masks, with noise of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol, final

import numpy as np

from sottovoce.network.config import RunConfig
from sottovoce.network.identity.pledges import HelperKeys, terms_of
from sottovoce.network.masks import MaskSums, Stream
from sottovoce.network.parties import Parties
from sottovoce.network.protocol.actions import AnswerRecord, AnswerRound, HelperSetup, MaskOwner
from sottovoce.network.protocol.codec import Integers, pack_whole
from sottovoce.network.protocol.receipt import next_digest
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.noise_plan import NoisePlan

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
