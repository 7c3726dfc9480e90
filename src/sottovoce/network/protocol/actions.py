"""What the cloud's state machine works with and asks for: plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import Struct

from sottovoce.network.protocol.box import Box
from sottovoce.network.protocol.codec import Floats, Integers
from sottovoce.network.protocol.messages import Code, FromCloud, Gap


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
        range: what may be in a message of theirs: contributions, or states with the paper's
            release.
        columns: where their states lie among those of all agents.
        owners: with states, whose each of them is, from 1; None with contributions.
        entries: which of the released gradient entries are theirs.
        rows: the constraint of each of these entries.
        entry_columns: the component of the party's state vector.
    """

    agents: tuple[int, ...]
    places: slice | Any
    lower: Floats
    upper: Floats
    sums: Integers
    grid: Floats
    least: Integers
    most: Integers
    range: Box
    columns: slice | Any
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
        told: the prices that its message carries: lambda(k+1), or mu(k) with the paper's steps.
        price: lambda(k+1), or mu(k+1).
        answer: the prices to report after it: averaged, or the last.
        released: the noisy sums, or values of all constraints, for whoever watches the run; nothing
            in a relay, which is not told.
        y: the released gradient entries, in the plan's order.
        digest: names the history up to here.
        held: agents for whom their last words counted again, from 1.
        missed: gaps in agents' averages that were not known before, where the run has a test.
        confirmed: of the last round, whether its answer passed the test at the end; None before,
            and where there is none.
    """

    k: int
    parts: tuple[Part, ...]
    told: Floats
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
        states: whether agents send states, for the paper's release, in place of contributions.
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


class Send(Struct, frozen=True, kw_only=True):
    """Send one message to each of the peers."""

    peers: tuple[int, ...]
    message: FromCloud


class Close(Struct, frozen=True, kw_only=True):
    """Close a connection, for a reason."""

    peer: int
    code: Code


class Meet(Struct, frozen=True, kw_only=True):
    """Agents have come: have the helper sign what is asked of them, and tell ``pledged``."""

    peer: int
    agents: tuple[int, ...]
    mask: bytes


class Commit(Struct, frozen=True, kw_only=True, eq=False):
    """Everybody has spoken in round k: release, commit, and answer with ``committed``."""

    k: int
    parts: tuple[Part, ...]
    held: frozenset[int]


class Incident(Struct, frozen=True, kw_only=True):
    """Something was refused; agents from 1, never a value."""

    code: Code
    agents: tuple[int, ...]
    k: int


class Halt(Struct, frozen=True, kw_only=True):
    """Stop for good: the store has been rolled back."""

    k: int
    agents: tuple[int, ...]


Action: TypeAlias = Send | Close | Meet | Commit | Incident | Halt
