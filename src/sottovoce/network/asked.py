"""The question at hand, beside a split cloud's store: a cloud that is killed asks the same again.

The helper answers once per round. A cloud that was killed between its question and its commit,
while an agent lost its saved state and so has new masks, could not put the same question together
any more. It holds masked contributions, which tell nothing, and the receipt of the last answer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, final

import msgspec

from sottovoce.network.protocol.actions import Commit, Part, Party
from sottovoce.network.protocol.messages import Gap
from sottovoce.network.slots import Slots

_MAGIC: Final = b"svasked1"

_decoder = msgspec.msgpack.Decoder(
    tuple[int, bytes, list[tuple[list[int], bytes, tuple[Gap, ...]]]]
)
_encoder = msgspec.msgpack.Encoder()


@final
class Asked:
    """What was asked last.

    Args:
        store: the store's file.
        config: SHA-256 of the run's configuration.
        agents: agents of the problem.
        sums: how many sums there are.

    Attributes:
        receipt: of the helper's last answer, empty if it is not known.
        room: bytes that a question takes at most.
    """

    def __init__(self, store: Path, config: bytes, *, agents: int, sums: int) -> None:
        self.room = (1 << 16) + agents * (704 + 8 * sums)
        self.receipt = b""
        path = store.with_name(store.name + ".asked")
        # A mark of the run is part of the magic's place: another run's file is written over.
        self._slots = Slots(path, _MAGIC[:4] + config[:4], self.room)

    def parts(self, k: int, party: Callable[[tuple[int, ...]], Party]) -> tuple[Part, ...]:
        """Return what had been said of round k when the helper was asked, if it was."""
        for body in self._slots.bodies():
            round_, receipt, said = _decoder.decode(body)
            if round_ == k:
                self.receipt = receipt
                return tuple(
                    Part(party=party(tuple(who)), data=data, missed=missed)
                    for who, data, missed in said
                )
        return ()

    def write(self, full: Commit) -> None:
        """Keep a question before it is asked."""
        said = [(part.party.agents, part.data, part.missed) for part in full.parts]
        self._slots.write(full.k, _encoder.encode((full.k, self.receipt, said)))

    def close(self) -> None:
        """Close the file."""
        self._slots.close()
