"""Many rounds between processes: one cloud, n agents, each with its own secrets.

Defaults are here so that ``sottovoce cloud --help`` can show them without loading a network.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from sottovoce.network.agent import Agent as Agent
    from sottovoce.network.agent_group import AgentGroup as AgentGroup
    from sottovoce.network.cloud import Cloud as Cloud
    from sottovoce.network.helper import Helper as Helper
    from sottovoce.network.relay import Relay as Relay
    from sottovoce.network.series import Series as Series

Straggler: TypeAlias = Literal["fallback", "hold", "wait"]
"""What counts in a round for an agent that misses its deadline: its public fallback contribution or
its last one again; with "wait" there is no deadline."""

# Seconds that the first round of a process, and every other one, waits for agents; a relay must be
# faster than the cloud above it. Agents come back to a cloud that was away within 45 seconds.
DEADLINE_SECONDS: Final = (60.0, 10.0)
RELAY_DEADLINE_SECONDS: Final = (30.0, 5.0)
STALL_SECONDS: Final = 60.0  # a run without a round for this long is stalled
LINGER_SECONDS: Final = 30.0  # how long a cloud waits at the end for agents that missed it
CERTIFICATE_DAYS: Final = 397  # renew with ``identity issue`` before a certificate ends

_MODULES = {name: name.lower() for name in ("Agent", "Cloud", "Helper", "Relay", "Series")}
_MODULES["AgentGroup"] = "agent_group"


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sottovoce.network' has no attribute {name!r}")
    return getattr(import_module(f"sottovoce.network.{_MODULES[name]}"), name)
