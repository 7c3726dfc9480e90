"""Take part in a run until it is over: what ``agent`` and ``gateway`` share."""

from __future__ import annotations

import asyncio
import json
import math
import os
from pathlib import Path
from typing import Any

from sottovoce.cli.console import errors
from sottovoce.network import loop
from sottovoce.network.agent import Agent, AgentResult
from sottovoce.network.agent_group import AgentGroup
from sottovoce.network.errors import DiskError
from sottovoce.problem.agents import Array


def attend(group: AgentGroup, *, cloud: str, keys: Path, saved: Path) -> AgentResult:
    """Run the agents of a group until their run is over, and say how many rounds it had."""
    result = loop.run(_take_part(group, cloud, keys, saved))
    if result.failed:
        errors.print(
            f"own formulas gave no number in {result.failed:,} rounds: something else was sent "
            "there (docs/explanation/privacy.md), so check the objective"
        )
    # Not a number of a state: this goes to the journal, which others read.
    verdict = "" if result.confirmed is not False else "; not confirmed: the fallback is applied"
    errors.print(f"done after {result.rounds:,} rounds{verdict}")
    return result


def known(values: Array) -> list[float | None]:
    """Numbers as JSON has them: what is not known is null."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def write_answer(path: Path, values: dict[str, Any]) -> None:
    """Write an answer to a file that its owner alone can read."""
    try:
        with os.fdopen(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
            path.chmod(0o600)  # also where the file was there before
            file.write(json.dumps(values) + "\n")
    except OSError as error:
        raise DiskError(f"{path} cannot be written: {error.strerror}") from None


async def _take_part(group: AgentGroup, cloud: str, keys: Path, saved: Path) -> AgentResult:
    # An agent makes asyncio objects, so it must be made inside the loop.
    await asyncio.sleep(0)
    return await Agent(group, cloud=cloud, keys=keys, saved=saved).run()
