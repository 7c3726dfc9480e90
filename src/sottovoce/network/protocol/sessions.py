"""The connections of a cloud's machine: where each is, and who speaks on it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Final, final

from sottovoce.network.protocol.actions import Party
from sottovoce.network.protocol.messages import Hello

CREDIT: Final = 8
"""Messages an agent may send between two rounds; an honest one needs one or two."""


class Talk(IntEnum):
    """Where a connection is."""

    GREETING = auto()
    MEETING = auto()
    ACTIVE = auto()


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One connection: who it may speak for, and who it does speak for."""

    allowed: Container[int]
    hello: Hello | None = None
    party: Party | None = None
    credit: int = CREDIT

    @property
    def talk(self) -> Talk:
        """Whether it has said hello, and been let in."""
        if self.party is None:
            return Talk.GREETING if self.hello is None else Talk.MEETING
        return Talk.ACTIVE

    @property
    def agents(self) -> tuple[int, ...]:
        """The agents it speaks for, from 1."""
        return () if self.party is None else self.party.agents


@final
class Sessions:
    """All connections, by the number of the peer; an agent speaks on one of them at most."""

    def __init__(self) -> None:
        self.moves = 0
        """How often agents have come or gone."""
        self._sessions: dict[int, Session] = {}
        self._speakers: dict[int, int] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._sessions))

    def get(self, peer: int) -> Session | None:
        """Return a connection."""
        return self._sessions.get(peer)

    def open(self, peer: int, allowed: Container[int]) -> None:
        """A peer has connected whose certificate speaks for the agents ``allowed``."""
        self._sessions[peer] = Session(allowed=allowed)

    def close(self, peer: int) -> Session | None:
        """Forget a connection, and return it."""
        session = self._sessions.pop(peer, None)
        if session is not None:
            for agent in session.agents:
                del self._speakers[agent]
            self.moves += 1
        return session

    def admit(self, peer: int, party: Party) -> None:
        """A peer speaks for a party from now on; nobody else may at that time."""
        self._sessions[peer].party = party
        self._speakers.update(dict.fromkeys(party.agents, peer))
        self.moves += 1

    def speaking_for(self, agents: Iterable[int]) -> set[int]:
        """Return the connections on which some of the agents speak."""
        return {peer for a in agents if (peer := self._speakers.get(a)) is not None}

    def active(self) -> tuple[int, ...]:
        """Return the peers that have been let in."""
        return tuple(peer for peer, s in self._sessions.items() if s.party is not None)

    def renew_credit(self) -> None:
        """A round was sent: everybody may speak again."""
        for session in self._sessions.values():
            session.credit = CREDIT

    @property
    def present(self) -> set[int]:
        """The agents that are connected, from 1."""
        return set(self._speakers)

    @property
    def connected(self) -> int:
        """How many they are."""
        return len(self._speakers)
