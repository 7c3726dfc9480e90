"""What the four state machines work with, and the actions that they ask for: plain values.

A machine is ``event -> actions``: no sockets, no disk, no noise. ``network.runner``
carries its actions out in order, and makes a round durable before anything of it is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from sottovoce.network.protocol.codec import Box, Floats, Integers, MaskName, pack, pack_whole
from sottovoce.network.protocol.messages import (
    VERSION,
    Code,
    FromAgent,
    FromCloud,
    FromHelper,
    Gap,
    Welcome,
)


class Party(Struct, frozen=True, kw_only=True, eq=False):
    """Agents that one connection speaks for: an agent alone, or those of a gateway.

    Attributes:
        agents: their numbers, from 1, increasing.
        places: the same from 0, a slice where they follow each other.
        lower: lower bounds of their states, one after the other.
        upper: upper bounds.
        sums: the noisy sums, from 0, that they take part in; a slice where it can be.
        grid: the grid step of each of them.
        least: the least they can contribute together, in steps.
        most: the largest.
        range: what may be in a message of theirs: contributions, or states where the
            release is of states.
        columns: where their states lie among those of all agents.
        owners: with states, whose each of them is, from 1; None with contributions.
        entries: which of the released gradient entries are theirs.
        rows: the constraint of each of these entries.
        entry_columns: the component of the party's state vector.
    """

    agents: tuple[int, ...]
    places: slice | Integers
    lower: Floats
    upper: Floats
    sums: Integers
    grid: Floats
    least: Integers
    most: Integers
    range: Box
    columns: slice | Integers
    owners: Integers | None
    entries: Integers
    rows: Integers
    entry_columns: Integers


class Part(Struct, frozen=True, kw_only=True):
    """What a party said in a round, within its range; never sent to anybody.

    Attributes:
        party: who.
        data: what.
        missed: rounds that their averages lack.
    """

    party: Party
    data: bytes
    missed: tuple[Gap, ...] = ()


class Record(Struct, frozen=True, kw_only=True, eq=False):
    """One round as it was committed.

    Attributes:
        k: the round.
        parts: what was said in it.
        sent_price: the prices that its message carries: lambda(k+1), or mu(k) with gradient steps.
        price: lambda(k+1), or mu(k+1).
        answer: the prices to report after it: averaged, or the last.
        released: the noisy sums, or values of all constraints, for the live page; empty in a
            relay, which does not receive them.
        y: the released gradient entries, in the plan's order.
        digest: names the history up to here.
        held: agents whose last contribution was reused, from 1.
        missed: gaps in agents' averages that were not known before, where the run has a test.
        confirmed: of the last round, whether its answer passed the test at the end; None before,
            and where there is none.
    """

    k: int
    parts: tuple[Part, ...]
    sent_price: Floats
    price: Floats
    answer: Floats
    released: Floats
    y: Floats
    digest: bytes
    held: frozenset[int] = frozenset()
    missed: tuple[Gap, ...] = ()
    confirmed: bool | None = None


class Setup(Struct, frozen=True, kw_only=True, eq=False):
    """What does not change during a run.

    Attributes:
        config: the configuration as canonical JSON.
        config_hash: its SHA-256.
        rounds: how many rounds will be released, T.
        agents: the number of agents n.
        states: whether agents send states, for a release of states, in place of contributions.
        split: whether they send masked contributions, and a helper knows the masks.
        prices: how many prices a round carries.
        entries: how many gradient entries a round releases.
        party: describes agents that share a connection.
    """

    config: str
    config_hash: bytes
    rounds: int
    agents: int
    states: bool
    prices: int
    entries: int
    party: Callable[[tuple[int, ...]], Party]
    split: bool = False

    def welcome(self, party: Party, k: int, spoke: int, pledge: bytes = b"") -> Welcome:
        """Describe the run to a party, while round k is being collected.

        Args:
            party: the agents on the connection.
            k: the round.
            spoke: the last round in which one of these agents spoke.
            pledge: the helper's signature, of a split cloud.
        """
        return Welcome(
            version=VERSION,
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
        )


class Memory(Struct, frozen=True, kw_only=True):
    """All that an agent must keep to go on after a restart.

    Attributes:
        config: SHA-256 of the configuration of the run it takes part in, empty before it joined.
        round: the last round it has seen, k.
        receipt: that round's receipt.
        x: x(k+1), as little-endian float64 bytes.
        answer: the answer so far, likewise: averaged states, or the last.
        proximal: what the proximal terms remember, as ``LocalStep`` has it; empty before round 1.
        sent: what goes to the cloud for round k+1, contributions or states as they travel, masked
            ones after their session; empty before the first welcome. Said twice, it is the same
            bytes.
        missed: gaps: rounds up to k that the answer lacks, because the state was lost or is an
            older copy.
    """

    config: bytes = b""
    round: int = 0
    receipt: bytes = b""
    x: bytes
    answer: bytes
    proximal: bytes = b""
    sent: bytes = b""
    missed: tuple[Gap, ...] = ()


class Participant(Struct, frozen=True, kw_only=True):
    """Agents of one connection in a helper's round, and the mask that covers them."""

    agents: tuple[int, ...]
    mask: MaskName


class JournalRow(Struct, frozen=True, kw_only=True):
    """One round as its bytes.

    Attributes:
        k: the round.
        context: the prices after it; of a helper the hash of the question.
        release: what left: integers on the grid, or the floats of a simulation.
        digest: names the history up to here.
        attendance: who was held, and gaps that are known since; of a cloud.
        said: what every party said, None once it is erased.
    """

    k: int
    context: bytes
    release: bytes
    digest: bytes
    attendance: bytes = b""
    said: bytes | None = None


# Actions of several machines.


class Send(Struct, frozen=True, kw_only=True):
    """Send one message to each of the peers."""

    peers: tuple[int, ...]
    message: FromCloud | FromHelper


class Close(Struct, frozen=True, kw_only=True):
    """Close the connection of a peer, for a reason."""

    peer: int
    code: Code


class Incident(Struct, frozen=True, kw_only=True):
    """Something was refused; agents from 1, never a value."""

    code: Code
    agents: tuple[int, ...]
    k: int


class Halt(Struct, frozen=True, kw_only=True):
    """Stop for good: the journal has been rolled back behind round k."""

    k: int
    agents: tuple[int, ...] = ()


# Actions of a cloud.


class Meet(Struct, frozen=True, kw_only=True):
    """Agents have come: have the helper sign what is asked of them, and tell ``pledged``."""

    peer: int
    agents: tuple[int, ...]
    mask: bytes


class Commit(Struct, frozen=True, kw_only=True, eq=False):
    """Everybody has spoken in round k: release, commit, and answer with ``committed``.

    Attributes:
        k: the round.
        parts: what was said.
        held: agents whose last contribution is reused, from 1.
        last: the agents that were waited for: who spoke last, or was held.
    """

    k: int
    parts: tuple[Part, ...]
    held: frozenset[int]
    last: tuple[int, ...] = ()


# Actions of a helper.


class AnswerRound(Struct, frozen=True, kw_only=True):
    """Add up masks, add noise, commit, and answer with ``committed``."""

    k: int
    question: bytes
    taken: tuple[Participant, ...]
    previous: bytes


# Actions of those who connect to a cloud: agents, gateways and relays.


class SendUp(Struct, frozen=True, kw_only=True):
    """Send a message up: to the cloud, or to a relay."""

    message: FromAgent


class Join(Struct, frozen=True, kw_only=True, eq=False):
    """The cloud described the run: get ready for its steps, and answer with ``joined``.

    Attributes:
        welcome: its description.
        x: x(k+1), within the run's bounds.
    """

    welcome: Welcome
    x: Floats


class Think(Struct, frozen=True, kw_only=True, eq=False):
    """Take the agents' step of round k and answer with ``stepped``.

    Attributes:
        k: the round.
        since: the first round in which x may have counted: k unless rounds were missed.
        x: x(k), or what it was last.
        answer: the answer so far.
        proximal: what the proximal terms remember.
        price: what the round says.
        y: likewise, the gradient entries of a release of states.
    """

    k: int
    since: int
    x: Floats
    answer: Floats
    proximal: Floats
    price: Floats
    y: Floats


class Save(Struct, frozen=True, kw_only=True):
    """Keep this before anything else is sent."""

    memory: Memory


class Finish(Struct, frozen=True, kw_only=True, eq=False):
    """The run is over.

    Attributes:
        price: the answer's.
        confirmed: whether the answer may be applied: it passed the test at the end, and the agent's
            own part of it has no gap. None where the run has no test.
        wait: seconds until everybody applies it.
    """

    price: Floats
    confirmed: bool | None
    wait: float


class Stop(Struct, frozen=True, kw_only=True):
    """Give up: trying again cannot help."""

    code: Code
    detail: str


class Reconnect(Struct, frozen=True, kw_only=True):
    """End this connection and try again later."""

    code: str


Action: TypeAlias = (
    Send
    | Close
    | Incident
    | Halt
    | Meet
    | Commit
    | AnswerRound
    | SendUp
    | Join
    | Think
    | Save
    | Finish
    | Stop
    | Reconnect
)
