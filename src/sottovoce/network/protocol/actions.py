"""What the four state machines work with, and the actions that they ask for: plain values.

A machine is ``event -> actions``: no sockets, no disk, no noise. ``network.runner``
carries its actions out in order, and makes a round durable before anything of it is sent.
Agents are numbered from 1, places from 0; vectors are little-endian bytes where they travel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from sottovoce.network.protocol.codec import Box, Floats, Integers, MaskName, pack, pack_whole
from sottovoce.network.protocol.messages import (
    Code,
    FromAgent,
    FromCloud,
    FromHelper,
    Gap,
    Welcome,
)


class Party(Struct, frozen=True, kw_only=True, eq=False):
    """Agents that one connection speaks for: an agent alone, or those of a gateway."""

    agents: tuple[int, ...]  # increasing
    places: slice | Integers  # a slice where they follow each other
    lower: Floats  # bounds of their states, one after the other
    upper: Floats
    sums: Integers  # the noisy sums that they take part in, from 0
    grid: Floats  # the grid step of each of them
    least: Integers  # what they contribute together, in steps, at least
    most: Integers  # and at most
    range: Box  # what a message of theirs may hold: contributions, or states
    columns: slice | Integers  # where their states lie among those of all agents
    owners: Integers | None  # whose each number of a state is; None with contributions
    entries: Integers  # which of the released gradient entries are theirs
    rows: Integers  # the constraint of each of these entries
    entry_columns: Integers  # and the component of the party's state vector


class Part(Struct, frozen=True, kw_only=True):
    """A party's contribution to a round, within its range; never sent to anybody."""

    party: Party
    data: bytes
    missed: tuple[Gap, ...] = ()  # rounds that their averages lack


def agents_in(parts: Iterable[Part]) -> set[int]:
    """Return the agents that contributed."""
    return {agent for part in parts for agent in part.party.agents}


class CloudMemory(Struct, frozen=True, kw_only=True, array_like=True):
    """What a cloud goes on from after round k: it follows from releases, so it is not private."""

    k: int
    state: bytes  # the algorithm's numbers
    discrepancy: bytes  # of the answer's test so far
    confirmed: bool | None  # as in the round's record


class Record(Struct, frozen=True, kw_only=True, eq=False):
    """Round k as it was committed."""

    k: int
    parts: tuple[Part, ...]
    sent_price: Floats  # what its message carries: lambda(k+1), or mu(k) with gradient steps
    price: Floats  # lambda(k+1), or mu(k+1)
    answer: Floats  # the prices to report after it: averaged, or the last
    released: Floats  # noisy sums, or values of all constraints; a relay does not receive them
    y: Floats  # the released gradient entries, in the plan's order
    digest: bytes  # names the history up to here
    # Agents that missed it: their last contribution is among the parts, or their fallback counted.
    held: frozenset[int] = frozenset()
    missed: tuple[Gap, ...] = ()  # gaps in averages not known before, where the run has a test
    confirmed: bool | None = None  # after the last round, whether the answer passed the test
    memory: CloudMemory | None = None  # None of a relay


class Setup(Struct, frozen=True, kw_only=True, eq=False):
    """What does not change during a run."""

    config: str  # canonical JSON
    rounds: int  # T
    agents: int  # n
    states: bool  # agents send states, for a release of states, in place of contributions
    prices: int  # how many prices a round carries
    party: Callable[[tuple[int, ...]], Party]  # describes agents that share a connection
    split: bool = False  # contributions are masked, and a helper knows the masks
    absent: frozenset[int] = frozenset()  # agents whose fallback counts from round 1 on
    series: bool = False  # it is a run of a series
    again: bool = False  # another one will follow
    # Of a relay what absent agents, from 1, contribute together, in steps, one integer per sum.
    fallbacks: Callable[[frozenset[int]], Integers] | None = None

    @property
    def config_hash(self) -> bytes:
        """SHA-256 of the configuration, which names the run."""
        return hashlib.sha256(self.config.encode()).digest()

    def welcome(
        self,
        party: Party,
        k: int,
        spoke: int,
        pledge: bytes = b"",
        sits_out: Sequence[int] = (),
    ) -> Welcome:
        """Describe the run in round k to a party that contributed last to round ``spoke``."""
        return Welcome(
            config=self.config,
            round=k,
            rounds=self.rounds,
            spoke=spoke,
            states=self.states,
            prices=self.prices,
            lower=pack(party.lower),
            upper=pack(party.upper),
            sums=party.sums.tolist(),
            grid=pack(party.grid),
            least=pack_whole(party.least),
            most=pack_whole(party.most),
            rows=party.rows.tolist(),
            columns=party.entry_columns.tolist(),
            pledge=pledge,
            sits_out=list(sits_out),
        )


class Memory(Struct, frozen=True, kw_only=True):
    """All that an agent must keep to go on after a restart; x(1) and nothing else to begin with."""

    config: bytes = b""  # SHA-256 of the configuration of its run, empty before it joined
    round: int = 0  # the last round it has seen, k
    receipt: bytes = b""  # of that round
    x: bytes  # x(k+1)
    answer: bytes  # so far: averaged states, or the last
    proximal: bytes = b""  # what the proximal terms remember, as ``LocalStep`` has it
    sent: bytes = b""  # what goes out for round k+1, masked after its session: always these bytes
    missed: tuple[Gap, ...] = ()  # rounds up to k that the answer lacks: the file was lost or old
    runs: dict[str, int] = {}  # by the origin of a series, the last run of it that it has joined


class LocalStep(Struct, frozen=True, kw_only=True, eq=False):
    """What agents' own step of a round gives."""

    x: Floats  # x(k+1) of all agents, one after the other
    answer: Floats  # their answers so far
    proximal: Floats  # of their proximal terms z, then W of its agent for every number of x
    values: Integers | None  # contributions in grid steps, added up; None where states are sent
    failed: Integers  # the places, from 0, of agents whose own code failed


class Participant(Struct, frozen=True, kw_only=True):
    """Agents of one connection in a helper's round, and the mask that covers them."""

    agents: tuple[int, ...]
    mask: MaskName


class JournalRow(Struct, frozen=True):
    """Round k as its bytes."""

    k: int
    context: bytes  # the prices after it; of a helper the hash of the question
    release: bytes  # what left: integers on the grid, or the floats of a simulation
    digest: bytes  # names the history up to here
    attendance: bytes = b""  # of a cloud: who was held, and gaps that are known since
    said: bytes | None = None  # what every party contributed, None once it is erased


class Action(Struct, frozen=True):
    """What a machine asks its runner to do."""


class Send(Action, frozen=True, kw_only=True):
    """Send one message to each of the peers."""

    peers: tuple[int, ...]
    message: FromCloud | FromHelper


class Close(Action, frozen=True, kw_only=True):
    """Close the connection of a peer, for a reason."""

    peer: int
    code: Code


class Incident(Action, frozen=True, kw_only=True):
    """Something was refused; never a value."""

    code: Code
    agents: tuple[int, ...]
    k: int


class Halt(Action, frozen=True, kw_only=True):
    """Stop for good: the journal has been rolled back behind round k."""

    k: int
    agents: tuple[int, ...] = ()


class Meet(Action, frozen=True, kw_only=True):
    """A split cloud: have the helper sign what is asked of agents, and tell ``pledged``."""

    peer: int
    agents: tuple[int, ...]
    mask: bytes


class Commit(Action, frozen=True, kw_only=True, eq=False):
    """A cloud: round k is full; commit it, and call ``committed``."""

    k: int
    parts: tuple[Part, ...]
    held: frozenset[int]  # as in a ``Record``
    last: tuple[
        int, ...
    ] = ()  # the agents that were waited for: those who answered last, or were held


class Wait(Action, frozen=True, kw_only=True):
    """A cloud or relay: tell ``deadline`` when the time for round k is up; forget earlier ones."""

    k: int


class AnswerRound(Action, frozen=True, kw_only=True):
    """A helper: add up masks, add noise, commit, and call ``committed``."""

    k: int
    question: bytes
    taken: tuple[Participant, ...]
    previous: bytes


class SendUp(Action, frozen=True, kw_only=True):
    """A client: send a message up, to the cloud or to a relay."""

    message: FromAgent


class Apply(Action, frozen=True, kw_only=True, eq=False):
    """Agents joined after round k, or took its step: drive devices by the answer so far."""

    k: int
    answer: Floats
    failed: tuple[int, ...] = ()  # the places, from 0, of agents whose own code failed


class Save(Action, frozen=True, kw_only=True):
    """Keep this before anything else is sent."""

    memory: Memory


class Finish(Action, frozen=True, kw_only=True, eq=False):
    """The run is over."""

    price: Floats  # the answer's
    confirmed: bool | None  # it passed the test at the end, and has no gap here; None: no test
    wait: float  # seconds until all agents apply it
    again: bool = False  # another run will follow


class Stop(Action, frozen=True, kw_only=True):
    """Give up: trying again cannot help."""

    code: Code
    detail: str


class Abandon(Action, frozen=True, kw_only=True):
    """A cloud: end the run without an answer, as nobody contributes to round k."""

    k: int


class Listen(Action, frozen=True):
    """A relay knows its run: listen to those below."""


class Reconnect(Action, frozen=True, kw_only=True):
    """End this connection and try again later."""

    code: str
