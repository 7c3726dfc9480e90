"""When the cloud's own certificates end, as a figure to alert on."""

from __future__ import annotations

import os
import time
from pathlib import Path

from sottovoce.network.identity import expiry

SECONDS_PER_DAY = 86_400


def certificate_days(keys: str | os.PathLike[str]) -> str:
    """Return the days until server and authority end, in Prometheus's format."""
    lines = [
        "# HELP sottovoce_certificate_days Days until a certificate of the cloud ends.",
        "# TYPE sottovoce_certificate_days gauge",
    ]
    for name, file in (("server", "server.pem"), ("authority", "ca.pem")):
        days = (expiry(Path(keys) / file) - time.time()) / SECONDS_PER_DAY
        lines.append(f'sottovoce_certificate_days{{of="{name}"}} {days:.3f}')
    return "\n".join(lines) + "\n"
