"""What a certificate says: whom it speaks for, its serial number, and when it ends."""

from __future__ import annotations

import datetime as dt
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from cryptography import x509

from sottovoce.network.failures import DiskError, ExpiredError, IdentityError

AGENT_URI: Final = re.compile(r"sottovoce:agent:([1-9]\d{0,9})(?:-([1-9]\d{0,9}))?\Z")
OPERATOR: Final = "sottovoce:operator"
CLOUD: Final = "sottovoce:cloud"
HELPER: Final = "sottovoce:helper"
MASK: Final = "sottovoce:mask:"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentRanges:
    """The agents that a certificate speaks for.

    Attributes:
        agents: their ranges, from 1; none for a helper.
    """

    agents: tuple[range, ...]

    def __contains__(self, agent: object) -> bool:
        return any(agent in part for part in self.agents)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Identity(AgentRanges):
    """What a certificate says.

    Attributes:
        operator: whether it has the operator's role.
        cloud: whether it has the role of a split cloud's half that talks to agents.
        serial: its serial number in lower-case hexadecimal.
        expires: when it ends, seconds since 1970.
    """

    operator: bool
    serial: str
    expires: float
    cloud: bool = False


def expiry(certificate: str | os.PathLike[str]) -> float:
    """Return when a certificate ends, seconds since 1970."""
    try:
        loaded = x509.load_pem_x509_certificate(Path(certificate).read_bytes())
    except OSError as error:
        raise DiskError(f"{certificate} cannot be read: {error.strerror}") from None
    except ValueError:
        raise IdentityError(f"{certificate} must be a certificate") from None
    return loaded.not_valid_after_utc.timestamp()


def require_current(certificate: str | os.PathLike[str]) -> None:
    """Refuse a certificate of our own that has ended.

    Raises:
        ExpiredError: it has, or this machine's clock is ahead.
    """
    end = expiry(certificate)
    if time.time() >= end:
        when = dt.datetime.fromtimestamp(end, dt.UTC).strftime("%Y-%m-%d %H:%M")
        raise ExpiredError(
            f"{certificate} must still be good, got one that ended on {when} UTC: renew it with "
            "sottovoce identity issue, or set this machine's clock"
        )


def identity_of(peer: dict[str, Any] | None) -> Identity | None:
    """Read a verified peer's certificate, as ``ssl`` gives it; None if it has no role here."""
    if not peer:
        return None
    uris = [value for kind, value in peer.get("subjectAltName", ()) if kind == "URI"]
    ranges = ranges_of(uris)
    operator, cloud = OPERATOR in uris, CLOUD in uris
    if not (ranges or operator or cloud):
        return None
    expires = dt.datetime.strptime(peer["notAfter"], "%b %d %H:%M:%S %Y %Z")
    return Identity(
        agents=ranges,
        operator=operator,
        cloud=cloud,
        serial=str(peer["serialNumber"]).lower().lstrip("0"),
        expires=expires.replace(tzinfo=dt.UTC).timestamp(),
    )


def has_role(peer: dict[str, Any] | None, role: str) -> bool:
    """Whether a verified peer's certificate names a role, such as ``HELPER``."""
    return peer is not None and ("URI", role) in peer.get("subjectAltName", ())


def ranges_of(uris: Iterable[str]) -> tuple[range, ...]:
    """Return the ranges of agents that URIs of a certificate speak for."""
    matches = [match for uri in uris if (match := AGENT_URI.match(uri))]
    return tuple(range(int(m[1]), int(m[2] or m[1]) + 1) for m in matches)


def parse_range(text: str) -> range:
    """Read ``3`` or ``1-250``."""
    ranges = ranges_of([f"sottovoce:agent:{text}"])
    if not ranges or not ranges[0]:
        raise IdentityError(f"agents must be a number or a range such as 1-250, got {text!r}")
    return ranges[0]
