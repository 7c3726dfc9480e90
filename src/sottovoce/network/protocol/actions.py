"""What the cloud's state machine works with and asks for: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from sottovoce.network.protocol.codec import Floats
from sottovoce.network.protocol.messages import Code, FromCloud


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Record:
    """One round as it was committed.

    Attributes:
        k: the round.
        x: x(k), the states of all agents; never sent to anybody.
        mu: mu(k), sent with the round.
        y: the released gradient entries, in the plan's order.
        mu_next: mu(k+1).
        digest: names the history up to here.
        held: which agents were held at their last state, from 0.
    """

    k: int
    x: Floats
    mu: Floats
    y: Floats
    mu_next: Floats
    digest: bytes
    held: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setup:
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
        mu_start: mu(1).
    """

    config: str
    config_hash: bytes
    rounds: int
    offsets: Any
    lower: Floats
    upper: Floats
    entry_rows: Any
    entry_columns: Any
    mu_start: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send one message to each of the peers."""

    peers: tuple[int, ...]
    message: FromCloud


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Close a connection, for a reason."""

    peer: int
    code: Code


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Commit:
    """All states of round k are in: release, commit, and answer with ``committed``.

    After the last round there is nothing to release: commit the states and call ``finished``.
    """

    k: int
    x: Floats
    held: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something was refused; agents from 1, never a value."""

    code: Code
    agents: tuple[int, ...]
    k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """Stop for good: the store has been rolled back."""

    k: int
    agents: tuple[int, ...]


Action: TypeAlias = Send | Close | Commit | Incident | Halt
