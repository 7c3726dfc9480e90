"""What /healthz says: whether a run goes on as it should, and if not, why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STALE_SECONDS: Final = 10.0
"""A revocation list that could not be read for this long is stale; it is tried every second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One reason why a cloud is not healthy.

    Attributes:
        code: for machines.
        reason: for people; it names no value of a run.
    """

    code: str
    reason: str


def troubles(
    *, failed: bool, unread_seconds: float, waited: float, stall: float, missing: int
) -> tuple[Trouble, ...]:
    """Return what is wrong; nothing if the cloud is healthy.

    Args:
        failed: whether the run has ended with an error.
        unread_seconds: how long ago the revocation list was known to be current.
        waited: seconds since the last round, or since the start; 0 once the run is over.
        stall: seconds without a round after which the run is stalled.
        missing: agents that are absent.
    """
    found = []
    if failed:
        found.append(Trouble(code="failed", reason="the run has ended with an error: see the log"))
    if unread_seconds > STALE_SECONDS:
        reason = (
            f"revoked.txt must be readable, but could not be read for {unread_seconds:.0f} s: "
            "the last good list counts meanwhile"
        )
        found.append(Trouble(code="stale-revocations", reason=reason))
    if waited > stall:
        reason = (
            f"a round must come within {stall:g} s, but none came for {waited:.0f} s; "
            f"{missing} agents are absent: see /status"
        )
        found.append(Trouble(code="stalled", reason=reason))
    return tuple(found)
