"""File descriptors: as many as the system gives, with some kept back for files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

RESERVE: Final = 64
"""Kept back from connections: for the store, its log, the revocation list and the next accept."""

_OPEN: Final = Path("/proc/self/fd")
_UNKNOWN: Final = 1 << 10


def sockets_at_most() -> int:
    """Raise the soft limit to the hard one; return how many sockets may be opened from now on."""
    try:
        import resource
    except ImportError:
        return _UNKNOWN  # Windows has no such limit to ask for
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    used = len(list(_OPEN.iterdir())) if _OPEN.exists() else RESERVE
    return int(max(1, hard - RESERVE - used))
