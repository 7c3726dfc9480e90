"""Bytes to messages and back: decoding gives a message or ``MalformedError``, nothing else."""

from __future__ import annotations

from typing import Final, TypeVar, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from sottovoce.network.protocol.messages import FromAgent, FromCloud

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Message = TypeVar("Message")

_HEAD: Final = 1024
_INTEGER: Final = 9
_DOUBLE: Final = 8
_LITTLE: Final = np.dtype("<f8")
_WHOLE: Final = np.dtype("<i8")

_encoder = msgspec.msgpack.Encoder()
_from_agent: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)
_from_cloud: msgspec.msgpack.Decoder[FromCloud] = msgspec.msgpack.Decoder(FromCloud)


@final
class MalformedError(ValueError):
    """Bytes that are no message; it never quotes them."""


def encode(message: FromAgent | FromCloud) -> bytes:
    """Return the frame of a message."""
    return _encoder.encode(message)


def decode_from_agent(frame: bytes) -> FromAgent:
    """Return what an agent said, or raise ``MalformedError``."""
    return _decode(_from_agent, frame)


def decode_from_cloud(frame: bytes) -> FromCloud:
    """Return what the cloud said, or raise ``MalformedError``."""
    return _decode(_from_cloud, frame)


def frame_limit(*, agents: int, size: int) -> int:
    """Return the largest frame an honest agent or gateway can send.

    Args:
        agents: the number of agents n, each an integer in hello.
        size: the most numbers in one contribution or state, of 8 bytes each.
    """
    return _HEAD + max(_INTEGER * agents, _DOUBLE * size)


def pack(values: Floats) -> bytes:
    """Return a vector as little-endian float64 bytes."""
    return np.asarray(values, dtype=_LITTLE).tobytes()


def unpack(data: bytes) -> Floats:
    """Return the vector that ``pack`` wrote, or raise ``MalformedError``."""
    if len(data) % _DOUBLE:
        raise MalformedError("a vector must be whole float64 numbers")
    return np.frombuffer(data, dtype=_LITTLE)


def pack_whole(values: Integers) -> bytes:
    """Return a vector as little-endian int64 bytes."""
    return np.asarray(values, dtype=_WHOLE).tobytes()


def unpack_whole(data: bytes) -> Integers:
    """Return the vector that ``pack_whole`` wrote, or raise ``MalformedError``."""
    if len(data) % _DOUBLE:
        raise MalformedError("a vector must be whole int64 numbers")
    return np.frombuffer(data, dtype=_WHOLE)


def _decode(decoder: msgspec.msgpack.Decoder[Message], frame: bytes) -> Message:
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        # From None: the cause would quote what was sent.
        raise MalformedError("not a message of this protocol") from None
