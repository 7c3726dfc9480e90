"""Nothing that the cloud stores, sends or logs holds a number of anybody's private set."""

from __future__ import annotations

import logging
import struct
from pathlib import Path

import pytest
from network_harness import plan_for, play, run

import sottovoce as sv
from sottovoce.network.round_arithmetic import SimulatedSampler
from sottovoce.study.loopback import Loopback

CANARIES = (0.7123456789, 3.9182736455, 4.3344556677)


def problem(*, secret: bool) -> sv.Problem:
    x = sv.agents(7, lower=-5, upper=5, dim=[2, 1, 1, 1, 1, 1, 1])
    (a, b), c, d = x[0], x[1], x[2]
    low, high, most = CANARIES
    local = [a + b >= low, c <= high, sv.maximum(d, -2 * d) <= most, a - b <= most]
    return sv.Problem(
        objectives=[
            (a - 1) ** 2 + (b - 1) ** 2,
            *((s - k / 4) ** 2 for k, s in enumerate(list(x)[1:])),
        ],
        constraints=[a + b + sum(list(x)[1:]) <= 3],
        local=local if secret else [],
    )


def spellings() -> list[bytes]:
    """Every way in which a canary might be written down.

    Not as a float32, whose 4 bytes the digests in a store have by chance (1e-5); 8 bytes they have
    with a chance below 1e-13.
    """
    found = []
    for value in CANARIES:
        found += [struct.pack("<d", value), struct.pack(">d", value)]
        found += [f"{value:.{digits}f}".encode() for digits in (5, 8)]
    return found


def test_the_cloud_knows_nothing_of_private_sets(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stated = problem(secret=True)
    plan = plan_for(stated)
    assert stated.cloud.fingerprint == problem(secret=False).cloud.fingerprint
    with caplog.at_level(logging.DEBUG):
        result, x = run(play(stated, plan, keys, tmp_path, rounds=15, seed=3, keep_states=True))
    assert x[0] + x[1] >= CANARIES[0] - 1e-9  # the rows did count
    seen = {path.name: path.read_bytes() for path in tmp_path.glob("run.db*")}
    seen["logs"] = caplog.text.encode()
    seen["result"] = repr(result).encode()
    seen["view"] = repr(stated.cloud).encode() + repr(plan).encode()
    loop = Loopback(
        stated,
        plan,
        algorithm=sv.DualAveraging(),
        sampler=SimulatedSampler(plan.sigma, 3),
        rounds=15,
        agent=1,
    )
    seen["frames"] = b"".join(frame for _, frame in loop.play().frames)
    assert len(seen["frames"]) > 1000
    for where, text in seen.items():
        for canary in spellings():
            assert canary not in text, where
