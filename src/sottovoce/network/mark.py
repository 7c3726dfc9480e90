"""How far a run had got, beside its store: a store that lost rounds meets what it once had.

The mark is written after a round is durable and before a byte of it leaves, without a wait for the
disk. It is never ahead of what the store has promised to keep, so it accuses no honest store; after
a loss of power it may be some rounds behind, and then proves that much less.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, final

import msgspec

from sottovoce.network.errors import StoreError
from sottovoce.network.slots import Slots

_MAGIC: Final = b"svmark_1"
_ROOM: Final = 256


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run was.

    Attributes:
        run_id: its name.
        rounds: rounds that were released.
        digest: of the last of them, or of the configuration.
        halted: whether it was halted for good.
    """

    run_id: str
    rounds: int = 0
    digest: bytes = b""
    halted: bool = False


_decoder = msgspec.msgpack.Decoder(Reached)
_encoder = msgspec.msgpack.Encoder()


def mark_of(store: Path) -> Path:
    """Return the file of a store's mark."""
    return store.with_name(store.name + ".mark")


@final
class Mark:
    """The mark of one store, made with the first write.

    Args:
        store: the store's file, without symbolic links.

    Raises:
        StoreError: the mark is damaged beyond both of its slots.
    """

    def __init__(self, store: Path) -> None:
        self._path = mark_of(store)
        self._slots: Slots | None = None
        self.reached: Reached | None = None
        self._turn = 0
        if not self._path.exists():
            return
        self._slots = Slots(self._path, _MAGIC, _ROOM)
        found = [_decoder.decode(body) for body in self._slots.bodies()]
        if not found and not self._slots.empty:
            self.close()
            raise StoreError(
                f"{self._path} is damaged, so nobody can tell whether {store} has lost rounds: put "
                "it back, or say --new to begin a new run, which spends privacy anew"
            )
        self.reached = max(found, key=lambda r: (r.rounds, r.halted), default=None)

    def write(self, reached: Reached) -> None:
        """Note that the run has got this far."""
        if self._slots is None:
            self._slots = Slots(self._path, _MAGIC, _ROOM)
        if self.reached is None:
            # Both slots are on the disk before the first round: later writes replace, never grow.
            self._slots.write(1, _encoder.encode(reached))
            self._slots.sync()
        self._slots.write(self._turn, _encoder.encode(reached))
        self._turn += 1
        self.reached = reached

    def close(self) -> None:
        """Close the file."""
        if self._slots is not None:
            self._slots.close()
