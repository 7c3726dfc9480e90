"""WebSocket frames that are whole binary messages (RFC 6455, section 5.2), written and read."""

from __future__ import annotations

import struct
from typing import Final

_BINARY: Final = 0x82
"""First byte of a frame that is a whole binary message."""

_BEATS: Final = (0x89, 0x8A)
"""First byte of a ping, and of a pong."""

_MASKED: Final = 0x80
_LONG: Final = 126

GOODBYE: Final = bytes((0x88, 2)) + struct.pack("!H", 1000)
"""A whole close frame, code 1000: aiohttp's own close() would go on reading for an answer."""


def framed(payload: bytes) -> bytes:
    """Return a message as the frame that a server writes."""
    size = len(payload)
    if size < _LONG:
        return struct.pack("!BB", _BINARY, size) + payload
    if size < 1 << 16:
        return struct.pack("!BBH", _BINARY, _LONG, size) + payload
    return struct.pack("!BBQ", _BINARY, 127, size) + payload


def message_in(data: bytes) -> bytes | None:
    """Return the message of a client if the bytes are one whole frame with it, below 64 KiB."""
    if len(data) < 6 or data[0] != _BINARY:
        return None
    size, begin = data[1] ^ _MASKED, 6  # beyond 127 if it is not masked
    if size > _LONG:
        return None
    if size == _LONG:
        size, begin = int.from_bytes(data[2:4], "big"), 8
    if len(data) != begin + size:
        return None
    key = data[begin - 4 : begin] * (size // 4 + 1)
    mask = int.from_bytes(key[:size], "little")
    return (int.from_bytes(data[begin:], "little") ^ mask).to_bytes(size, "little")


def is_beat(data: bytes) -> bool:
    """Whether the bytes are one whole ping or pong of a client."""
    return len(data) >= 6 and data[0] in _BEATS and len(data) == 6 + (data[1] ^ _MASKED)
