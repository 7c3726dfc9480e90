"""The public grid that sums are released on; agents know it too, and need no sampler."""

from __future__ import annotations

from typing import Final

STEPS: Final = 2.0**26
"""Grid steps per standard deviation: N."""
