"""The messages of cloud, agents and helper, one MessagePack map per WebSocket frame.

Vectors travel as little-endian bytes: float64 for states, prices and bounds, int64 for what agents
contribute. Agents and rounds are numbered from 1. Integers in a map stay below 2^53, so that every
language can hold them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

PROTOCOLS: Final = ("sottovoce.6",)
"""The versions that are spoken, as WebSocket subprotocols, the newest first.

Servers take any of them, at most this one and the one before; clients ask for the first.
"""
HELPER_PROTOCOLS: Final = ("sottovoce.helper.3",)  # likewise between the halves of a split cloud
DIGEST: Final = 32
RECEIPT: Final = 2 * DIGEST
SESSION: Final = 16  # bytes that name a session of masks
KEY: Final = 32  # bytes of a public key for masks
MOST_GAPS: Final = 16  # in a message: a frame stays short, and more become one that covers them all

Count: TypeAlias = Annotated[int, Meta(ge=0, lt=2**53)]
Number: TypeAlias = Annotated[int, Meta(ge=1, lt=2**53)]
Hash: TypeAlias = Annotated[bytes, Meta(max_length=DIGEST)]
Receipt: TypeAlias = Annotated[bytes, Meta(max_length=RECEIPT)]

SessionName: TypeAlias = Annotated[bytes, Meta(min_length=SESSION, max_length=SESSION)]
Signature: TypeAlias = Annotated[bytes, Meta(max_length=128)]

Gap: TypeAlias = tuple[Number, Number, Number, Number]
"""Agents a to b of a connection, whose averages lack rounds k to l: ``(a, b, k, l)``."""

Gaps: TypeAlias = Annotated[list[Gap], Meta(max_length=MOST_GAPS)]

LONGEST_WAIT: Final = 600.0
"""Seconds between the end of a run and the moment at which answers are applied, at most."""


class Code(StrEnum):
    """Why something was refused; the only text about it that leaves the cloud.

    CLIPPED never leaves it: what was sent was used, moved into its range, and an answer would tell.
    """

    MALFORMED = "malformed"
    OVERSIZE = "oversize"
    UNEXPECTED = "unexpected"
    VERSION = "version"
    NOT_YOURS = "not-yours"
    OTHER_RUN = "other-run"
    FORGED_RECEIPT = "forged-receipt"
    HALTED = "halted"
    FAILED = "failed"
    OVER = "over"
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
        Code.NOT_YOURS,
        Code.OTHER_RUN,
        Code.FORGED_RECEIPT,
        Code.HALTED,
        Code.FAILED,
        Code.REPLACED,
        Code.REVOKED,
    }
)
"""Refusals that trying again cannot mend: the agent stops and tells its operator."""


class Message(msgspec.Struct, tag_field="type", frozen=True, forbid_unknown_fields=True):
    """A map with a ``type`` and the fields of that type: all of them and no others."""


class Hello(Message, tag="hello", frozen=True, kw_only=True, omit_defaults=True):
    """An agent, or a gateway for several, introduces itself and shows how far it got."""

    agents: Annotated[list[Number], Meta(min_length=1)]  # on this connection, increasing
    config: Hash  # SHA-256 of the run's configuration, empty before the first welcome
    round: Count  # the last round it has seen, 0 for none
    receipt: Receipt  # of that round, empty for none
    mask: Annotated[bytes, Meta(max_length=KEY)] = b""  # key for masks, where it knows a helper


class Contribution(Message, tag="contribution", frozen=True, kw_only=True, omit_defaults=True):
    """``sum_i h_oi(x_i(k))`` over the connection's agents, for each sum o listed in welcome.

    One int64 per sum: each agent's contribution in steps of the sum's grid, rounded to an integer
    agent by agent, then added up.
    """

    round: Number
    values: bytes
    missed: Gaps = []  # what the connection's averages lack


class Masked(Message, tag="masked", frozen=True, kw_only=True, omit_defaults=True):
    """The same plus a mask, modulo 2^64, where the run has a helper: the cloud cannot read it."""

    round: Number
    session: SessionName  # names the masks
    values: bytes
    missed: Gaps = []


class State(Message, tag="state", frozen=True, kw_only=True):
    """``x_i(k)`` of all agents on the connection, in the order of their hello.

    Only where welcome asks for states: a release of states works out values and gradients in the
    cloud.
    """

    round: Number
    x: bytes


class Welcome(Message, tag="welcome", frozen=True, kw_only=True, omit_defaults=True):
    """The cloud describes the run; bounds are those that states must keep, in hello's order."""

    config: str  # canonical JSON; its SHA-256 names the run
    round: Number  # that the cloud is collecting
    rounds: Number  # how many there will be; after the last nothing is collected
    # The last round, the one being collected included, that an agent on the connection contributed
    # to, 0 for none: what its average does not cover up to there is a gap.
    spoke: Count
    states: bool  # agents send states, for a release of states, in place of contributions
    prices: Number  # how many every round carries: one per sum, or per constraint with states
    lower: bytes  # float64
    upper: bytes  # likewise
    sums: list[Count]  # from 0, increasing, that the connection contributes to
    grid: bytes  # the grid step of each of them, float64
    least: bytes  # the least contribution of all agents on the connection together, in steps, int64
    most: bytes  # the largest, likewise; what lies outside is moved to the nearer end
    rows: list[Count]  # for each gradient entry that rounds will carry, the constraint, from 0
    columns: list[Count]  # and the component of the connection's state vector, from 0
    pledge: Signature = b""  # the helper's, under the same
    sits_out: list[Number] = []  # agents of hello that do not take part, in a run of a series


class Round(Message, tag="round", frozen=True, kw_only=True):
    """What became of round k: the same for all agents, but for gradient entries."""

    round: Number
    price: bytes  # lambda(k+1), the prices of all sums; agents that take gradient steps use mu(k)
    y: bytes  # the entries listed in welcome, with noise
    receipt: Receipt  # to be shown in the next hello


class Done(Message, tag="done", frozen=True, kw_only=True, omit_defaults=True):
    """The run is over after ``rounds`` rounds."""

    rounds: Number
    price: bytes  # of its answer, averaged or the last
    confirmed: bool | None  # whether the answer passed the test at the end; None without a test
    # Seconds from now until all agents apply it; from now, so that no clock need be right.
    wait: Annotated[float, Meta(ge=0.0, le=LONGEST_WAIT)]
    again: bool = False  # another run of the series will follow: say hello anew, without a config


class Error(Message, tag="error", frozen=True, kw_only=True):
    """A refusal; ``round`` is the one the cloud is collecting, so that the agent can catch up."""

    code: Annotated[str, Meta(max_length=32)]
    round: Count


FromAgent: TypeAlias = Hello | Contribution | Masked | State
FromCloud: TypeAlias = Welcome | Round | Done | Error

# Between the halves of a split cloud.

Taken: TypeAlias = tuple[Number, SessionName, Number]
"""Who took part: the number that ``meet`` gave, the session, and the round contributed to."""


class Open(Message, tag="open", frozen=True, kw_only=True):
    """The cloud names its run, by its configuration, first on every connection."""

    config: str


class Introduce(Message, tag="meet", frozen=True, kw_only=True):
    """Agents have come, on a connection of their own."""

    number: Number  # what the cloud calls them on this connection, from 1
    agents: Annotated[list[Number], Meta(min_length=1)]  # increasing
    mask: Annotated[bytes, Meta(min_length=KEY, max_length=KEY)]  # their key


class Ask(Message, tag="ask", frozen=True, kw_only=True):
    """The cloud asks for the masks of round k."""

    round: Number
    taken: list[Taken]  # in increasing order of their numbers; nobody where all are absent
    receipt: Receipt  # of the answer for round k-1; empty for k = 1, or if it was lost


class Opened(Message, tag="opened", frozen=True, kw_only=True):
    """The helper takes part in this run; ``round`` is the last that it has answered for, or 0."""

    round: Count


class Pledged(Message, tag="pledged", frozen=True, kw_only=True):
    """The helper's signature under what the run asks of these agents."""

    number: Number
    pledge: Signature


class Answer(Message, tag="answer", frozen=True, kw_only=True):
    """The sum of the masks of those who took part, with the helper's noise, modulo 2^64."""

    round: Number
    values: bytes  # one int64 per sum
    receipt: Receipt  # to be shown with the next question


class Refusal(Message, tag="refused", frozen=True, kw_only=True):
    """A refusal; ``number`` is that of the agents it is about, 0 if it is about the run."""

    code: Code
    number: Count


ToHelper: TypeAlias = Open | Introduce | Ask
FromHelper: TypeAlias = Opened | Pledged | Answer | Refusal
