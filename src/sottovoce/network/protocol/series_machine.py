"""Agents of a series between its runs: those who say hello wait for the next run to open.

A peer that says hello without a configuration is parked, unless the current run takes its agents
in. When a run opens, the parked peers whose agents take part are passed on to its machine; after
the end each says hello anew, on the same connection. A configuration of a run that is over gets the
refusal ``over``: the agent gives that run up, and says hello without one.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import pairwise
from typing import final

from sottovoce.network.protocol.actions import Action, Close, Incident, Send
from sottovoce.network.protocol.cloud_machine import CloudMachine, CloudPhase
from sottovoce.network.protocol.messages import Code, Error, FromAgent, Hello


@final
class SeriesMachine:
    """What a server of a series speaks to: the current or last run's machine, and who waits."""

    def __init__(self, agents: int) -> None:
        self._agents = agents
        self.run: CloudMachine | None = None  # the current run's, or the last one's
        # The configuration of the run that a restarted service is about to go on with.
        self.interrupted = b""
        self._allowed: dict[int, Container[int]] = {}  # by peer, the agents of its certificate
        self._parked: dict[int, Hello] = {}

    @property
    def waiting(self) -> set[int]:
        """The agents that are parked, from 1."""
        return {agent for hello in self._parked.values() for agent in hello.agents}

    @property
    def settled(self) -> bool:
        """Whether every peer is parked."""
        return len(self._parked) == len(self._allowed)

    @property
    def present(self) -> set[int]:
        """The agents that are connected, from 1."""
        return self.waiting | (set() if self.run is None else self.run.present)

    @property
    def running(self) -> bool:
        """Whether a run is open."""
        return self.run is not None and self.run.phase < CloudPhase.DONE

    def open(self, run: CloudMachine) -> list[Action]:
        """A run opens or goes on: those who are parked and take part are asked for their part."""
        self.run, self.interrupted = run, b""
        actions: list[Action] = []
        for peer, hello in list(self._parked.items()):
            if self._takes_part(run, hello):
                del self._parked[peer]
                run.connect(peer, self._allowed[peer])
                actions += run.receive(peer, hello)
        return actions

    def give_up(self) -> list[Action]:
        """The run that was interrupted does not go on."""
        self.interrupted = b""
        waiting = [peer for peer, hello in self._parked.items() if hello.config]
        return [action for peer in waiting for action in self._drop(peer, Code.OVER)]

    def connect(self, peer: int, allowed: Container[int]) -> list[Action]:
        """A peer connected whose certificate speaks for the agents ``allowed``, from 1."""
        self._allowed[peer] = allowed
        return []

    def disconnect(self, peer: int) -> None:
        """The connection of a peer is gone."""
        self._allowed.pop(peer, None)
        self._parked.pop(peer, None)
        if self.run is not None:
            self.run.disconnect(peer)

    def receive(self, peer: int, message: FromAgent) -> list[Action]:
        """A message arrived."""
        if peer not in self._allowed:
            return []
        if peer in self._parked:
            return self._drop(peer, Code.UNEXPECTED)
        if isinstance(message, Hello):
            return self._hello(peer, message)
        return [] if self.run is None else self.run.receive(peer, message)

    def refuse(self, peer: int, code: Code) -> list[Action]:
        """What arrived was not a message, or the connection must end for another reason."""
        if self.run is not None and self.run.agents_of(peer):
            return self.run.refuse(peer, code)
        silent = code is Code.SILENT and peer in self._parked
        return [] if silent or peer not in self._allowed else self._drop(peer, code)

    def _hello(self, peer: int, hello: Hello) -> list[Action]:
        run, allowed = self.run, self._allowed[peer]
        if run is not None and run.phase is CloudPhase.DONE:
            run.disconnect(peer)  # it has heard the end
        if run is not None and (self.running or run.phase is CloudPhase.DONE):
            named = hello.config == run.setup.config_hash
            fresh = not hello.config and self.running
            if run.agents_of(peer):
                return run.receive(peer, hello)  # out of turn
            if (named or fresh) and self._takes_part(run, hello):
                run.connect(peer, allowed)
                return run.receive(peer, hello)
        if hello.config and hello.config != self.interrupted:
            return self._drop(peer, Code.OVER, tuple(hello.agents))
        late = bool(hello.round or hello.receipt) and not hello.config
        if late or any(a >= b for a, b in pairwise(hello.agents)):
            return self._drop(peer, Code.MALFORMED)
        if not all(agent in allowed and agent <= self._agents for agent in hello.agents):
            return self._drop(peer, Code.NOT_YOURS, tuple(hello.agents))
        older = [p for p, other in self._parked.items() if set(other.agents) & set(hello.agents)]
        actions = [a for p in older for a in self._drop(p, Code.REPLACED)]
        self._parked[peer] = hello
        return actions

    def _takes_part(self, run: CloudMachine, hello: Hello) -> bool:
        return not run.setup.absent.issuperset(hello.agents)

    def _drop(self, peer: int, code: Code, agents: tuple[int, ...] = ()) -> list[Action]:
        """Refuse a message and end the connection."""
        waiting = self._parked.get(peer)
        agents = agents if waiting is None else tuple(waiting.agents)
        k = 0 if self.run is None else self.run.round
        self.disconnect(peer)
        return [
            Incident(code=code, agents=agents, k=k),
            Send(peers=(peer,), message=Error(code=code, round=k)),
            Close(peer=peer, code=code),
        ]
