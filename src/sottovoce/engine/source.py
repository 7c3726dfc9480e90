"""What generated kernels have in common: their head, their names, and what a plan makes noisy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps, names_of

QUANTITIES = (
    "error_x", "error_price", "violation", "residual", "objective", "last_error_x",
    "last_error_price",
)  # fmt: skip
"""What is measured at every recorded round, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise:
    """Which released numbers are noisy; the standard deviations come as data.

    Attributes:
        rows: the noisy sums, or rows of g, whose normals come first, in order.
        entries: the released gradient entries by (row, column), with the number of their normal.
    """

    rows: tuple[int, ...]
    entries: Mapping[tuple[int, int], int]

    @property
    def count(self) -> int:
        """How many normals a round takes."""
        return len(self.rows) + len(self.entries)

    @property
    def pairs(self) -> int:
        """How many pairs of normals a round takes."""
        return (self.count + 1) // 2


def head(algorithm: Algorithm) -> list[str]:
    """The imports of a kernel and the algorithm's steps, compiled into it."""
    lines = [
        "import math",
        "import numpy as np",
        "from sottovoce.compiler.module import entry",
        "from sottovoce.algorithm.steps import positive, project",
        "from sottovoce.engine.intrinsics import invoke",
        "from sottovoce.engine import normals",
    ]
    if not isinstance(algorithm, GradientSteps):
        at_home = "agent_round, dampings, home_damping, vector_round"
        lines.append(f"from sottovoce.algorithm.round import {at_home}")
        lines.append("from sottovoce.algorithm.dual_search import softness")
        lines.append("from sottovoce.algorithm.home_block import load as load_row")
        lines.append("from sottovoce.algorithm.home_block import store as store_row")
        lines.append("from sottovoce.algorithm.home_block import rint, select")
        return [*lines, "from sottovoce.engine.vectors import leading"]
    for role, step in {"agent": algorithm.agent_step, "cloud": algorithm.cloud_step}.items():
        lines.append(f"from {step.__module__} import {step.__name__} as {role}")
    return lines


def steps_of(algorithm: Algorithm) -> tuple[Any, ...]:
    """The functions that a kernel compiles in."""
    if isinstance(algorithm, GradientSteps):
        return algorithm.agent_step, algorithm.cloud_step
    return (algorithm.cloud_round,)


def call(role: str, step: Any, values: Mapping[str, str]) -> str:
    """The call of a step with each argument by its name."""
    arguments = ", ".join(values[name] for name in names_of(step))
    return f"{role}({arguments})"


def block(lines: Sequence[str], depth: int) -> str:
    """The lines, indented."""
    return indent("\n".join(lines), "    " * depth)
