"""What cloud and agents say to each other, one MessagePack map per WebSocket frame.

Vectors travel as little-endian float64 bytes. Agents are numbered from 1, rounds from 1. Integers
stay below 2^53, so that every language can hold them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

VERSION: Final = 2
"""The version of the protocol; both sides refuse another."""

DIGEST: Final = 32
RECEIPT: Final = 2 * DIGEST

Count: TypeAlias = Annotated[int, Meta(ge=0, lt=2**53)]
Number: TypeAlias = Annotated[int, Meta(ge=1, lt=2**53)]
Hash: TypeAlias = Annotated[bytes, Meta(max_length=DIGEST)]
Receipt: TypeAlias = Annotated[bytes, Meta(max_length=RECEIPT)]


class Code(StrEnum):
    """Why something was refused; the only text about it that leaves the cloud.

    CLIPPED never leaves it: the state was used, moved into the bounds, and an answer would tell.
    """

    MALFORMED = "malformed"
    OVERSIZE = "oversize"
    UNEXPECTED = "unexpected"
    VERSION = "version"
    NOT_YOURS = "not-yours"
    OTHER_RUN = "other-run"
    FORGED_RECEIPT = "forged-receipt"
    HALTED = "halted"
    REPLACED = "replaced"
    REVOKED = "revoked"
    EXPIRED = "expired"
    FLOOD = "flood"
    SLOW = "slow"
    SILENT = "silent"
    CONFLICT = "conflict"
    OLD_ROUND = "old-round"
    FUTURE_ROUND = "future-round"
    LATE = "late"
    CLIPPED = "clipped"


LASTING: Final = frozenset(
    {
        Code.VERSION,
        Code.NOT_YOURS,
        Code.OTHER_RUN,
        Code.FORGED_RECEIPT,
        Code.HALTED,
        Code.REPLACED,
        Code.REVOKED,
    }
)
"""Refusals that trying again cannot mend: the agent stops and tells its operator."""


class Message(msgspec.Struct, tag_field="type", frozen=True, forbid_unknown_fields=True):
    """A map with a ``type`` and the fields of that type: all of them and no others."""


class Hello(Message, tag="hello", frozen=True, kw_only=True):
    """An agent, or a gateway for several, introduces itself and shows how far it got.

    Attributes:
        version: of the protocol.
        agents: numbers of the agents on this connection, increasing.
        config: SHA-256 of the run's configuration, or empty before the first welcome.
        round: the last round it has seen, 0 for none.
        receipt: that round's receipt, empty for none.
    """

    version: Count
    agents: Annotated[list[Number], Meta(min_length=1)]
    config: Hash
    round: Count
    receipt: Receipt


class State(Message, tag="state", frozen=True, kw_only=True):
    """``x_i(k)`` of all agents on the connection, in the order of their hello."""

    round: Number
    x: bytes


class Welcome(Message, tag="welcome", frozen=True, kw_only=True):
    """The cloud describes the run.

    Attributes:
        version: of the protocol.
        config: the run's configuration as canonical JSON; its SHA-256 names the run.
        round: the round whose states the cloud is collecting.
        lower: lower bounds the agents' states must keep, in the order of hello.
        upper: upper bounds, likewise.
        rows: for each gradient entry that round messages will carry, the constraint, from 0.
        columns: and the component of the connection's state vector, from 0.
        slopes: and how fast the entry can change when all agents move, a public bound.
    """

    version: Count
    config: str
    round: Number
    lower: bytes
    upper: bytes
    rows: list[Count]
    columns: list[Count]
    slopes: bytes


class Round(Message, tag="round", frozen=True, kw_only=True):
    """What round k released: the multipliers, and the agents' own gradient entries.

    Attributes:
        round: k.
        mu: mu(k+1) where the algorithm's agents minimise at home, mu(k) where they take gradient
            steps.
        y: the entries listed in welcome, with noise.
        receipt: to be shown in the next hello.
    """

    round: Number
    mu: bytes
    y: bytes
    receipt: Receipt


class Done(Message, tag="done", frozen=True, kw_only=True):
    """The run is over after ``rounds`` rounds; mu is its answer, averaged or the last."""

    rounds: Number
    mu: bytes


class Error(Message, tag="error", frozen=True, kw_only=True):
    """A refusal; ``round`` is the one the cloud is collecting, so that the agent can catch up."""

    code: Annotated[str, Meta(max_length=32)]
    round: Count


FromAgent: TypeAlias = Hello | State
FromCloud: TypeAlias = Welcome | Round | Done | Error
