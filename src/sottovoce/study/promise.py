"""The promise that arguments ask for, or else the table ``[privacy]`` of a problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from sottovoce.certificate.certificate import Certificate
from sottovoce.errors import InputError
from sottovoce.formula.parse import parse_number
from sottovoce.privacy.adjacency import Everything, adjacency_of
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import plan
from sottovoce.problem.problem import Problem

PerAgent: TypeAlias = float | Sequence[float] | None
"""One number for all agents, or one per agent; None where the problem's table decides."""


def promised(problem: Problem, name: str, value: PerAgent = None) -> PerAgent:
    """Return a figure of a promise: a number, one per agent, or None if nothing states it.

    Args:
        problem: its ``[privacy]`` table may write numbers as text, such as ``ln(3)``.
        name: ``epsilon``, ``delta`` or ``radius``.
        value: the argument, which comes first.
    """
    stated: PerAgent | str = problem.privacy.get(name) if value is None else value
    if not isinstance(stated, str):
        return stated
    numbers = [parse_number(part, where=f"[privacy] {name}") for part in stated.split(",")]
    return numbers[0] if len(numbers) == 1 else numbers


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """``(epsilon, delta)`` for what is hidden; None where the problem's table decides."""

    epsilon: PerAgent = None
    delta: PerAgent = None
    radius: PerAgent = None
    hide: str | None = None

    def plan(
        self,
        problem: Problem,
        certificate: Certificate,
        *,
        rounds: int | None = None,
        **settings: Any,
    ) -> NoisePlan:
        """Return the plan of this promise; ``settings`` are those of ``sv.plan``."""
        kind = self.hide or str(problem.privacy.get("hide", "trajectory"))
        epsilon = promised(problem, "epsilon", self.epsilon)
        delta = promised(problem, "delta", self.delta)
        for name, value in (("epsilon", epsilon), ("delta", delta)):
            if value is None:
                raise InputError(
                    f"{name} must be given, got none: pass {name} (--{name}), or write it under "
                    "[privacy] in problem.toml"
                )
        radius = promised(problem, "radius", self.radius)
        if kind == Everything.kind and self.radius is None:
            radius = None  # the file's is for what the file hides
        covered = rounds if rounds is not None else problem.privacy.get("rounds")
        hide = adjacency_of(kind, radius=radius, rounds=covered)
        return plan(certificate, epsilon=epsilon, delta=delta, hide=hide, **settings)
