from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sottovoce.network.errors import NetworkError
from sottovoce.network.protocol.agent import Memory
from sottovoce.network.saved import Saved

START = Memory(x=b"\0" * 8, answer=b"\0" * 8)


def memory(k: int) -> Memory:
    return Memory(
        config=b"c" * 32,
        round=k,
        receipt=bytes([k]) * 64,
        x=bytes([k]) * 8,
        answer=bytes([k + 1]) * 8,
    )


def test_an_agent_goes_on_from_its_last_round(tmp_path: Path) -> None:
    path = tmp_path / "3.state"
    saved = Saved(path, START)
    assert saved.memory == START
    for k in range(5):
        saved.write(memory(k))
    saved.close()
    again = Saved(path, START)
    assert again.memory == memory(4)
    again.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_torn_write_leaves_the_round_before(tmp_path: Path) -> None:
    path = tmp_path / "3.state"
    saved = Saved(path, START)
    saved.write(memory(3))
    saved.write(memory(4))
    saved.close()
    whole = path.read_bytes()
    half = len(whole) // 2
    for cut in range(20, 120, 10):
        torn = bytearray(whole)
        torn[cut] ^= 0xFF  # round 4 lies in the first slot
        path.write_bytes(bytes(torn))
        again = Saved(path, START)
        assert again.memory == memory(3)
        again.close()
    path.write_bytes(b"x" * half)
    with pytest.raises(NetworkError, match="damaged"):
        Saved(path, START)


def test_a_file_of_other_agents_is_refused(tmp_path: Path) -> None:
    saved = Saved(tmp_path / "s", START)
    saved.write(memory(1))
    saved.close()
    with pytest.raises(NetworkError):
        Saved(tmp_path / "s", Memory(x=b"\0" * 16, answer=b"\0" * 16))
