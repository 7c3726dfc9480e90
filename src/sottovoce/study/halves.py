"""The helper of a split cloud in one process, and what each party makes of the bytes it holds.

The cloud holds what agents sent, masked, and the helper's answers: it takes the masks off and is
left with sums and the helper's noise. The helper knows masks and its own noise, and receives every
release: it is left with sums and the cloud's noise. An outsider receives the releases.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.network.config import RunConfig
from sottovoce.network.identity.authority import new_key
from sottovoce.network.identity.certificates import Identity, public_key
from sottovoce.network.identity.pledges import HelperKeys
from sottovoce.network.masks import Masker, Secret
from sottovoce.network.protocol.actions import AnswerRound, Commit, Party, Send
from sottovoce.network.protocol.codec import (
    MASK_HEAD,
    Integers,
    decode_from_helper,
    decode_to_helper,
    encode,
    mask_of,
    unpack_whole,
)
from sottovoce.network.protocol.helper_machine import HelperMachine
from sottovoce.network.protocol.messages import (
    HELPER_VERSION,
    Answer,
    Ask,
    FromHelper,
    Introduce,
    Open,
    Pledged,
    ToHelper,
)
from sottovoce.network.protocol.receipt import Notary
from sottovoce.network.round_arithmetic import Answers, Blinding
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.trust import ViewName
from sottovoce.study.noise import FALSE_ALARM


@final
class Keys:
    """Keys of the helper and of every connection, as an authority would have certified them.

    Args:
        parties: the agents of every connection.
    """

    def __init__(self, parties: tuple[tuple[int, ...], ...]) -> None:
        own, signing = X25519PrivateKey.generate(), new_key()
        agents = [X25519PrivateKey.generate() for _ in parties]
        listed = [
            Identity(mask=public_key(key), agents=tuple(range(i, i + 1) for i in party))
            for key, party in zip(agents, parties, strict=True)
        ]
        self.helper = HelperKeys(own, signing, lambda: listed)
        self._agents, self._helper, self._parties = agents, public_key(own), parties
        # Signatures are random: repeated in another run, they must be the same bytes.
        self.sign = cache(self.helper.sign)

    def masker(self, peer: int) -> Masker:
        """What the agents of a connection mask with after they have started."""
        mine = public_key(self._agents[peer])
        secret = Secret(self._agents[peer], agent=mine, helper=self._helper)
        return Masker(secret, mine, self._parties[peer])


@dataclass(slots=True, kw_only=True, eq=False)
class Held:
    """What a split cloud's halves hold after a run.

    Attributes:
        masked: every masked contribution that the cloud has seen, by connection, in order: its
            numbers as they arrived.
        sums: per round, what is left when the cloud has taken the masks off, in grid steps.
        noise: per round, the noise that the helper has drawn, which it can work out from its
            answer and the masks.
    """

    masked: list[tuple[int, bytes]] = field(default_factory=list)
    sums: list[Integers] = field(default_factory=list)
    noise: list[Integers] = field(default_factory=list)

    def noisy_sums(self, view: ViewName, released: Integers) -> Integers:
        """Return the noisy sums that a party faces, one row per round, in grid steps."""
        if view == "cloud":
            return np.array(self.sums)
        return released + np.array(self.noise) if view == "helper" else released


@final
class HelperHalf:
    """A helper that is asked in the same process; every message travels as its bytes.

    Args:
        plan: the noise.
        config: the run.
        keys: of all parties.
        sampler: adds its noise.
    """

    def __init__(self, plan: NoisePlan, config: RunConfig, keys: Keys, sampler: Blinding) -> None:
        self._noted = _Noted(sampler)
        self._answers = Answers(plan, config, keys.helper, self._noted, sign=keys.sign)
        self._setup = self._answers.setup
        self._notary = Notary(bytes(32), config.hash)
        self._config = config
        self._noisy = np.flatnonzero(plan.sigma > 0)
        self._sums = plan.cloud.sums.count
        self.restart()

    def restart(self) -> None:
        """Begin another run, from round 1."""
        self._machine = HelperMachine(lambda text: self._setup, lambda config: self._notary)
        self._numbers: dict[tuple[tuple[int, ...], bytes], int] = {}
        self._receipt = b""
        self._machine.connect()
        self._say(Open(version=HELPER_VERSION, config=self._config.text))

    def meet(self, agents: tuple[int, ...], mask: bytes) -> bytes:
        """Return the helper's signature under what is asked of agents."""
        number = self._numbers.setdefault((agents, mask), len(self._numbers) + 1)
        pledged = self._say(Introduce(number=number, agents=list(agents), mask=mask))
        if not isinstance(pledged, Pledged):
            raise AssertionError("the helper refused honest agents")
        return pledged.pledge

    def ask(self, full: Commit, held: Held) -> bytes:
        """Return the helper's answer about a round, and keep what either half makes of it."""
        taken = []
        for part in full.parts:
            mask = mask_of(part.data)
            number = self._numbers[part.party.agents, mask.key]
            taken.append((number, mask.session, mask.round))
        answer = self._say(Ask(round=full.k, taken=sorted(taken), receipt=self._receipt))
        if not isinstance(answer, Answer):
            raise AssertionError("the helper refused an honest question")
        self._receipt = answer.receipt
        total = np.zeros(self._sums, dtype=np.int64)
        for part in full.parts:
            total[part.party.sums] += unpack_whole(part.data[MASK_HEAD:])
        numbers = unpack_whole(answer.values)
        held.sums.append(total[self._noisy] - numbers)
        held.noise.append(numbers - self._noted.masks)
        return answer.values

    def _say(self, message: ToHelper) -> FromHelper:
        """Say something, and return the last word in answer to it."""
        actions = deque(self._machine.receive(decode_to_helper(encode(message))))
        frame = b""
        while actions:
            action = actions.popleft()
            if isinstance(action, AnswerRound):
                actions.extend(self._machine.committed(self._answers.answer(action)))
            elif isinstance(action, Send):
                frame = encode(action.message)
        return decode_from_helper(frame)


@final
class _Noted:
    """Remembers the sum of masks that noise was added to: the helper knows it."""

    def __init__(self, sampler: Blinding) -> None:
        self._sampler = sampler
        self.masks: Integers = np.zeros(0, dtype=np.int64)

    def blind(self, residues: Integers) -> Integers:
        self.masks = residues.copy()
        return self._sampler.blind(residues)


def masks_reused(held: Held, parties: tuple[Party, ...]) -> bool:
    """Whether two different contributions of a connection are behind one mask.

    Their difference is then one of contributions, which lies in a known range; that of two
    contributions behind different masks is any number of 64 bits.
    """
    for peer, party in enumerate(parties):
        sent = list(dict.fromkeys(data for to, data in held.masked if to == peer))
        width = (party.most - party.least).astype(np.float64)
        chance = float(np.prod(np.minimum(1.0, (2 * width + 1) / 2.0**64)))
        if chance * len(sent) ** 2 > FALSE_ALARM / 100:
            continue  # ranges so wide that even new masks would look like old ones
        rows = np.array([unpack_whole(data) for data in sent]).reshape(-1, width.size)
        for i in range(len(rows) - 1):
            apart = np.abs((rows[i + 1 :] - rows[i]).astype(np.float64))
            if np.any(np.all(apart <= width, axis=1)):
                return True
    return False
