"""What cloud, agents and helper say to each other, one MessagePack map per WebSocket frame.

Vectors travel as little-endian bytes: float64 for states, prices and bounds, int64 for what agents
contribute. Agents and rounds are numbered from 1. Integers in a map stay below 2^53, so that every
language can hold them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

VERSION: Final = 5
"""The version of the protocol; both sides refuse another."""

DIGEST: Final = 32
RECEIPT: Final = 2 * DIGEST
SESSION: Final = 16
"""Bytes that name a session of masks."""

KEY: Final = 32
"""Bytes of a public key for masks."""

Count: TypeAlias = Annotated[int, Meta(ge=0, lt=2**53)]
Number: TypeAlias = Annotated[int, Meta(ge=1, lt=2**53)]
Hash: TypeAlias = Annotated[bytes, Meta(max_length=DIGEST)]
Receipt: TypeAlias = Annotated[bytes, Meta(max_length=RECEIPT)]

Gap: TypeAlias = tuple[Number, Number, Number, Number]
"""Agents a to b of a connection, whose averages lack rounds k to l: ``(a, b, k, l)``."""

Gaps: TypeAlias = Annotated[list[Gap], Meta(max_length=16)]

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
        Code.FAILED,
        Code.REPLACED,
        Code.REVOKED,
    }
)
"""Refusals that trying again cannot mend: the agent stops and tells its operator."""


class Message(msgspec.Struct, tag_field="type", frozen=True, forbid_unknown_fields=True):
    """A map with a ``type`` and the fields of that type: all of them and no others."""


class Hello(Message, tag="hello", frozen=True, kw_only=True, omit_defaults=True):
    """An agent, or a gateway for several, introduces itself and shows how far it got.

    Attributes:
        version: of the protocol.
        agents: numbers of the agents on this connection, increasing.
        config: SHA-256 of the run's configuration, or empty before the first welcome.
        round: the last round it has seen, 0 for none.
        receipt: that round's receipt, empty for none.
        mask: its key for masks, where it knows a helper; else left out.
    """

    version: Count
    agents: Annotated[list[Number], Meta(min_length=1)]
    config: Hash
    round: Count
    receipt: Receipt
    mask: Annotated[bytes, Meta(max_length=KEY)] = b""


class Contribution(Message, tag="contribution", frozen=True, kw_only=True, omit_defaults=True):
    """``sum_i h_oi(x_i(k))`` over the connection's agents, for each sum o listed in welcome.

    Attributes:
        round: k.
        values: one int64 per sum: each agent's contribution in steps of the sum's grid, rounded to
            an integer agent by agent, then added up.
        missed: what the connection's averages lack; left out where they lack nothing.
    """

    round: Number
    values: bytes
    missed: Gaps = []


class Masked(Message, tag="masked", frozen=True, kw_only=True, omit_defaults=True):
    """The same behind a mask, where the run has a helper: the cloud cannot read it.

    Attributes:
        round: k.
        session: names the masks.
        values: one number per sum as in a contribution, plus the mask's, modulo 2^64.
        missed: as in a contribution.
    """

    round: Number
    session: Annotated[bytes, Meta(min_length=SESSION, max_length=SESSION)]
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
    """The cloud describes the run.

    Attributes:
        version: of the protocol.
        config: the run's configuration as canonical JSON; its SHA-256 names the run.
        round: the round that the cloud is collecting.
        rounds: how many rounds there will be; after the last nothing is collected.
        spoke: the last round, the one being collected included, in which an agent on the connection
            spoke: what its average does not cover up to there is a gap. 0 for none.
        states: whether agents send states, for a release of states, in place of contributions.
        prices: how many prices every round carries: one per sum, or per constraint with states.
        lower: lower bounds the agents' states must keep, in the order of hello, float64.
        upper: upper bounds, likewise.
        sums: the sums, from 0, increasing, that the connection contributes to.
        grid: the grid step of each of them, float64.
        least: the least contribution of all agents on the connection together, in steps, int64.
        most: the largest, likewise; what lies outside is moved to the nearer end.
        rows: for each gradient entry that round messages will carry, the constraint, from 0.
        columns: and the component of the connection's state vector, from 0.
        pledge: the helper's signature under the same; left out where there is none.
    """

    version: Count
    config: str
    round: Number
    rounds: Number
    spoke: Count
    states: bool
    prices: Number
    lower: bytes
    upper: bytes
    sums: list[Count]
    grid: bytes
    least: bytes
    most: bytes
    rows: list[Count]
    columns: list[Count]
    pledge: Annotated[bytes, Meta(max_length=128)] = b""


class Round(Message, tag="round", frozen=True, kw_only=True):
    """What became of round k: the same for everybody, but for gradient entries.

    Attributes:
        round: k.
        price: lambda(k+1), the prices of all sums; agents that take gradient steps use mu(k).
        y: the entries listed in welcome, with noise.
        receipt: to be shown in the next hello.
    """

    round: Number
    price: bytes
    y: bytes
    receipt: Receipt


class Done(Message, tag="done", frozen=True, kw_only=True):
    """The run is over after ``rounds`` rounds.

    Attributes:
        rounds: T.
        price: the prices of its answer, averaged or the last.
        confirmed: whether the answer passed the test at the end, so that it may be applied; None
            where the run has none.
        wait: seconds from now until everybody applies it; from now, so that no clock need be right.
    """

    rounds: Number
    price: bytes
    confirmed: bool | None
    wait: Annotated[float, Meta(ge=0.0, le=LONGEST_WAIT)]


class Error(Message, tag="error", frozen=True, kw_only=True):
    """A refusal; ``round`` is the one the cloud is collecting, so that the agent can catch up."""

    code: Annotated[str, Meta(max_length=32)]
    round: Count


FromAgent: TypeAlias = Hello | Contribution | Masked | State
FromCloud: TypeAlias = Welcome | Round | Done | Error

# Between the halves of a split cloud.

HELPER_VERSION: Final = 2
"""The version of this part of the protocol; both sides refuse another."""

SessionName: TypeAlias = Annotated[bytes, Meta(min_length=SESSION, max_length=SESSION)]
Taken: TypeAlias = tuple[Number, SessionName, Number]
"""Who took part: the number that ``meet`` gave, the session, and the round it was said in."""


class Open(Message, tag="open", frozen=True, kw_only=True):
    """The cloud says which run it is about, first on every connection.

    Attributes:
        version: of this part of the protocol.
        config: the run's configuration as canonical JSON.
    """

    version: Count
    config: str


class Introduce(Message, tag="meet", frozen=True, kw_only=True):
    """Agents have come, on a connection of their own.

    Attributes:
        number: what the cloud calls them on this connection, from 1.
        agents: their numbers, increasing.
        mask: their key for masks.
    """

    number: Number
    agents: Annotated[list[Number], Meta(min_length=1)]
    mask: Annotated[bytes, Meta(min_length=KEY, max_length=KEY)]


class Ask(Message, tag="ask", frozen=True, kw_only=True):
    """The cloud asks for the masks of a round.

    Attributes:
        round: k.
        taken: who took part, in increasing order of their numbers.
        receipt: of the helper's answer for round k-1; empty for k = 1, or if it was lost.
    """

    round: Number
    taken: Annotated[list[Taken], Meta(min_length=1)]
    receipt: Receipt


class Opened(Message, tag="opened", frozen=True, kw_only=True):
    """The helper takes part in this run; ``round`` is the last that it has answered for, or 0."""

    version: Count
    round: Count


class Pledged(Message, tag="pledged", frozen=True, kw_only=True):
    """The helper's signature under what the run asks of these agents."""

    number: Number
    pledge: Annotated[bytes, Meta(max_length=128)]


class Answer(Message, tag="answer", frozen=True, kw_only=True):
    """The sum of the masks of those who took part, with the helper's noise, modulo 2^64.

    Attributes:
        round: k.
        values: one number per sum, int64.
        receipt: to be shown with the next question.
    """

    round: Number
    values: bytes
    receipt: Receipt


class Refusal(Message, tag="refused", frozen=True, kw_only=True):
    """A refusal; ``number`` is that of the agents it is about, 0 if it is about the run."""

    code: Code
    number: Count


ToHelper: TypeAlias = Open | Introduce | Ask
FromHelper: TypeAlias = Opened | Pledged | Answer | Refusal
