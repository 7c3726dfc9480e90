"""A flooder in a process of its own: bounded in time and in what it sends, on loopback only.

usage: python flood_process.py KIND PORT KEYS SECONDS
"""

import contextlib
import itertools
import os
import socket
import ssl
import struct
import sys
import time
from collections import deque

HELD = 400
"""Connections kept open by the floods that only open connections."""

VOICES = 4
"""Connections by which the other floods speak."""

OPENINGS_PER_SECOND = 400
BLOBS_PER_SECOND = 50

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


SPOKEN = ("frames", "fragments", "pings", "pages")
HELD_OPEN = ("bare tcp", "tls without http", "handshakes never finished")
KINDS = SPOKEN + HELD_OPEN


def frame(opcode: int, payload: bytes, *, last: bool = True) -> bytes:
    """A client's frame; a mask of zeros leaves the payload as it is."""
    return struct.pack("!BB", opcode | 0x80 * last, 0x80 | len(payload)) + bytes(4) + payload


def context(keys: str) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=f"{keys}/ca.pem")
    made.load_cert_chain(f"{keys}/cert.pem", f"{keys}/key.pem")
    return made


def connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=0.5)
    sock.settimeout(0.5)
    return sock


def secured(port: int, tls: ssl.SSLContext) -> socket.socket:
    return tls.wrap_socket(connected(port), server_hostname="localhost")


def upgraded(port: int, tls: ssl.SSLContext) -> socket.socket:
    sock = secured(port, tls)
    sock.sendall(UPGRADE)
    sock.recv(4096)
    return sock


def opened(kind: str, port: int, tls: ssl.SSLContext) -> socket.socket:
    """One more connection that comes to nothing."""
    if kind == "tls without http":
        return secured(port, tls)
    sock = connected(port)
    if kind == "handshakes never finished":
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        half = tls.wrap_bio(incoming, outgoing, server_hostname="localhost")
        try:
            half.do_handshake()
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
    return sock


def open_and_hold(kind: str, port: int, tls: ssl.SSLContext, until: float) -> None:
    began = time.monotonic()
    held: deque[socket.socket] = deque()
    for step in itertools.count():
        if time.monotonic() > until:
            return
        with contextlib.suppress(OSError):
            held.append(opened(kind, port, tls))
        if len(held) > HELD:
            held.popleft().close()
        time.sleep(max(0.0, began + step / OPENINGS_PER_SECOND - time.monotonic()))


def speak(kind: str, port: int, tls: ssl.SSLContext, until: float) -> None:
    began = time.monotonic()
    blob = {
        "frames": frame(2, b"\xc1nonsense") * 1_000,
        "fragments": frame(2, b"", last=False) + frame(0, b"", last=False) * 2_000,
        "pings": frame(9, b"") * 2_000,
        "pages": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200,
    }[kind]
    make = secured if kind == "pages" else upgraded
    voices: list[socket.socket | None] = [None] * VOICES
    for step in itertools.count():
        if time.monotonic() > until:
            return
        which = step % VOICES
        voice = voices[which]
        try:
            if voice is None:
                voice = voices[which] = make(port, tls)
            voice.sendall(blob)
        except OSError:
            if voice is not None:
                voice.close()
            voices[which] = None
        time.sleep(max(0.0, began + step / BLOBS_PER_SECOND - time.monotonic()))


if __name__ == "__main__":
    kind, port, keys, seconds = sys.argv[1:]
    tls = context(keys)
    flood = speak if kind in SPOKEN else open_and_hold
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    flood(kind, int(port), tls, time.monotonic() + float(seconds))
    os._exit(0)
