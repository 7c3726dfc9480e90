from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import numpy as np
import pytest

from sottovoce.errors import NetworkError
from sottovoce.network.protocol.agent import AgentMachine, Join, Memory, Send
from sottovoce.network.protocol.codec import pack, pack_whole
from sottovoce.network.protocol.messages import VERSION, Contribution, Welcome
from sottovoce.network.saved import Saved

START = Memory(x=b"\0" * 8, answer=b"\0" * 8)


def opened(path: Path) -> Saved:
    return Saved(path, START, sums=3)


def memory(k: int) -> Memory:
    return Memory(
        config=hashlib.sha256(b"").digest(),
        round=k,
        receipt=bytes([k]) * 64,
        x=bytes([k]) * 8,
        answer=bytes([k + 1]) * 8,
        sent=bytes([k + 2]) * 24,
    )


def test_an_agent_goes_on_from_its_last_round(tmp_path: Path) -> None:
    path = tmp_path / "3.state"
    saved = opened(path)
    assert saved.memory == START
    for k in range(5):
        saved.write(memory(k))
    saved.close()
    again = opened(path)
    assert again.memory == memory(4)
    again.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_was_said_is_kept_so_that_it_is_said_again_in_the_same_bytes(tmp_path: Path) -> None:
    saved = opened(tmp_path / "3.state")
    saved.write(memory(7))
    saved.close()
    again = opened(tmp_path / "3.state")
    machine = AgentMachine((3,), again.memory, lambda welcome: None)
    again.close()
    machine.connected()
    (join,) = machine.receive(
        Welcome(
            version=VERSION, config="", round=8, rounds=9, spoke=0, states=False, prices=4,
            lower=pack(np.array([-1.0])), upper=pack(np.array([1.0])), sums=[0, 2, 3],
            grid=pack(np.ones(3)), least=pack_whole(np.full(3, -9)),
            most=pack_whole(np.full(3, 9)), rows=[], columns=[],
        )
    )  # fmt: skip
    assert isinstance(join, Join)
    _, said = machine.joined(np.array([1, 2, 3]))  # whatever its code would say today
    assert said == Send(message=Contribution(round=8, values=memory(7).sent))


def test_a_torn_write_leaves_the_round_before(tmp_path: Path) -> None:
    path = tmp_path / "3.state"
    saved = opened(path)
    saved.write(memory(3))
    saved.write(memory(4))
    saved.close()
    whole = path.read_bytes()
    half = len(whole) // 2
    for cut in range(20, 120, 10):
        torn = bytearray(whole)
        torn[cut] ^= 0xFF  # round 4 lies in the first slot
        path.write_bytes(bytes(torn))
        again = opened(path)
        assert again.memory == memory(3)
        again.close()
    path.write_bytes(b"x" * half)
    with pytest.raises(NetworkError, match="damaged"):
        opened(path)


def test_a_file_of_other_agents_is_refused(tmp_path: Path) -> None:
    saved = opened(tmp_path / "s")
    saved.write(memory(1))
    saved.close()
    with pytest.raises(NetworkError):
        Saved(tmp_path / "s", Memory(x=b"\0" * 16, answer=b"\0" * 16), sums=3)
