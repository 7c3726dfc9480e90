"""What an operator may change, and the defaults.

Nothing is imported here, so that ``sottovoce cloud --help`` can say it without loading a network.
"""

from __future__ import annotations

from typing import Final

STALL_SECONDS: Final = 60.0
"""A run without a round for this long is stalled."""

LINGER_SECONDS: Final = 30.0
"""How long a cloud waits, after the last round, for agents that missed the end."""

DAYS: Final = 397
"""Life of a certificate; renew with ``identity issue`` before it ends."""
