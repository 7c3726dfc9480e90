"""Masks: what one side adds the other can take away, nobody else can, and none is used twice."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from scipy import stats

from sottovoce.network import masks
from sottovoce.network.helper_rounds import MaskSums
from sottovoce.network.identity.certificates import public_key
from sottovoce.network.masks import Masker, ReadAhead, Secret, Stream
from sottovoce.network.protocol.codec import unpack_whole
from sottovoce.network.protocol.messages import SESSION

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
