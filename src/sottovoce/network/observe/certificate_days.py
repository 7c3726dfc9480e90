"""When the cloud's own certificates end, as a figure to alert on."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from sottovoce.network.identity.roles import expiry

SECONDS_PER_DAY = 86_400


def certificate_ends(keys: str | os.PathLike[str]) -> dict[str, float]:
    """Return when server and authority end, seconds since 1970: read once, as TLS reads them."""
    root = Path(keys)
    return {"server": expiry(root / "server.pem"), "authority": expiry(root / "ca.pem")}


def certificate_days(ends: Mapping[str, float]) -> str:
    """Return the days until certificates end, in Prometheus's format."""
    lines = [
        "# HELP sottovoce_certificate_days Days until a certificate of the cloud ends.",
        "# TYPE sottovoce_certificate_days gauge",
    ]
    for name, end in ends.items():
        days = (end - time.time()) / SECONDS_PER_DAY
        lines.append(f'sottovoce_certificate_days{{of="{name}"}} {days:.3f}')
    return "\n".join(lines) + "\n"
