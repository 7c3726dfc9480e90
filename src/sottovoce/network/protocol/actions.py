"""What the cloud's state machine works with and asks for: plain values."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from sottovoce.network.protocol.codec import Floats
from sottovoce.network.protocol.messages import Code, FromCloud


class Record(Struct, frozen=True, kw_only=True, eq=False):
    """One round as it was committed.

    Attributes:
        k: the round.
        x: x(k), the states of all agents; never sent to anybody.
        mu: the multipliers sent with the round: mu(k+1) to agents that think, mu(k) to others.
        y: the released gradient entries, in the plan's order.
        carried: what the cloud carries to the next round, m numbers at a time: mu(k+1) first, the
            answer so far last.
        digest: names the history up to here.
        held: which agents were held at their last state, from 0.
    """

    k: int
    x: Floats
    mu: Floats
    y: Floats
    carried: Floats
    digest: bytes
    held: frozenset[int] = frozenset()


class Setup(Struct, frozen=True, kw_only=True, eq=False):
    """What does not change during a run.

    Attributes:
        config: the configuration as canonical JSON.
        config_hash: its SHA-256.
        rounds: how many rounds will be released, T.
        offsets: agent i's states are the components ``offsets[i]:offsets[i+1]``.
        lower: lower bounds of all states.
        upper: upper bounds.
        entry_rows: the constraint of each released gradient entry.
        entry_columns: its component of the state vector.
        entry_slopes: how fast it can change when all agents move.
        rows: the number of constraints m.
        carried: what the cloud carries into round 1.
    """

    config: str
    config_hash: bytes
    rounds: int
    offsets: Any
    lower: Floats
    upper: Floats
    entry_rows: Any
    entry_columns: Any
    entry_slopes: Floats
    rows: int
    carried: Floats


class Send(Struct, frozen=True, kw_only=True):
    """Send one message to each of the peers."""

    peers: tuple[int, ...]
    message: FromCloud


class Close(Struct, frozen=True, kw_only=True):
    """Close a connection, for a reason."""

    peer: int
    code: Code


class Commit(Struct, frozen=True, kw_only=True, eq=False):
    """All states of round k are in: release, commit, and answer with ``committed``.

    After the last round there is nothing to release: commit the states and call ``finished``.
    """

    k: int
    x: Floats
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


Action: TypeAlias = Send | Close | Commit | Incident | Halt
