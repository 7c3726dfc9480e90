"""Masks: what one side adds the other can take away, nobody else can, and none is used twice."""

from __future__ import annotations

import hashlib
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st
from network_harness import split_plan
from scipy import stats

import sottovoce as sv
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.network import masks
from sottovoce.network.helper_rounds import HelperRounds, MaskSums
from sottovoce.network.identity.authority import new_key
from sottovoce.network.identity.certificates import Identity, public_key
from sottovoce.network.masks import HelperKeys, Masker, ReadAhead, Secret, Stream
from sottovoce.network.protocol.actions import AnswerRound, Participant, Send
from sottovoce.network.protocol.codec import Integers, decode_to_helper, encode, unpack_whole
from sottovoce.network.protocol.helper_machine import HelperMachine
from sottovoce.network.protocol.messages import SESSION, Answer, Ask, Introduce, Open
from sottovoce.network.setup import make_config, parties_of
from sottovoce.privacy.adjacency import Everything, Trajectory
from sottovoce.problem.problem import Problem

CONFIG = hashlib.sha256(b"a run").digest()


def pair() -> tuple[Secret, Secret, bytes, bytes]:
    agent, helper = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    names = {"agent": public_key(agent), "helper": public_key(helper)}
    return Secret(agent, **names), Secret(helper, **names), names["agent"], names["helper"]


def covered(masker: Masker, k: int, values: list[int]) -> tuple[bytes, np.ndarray]:
    sent = masker.mask(CONFIG, k, np.array(values, dtype=np.int64))
    return sent[:SESSION], unpack_whole(sent[SESSION:])


@pytest.mark.parametrize("numbers", [1, 2, 5, 24])
def test_the_helper_takes_off_what_the_agent_put_on(numbers: int) -> None:
    own, other, key, _ = pair()
    masker = Masker(own, key, (4, 7))
    rng = np.random.default_rng(numbers)
    for k in (1, 2, 3, 7, 8, 1000):
        values = rng.integers(-(2**51), 2**51, numbers)
        session, masked = covered(masker, k, values.tolist())
        mask = other.stream(CONFIG, session, (4, 7), numbers).rounds(k, 1)[0]
        assert (masked - mask).tolist() == values.tolist()


def test_masks_are_as_the_page_on_the_protocol_says() -> None:
    agent, helper = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    a, h, session = public_key(agent), public_key(helper), bytes(range(SESSION))
    covered = b"".join(number.to_bytes(8, "little") for number in (5, 2, 7, 1_000_000))
    info = b"sottovoce mask 2" + a + h + session + covered
    kdf = HKDF(algorithm=hashes.SHA256(), length=32, salt=CONFIG, info=info)
    key = kdf.derive(helper.exchange(agent.public_key()))
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(48 * 4))
    for k in range(1, 5):  # 5 sums take 40 bytes, and a round begins with a whole block
        told = np.frombuffer(stream[48 * (k - 1) : 48 * (k - 1) + 40], "<i8")
        mine = Secret(agent, agent=a, helper=h).stream(CONFIG, session, (2, 7, 1_000_000), 5)
        assert mine.rounds(k, 1)[0].tolist() == told.tolist()


def test_no_mask_returns_in_another_round_session_run_or_agent() -> None:
    own, *_ = pair()
    other, *_ = pair()
    config = hashlib.sha256(b"another run").digest()
    streams = [
        own.stream(CONFIG, bytes(16), (1,), 3),
        own.stream(CONFIG, bytes(15) + b"1", (1,), 3),
        own.stream(config, bytes(16), (1,), 3),
        other.stream(CONFIG, bytes(16), (1,), 3),
    ]
    drawn = np.concatenate([stream.rounds(1, 500).ravel() for stream in streams])
    assert np.unique(drawn).size == drawn.size  # 6,000 of 2^64: false alarms below 1e-12


def test_masks_of_one_session_share_no_number_whomever_they_cover() -> None:
    """Overlapping stretches: no (p, k) and (p', k') of one session have a number in common."""
    own, *_ = pair()
    covered: list[tuple[tuple[int, ...], int]] = [((1,), p) for p in range(1, 9)]
    covered += [(tuple(range(1, n)), p) for n in range(3, 7) for p in (1, 2, 4, 8)]
    covered += [((2,), 1), ((12,), 1), ((1 << 40,), 1), ((1, 3), 2), ((2, 3), 2)]
    streams = [own.stream(CONFIG, bytes(16), agents, p) for agents, p in covered]
    drawn = np.concatenate([stream.rounds(1, 40).ravel() for stream in streams])
    assert np.unique(drawn).size == drawn.size  # under 5,000 of 2^64: false alarms below 1e-12


def test_a_masker_never_covers_two_contributions_with_one_mask() -> None:
    own, _, key, _ = pair()
    masker = Masker(own, key, (1,))
    first = covered(masker, 1, [5, 6])
    again = covered(masker, 1, [7, 8])  # whoever asks for an old round gets a new session
    assert first[0] != again[0]
    sessions = {covered(masker, k, [1, 2])[0] for k in (2, 3, 4)}
    assert sessions == {again[0]}
    assert covered(masker, 3, [1, 2])[0] not in {first[0], again[0]}
    started = [Masker(own, key, (1,)) for _ in range(2)]
    assert covered(started[0], 5, [1, 2])[0] != covered(started[1], 5, [1, 2])[0]


def test_masks_are_uniform_so_that_a_masked_contribution_tells_nothing() -> None:
    own, *_ = pair()
    drawn = own.stream(CONFIG, bytes(16), (1,), 4).rounds(1, 20_000).astype("<i8").tobytes()
    counts = np.bincount(np.frombuffer(drawn, dtype=np.uint8), minlength=256)
    expected = counts.sum() / 256
    limit = stats.chi2.isf(1e-9, 255)  # false alarms: 1e-9
    assert np.square(counts - expected).sum() / expected < limit


def test_drawing_ahead_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(bytes(32), 3)
    ahead = ReadAhead(stream.rounds, 24)
    for k in [1, 2, 3, 4, 5, 6, 7, 20, 21, 4, 1_000_000]:
        assert ahead[k].tolist() == stream.rounds(k, 1)[0].tolist()
    parties = [(Stream(bytes([i]) * 32, 2), np.array([i, i + 1])) for i in range(4)]
    for most in (masks.AHEAD_BYTES, 100):
        monkeypatch.setattr(masks, "AHEAD_BYTES", most)
        total = MaskSums(5)
        for k, names in [(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "b"), (6, "b"), (6, "b")]:
            taken = parties if names == "a" else parties[1:]
            wanted = np.zeros(5, dtype=np.int64)
            for own, places in taken:
                wanted[places] += own.rounds(k, 1)[0]
            assert total(k, taken).tolist() == wanted.tolist()


# --- A cloud that may say anything to the helper: what every answer takes the masks off ---


ROUNDS = 6
CONNECTIONS = (((1, 2, 3), 0), ((4,), 0), ((2,), 1))
"""Agents that share a connection, and their key: two gateways have one certificate."""

CERTIFIED = (range(1, 5), range(2, 3))
STARTS = ((0, 0), (0, 1), (1, 0), (2, 0))
"""A connection, and how often it was started before: each start is a session."""

Contribution = tuple[tuple[int, ...], bytes, int]
"""Whose it is, in which session and round."""


class NoNoise:
    """What is answered is the sum of the masks, bare."""

    def blind(self, residues: Integers) -> Integers:
        return residues.copy()


class World:
    """Agents that have masked contributions, a helper, and what a cloud got out of it."""

    def __init__(self, hide: Trajectory | Everything) -> None:
        x = sv.agents(4, lower=-1, upper=1)
        rows = [x[0] + x[1] <= 1, x[0] - x[1] <= 1, x[1] + x[2] <= 1, x[2] + 2 * x[3] <= 1]
        objectives = [x[i] ** 2 for i in range(4)]
        plan = split_plan(Problem(agents=x, objectives=objectives, constraints=rows), hide=hide)
        config = make_config(plan, DualAveraging(), rounds=ROUNDS, noise="secure", run_id="r")
        own, signing = X25519PrivateKey.generate(), new_key()
        keys = [X25519PrivateKey.generate() for _ in CERTIFIED]
        self.keys = [public_key(key) for key in keys]
        listed = [
            Identity(mask=mask, agents=(agents,))
            for mask, agents in zip(self.keys, CERTIFIED, strict=True)
        ]
        held = HelperKeys(own, signing, lambda: listed)
        self.config = config
        self.answers = HelperRounds(plan, config, held, NoNoise(), sign=lambda terms: b"signed")
        self.alone = HelperRounds(plan, config, held, NoNoise(), sign=lambda terms: b"signed")
        self.sessions: list[bytes] = []
        self.behind: dict[int, Contribution] = {}
        parties = parties_of(plan)
        for connection, _ in STARTS:
            agents, key = CONNECTIONS[connection]
            secret = Secret(keys[key], agent=self.keys[key], helper=public_key(own))
            self._contribute(
                Masker(secret, self.keys[key], agents), agents, parties(agents).sums.size
            )

    def _contribute(self, masker: Masker, agents: tuple[int, ...], numbers: int) -> None:
        """Mask a 0 in every round, so that what is sent is the mask itself."""
        for k in range(1, ROUNDS + 1):
            sent = masker.mask(self.config.hash, k, np.zeros(numbers, dtype=np.int64))
            for number in unpack_whole(sent[SESSION:]).tolist():
                self.behind[number] = (agents, sent[:SESSION], k)
        self.sessions.append(sent[:SESSION])

    def begin(self) -> None:
        """A new run of the helper's machine."""
        self.digests: dict[int, bytes] = {}
        self.machine = HelperMachine(lambda text: self.answers, bytes(32), self.digests.get)
        self.receipt = b""
        self.unmasked: list[list[Contribution]] = []

    def say(self, message: Any) -> None:
        actions = list(self.machine.receive(1, decode_to_helper(encode(message))))
        while actions:
            action = actions.pop(0)
            if isinstance(action, AnswerRound):
                answered = self.answers.answer(action)
                self.digests[answered.k] = answered.digest
                self._take_apart(action, unpack_whole(answered.release))
                actions = self.machine.committed(answered) + actions
            elif isinstance(action, Send) and isinstance(action.message, Answer):
                self.receipt = action.message.receipt

    def _take_apart(self, asked: AnswerRound, total: Integers) -> None:
        """Find the contributions whose masks are in an answer, each as often as it is there.

        Numbers of 64 bits tell them: of a few hundred two are alike with a chance below 1e-14.
        """
        terms = [self._alone(asked, said) for said in asked.taken]
        assert np.array_equal(sum(terms), total)
        found = [{self.behind[n] for n in term.tolist() if n in self.behind} for term in terms]
        self.unmasked.append([contribution for term in found for contribution in term])

    def _alone(self, asked: AnswerRound, said: Participant) -> Integers:
        one = AnswerRound(k=asked.k, question=b"", taken=(said,), previous=asked.previous)
        return unpack_whole(self.alone.answer(one).release)


SUBSETS = [some for size in (1, 2, 3, 4) for some in combinations(range(1, 5), size)]
HONEST = [(*CONNECTIONS[connection], start) for start, (connection, _) in enumerate(STARTS)]
LIES = st.tuples(
    st.sampled_from(SUBSETS), st.sampled_from((0, 0, 0, 1)), st.sampled_from(range(len(STARTS)))
)
PARTS = st.tuples(
    st.integers(1, 4),  # what the cloud calls them
    st.sampled_from(HONEST) | LIES,  # agents, whose key, which session
    st.sampled_from((0, 0, 0, 1, 2)),  # how many rounds ago
)
QUESTIONS = st.tuples(
    st.sampled_from((1, 1, 1, 1, 0, 2)),  # the next round, the same again, a later one
    st.lists(PARTS, min_size=1, max_size=4, unique_by=lambda part: part[0]).map(sorted),
    st.booleans(),  # whether it shows the last receipt
    st.booleans(),  # whether it begins a new connection
)
WORLDS = {"trajectory": World(Trajectory(radius=1.0)), "everything": World(Everything(rounds=6))}


def attacked(world: World, questions: list[Any]) -> None:
    """Put questions, whatever is answered."""
    world.begin()
    for later, parts, shown, anew in questions:
        if anew or world.machine.last is None:
            world.machine.connect(1)
            world.say(Open(config="run"))
        done = 0 if world.machine.last is None else world.machine.last.k
        k, taken = max(1, done + later), []
        for number, (agents, key, session), ago in parts:
            world.say(Introduce(number=number, agents=list(agents), mask=world.keys[key]))
            taken.append((number, world.sessions[session], max(1, k - ago)))
        world.say(Ask(round=k, taken=taken, receipt=world.receipt if shown else b""))


@pytest.mark.parametrize("hide", sorted(WORLDS))
@settings(max_examples=400, deadline=None)
@given(questions=st.lists(QUESTIONS, min_size=1, max_size=6))
def test_several_sessions_under_one_noise_and_overlapping_stretches_are_not_to_be_had(
    hide: str, questions: list[Any]
) -> None:
    world = WORLDS[hide]
    attacked(world, questions)
    for found in world.unmasked:
        agents = [agent for contribution in found for agent in contribution[0]]
        assert len(agents) == len(set(agents)), "an answer unmasks an agent twice"
    if hide == "trajectory":
        said = [contribution for found in world.unmasked for contribution in found]
        assert len(said) == len(set(said)), "two answers unmask one contribution"


def test_honest_questions_about_two_gateways_with_one_certificate_are_answered() -> None:
    world = WORLDS["trajectory"]
    parts = [(1, HONEST[1], 0), (2, HONEST[2], 0)]
    attacked(world, [(1, parts, True, True)] * ROUNDS)
    assert [sorted(a for a, _, _ in found) for found in world.unmasked] == (
        [[(1, 2, 3), (4,)]] * ROUNDS
    )
