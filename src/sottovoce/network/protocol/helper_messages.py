"""What the two halves of a split cloud say to each other, framed like everything else."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from sottovoce.network.protocol.codec import MalformedError
from sottovoce.network.protocol.messages import (
    KEY,
    SESSION,
    Code,
    Count,
    Message,
    Number,
    Receipt,
)

HELPER_VERSION: Final = 2
"""The version of this part of the protocol; both sides refuse another."""

Session: TypeAlias = Annotated[bytes, Meta(min_length=SESSION, max_length=SESSION)]
Taken: TypeAlias = tuple[Number, Session, Number]
"""Who took part: the number that ``meet`` gave, the session, and the round it was said in."""


class Open(Message, tag="open", frozen=True, kw_only=True):
    """The cloud says which run it is about, first on every connection.

    Attributes:
        version: of this part of the protocol.
        config: the run's configuration as canonical JSON.
    """

    version: Count
    config: str


class Meet(Message, tag="meet", frozen=True, kw_only=True):
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


class Refused(Message, tag="refused", frozen=True, kw_only=True):
    """A refusal; ``number`` is that of the agents it is about, 0 if it is about the run."""

    code: Code
    number: Count


ToHelper: TypeAlias = Open | Meet | Ask
FromHelper: TypeAlias = Opened | Pledged | Answer | Refused

_encoder = msgspec.msgpack.Encoder()
_to_helper: msgspec.msgpack.Decoder[ToHelper] = msgspec.msgpack.Decoder(ToHelper)
_from_helper: msgspec.msgpack.Decoder[FromHelper] = msgspec.msgpack.Decoder(FromHelper)


def encode_half(message: ToHelper | FromHelper) -> bytes:
    """Return the frame of a message."""
    return _encoder.encode(message)


def decode_to_helper(frame: bytes) -> ToHelper:
    """Return what the cloud said, or raise ``MalformedError``."""
    try:
        return _to_helper.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise MalformedError("not a message of this protocol") from None


def decode_from_helper(frame: bytes) -> FromHelper:
    """Return what the helper said, or raise ``MalformedError``."""
    try:
        return _from_helper.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise MalformedError("not a message of this protocol") from None
