"""The promise that arguments ask for, or else the table ``[privacy]`` of a problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

from sottovoce.certificate.certificate import Certificate
from sottovoce.errors import InputError
from sottovoce.formula.parse import parse_number
from sottovoce.paper.paper_plan import paper_plan
from sottovoce.privacy.adjacency import Everything, adjacency_of
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import plan
from sottovoce.problem.problem import Problem

PerAgent: TypeAlias = float | Sequence[float] | None
"""One number for all agents, or one per agent; None where the problem's table decides."""

_OF_ONE_METHOD: Final = {
    "joint": ("trust", "feasible", "each_row", "weights"),
    "paper": ("constants", "allow_undernoised"),
}
"""Settings that one way to choose the noise has and the other has not."""


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
        method: str = "joint",
        **settings: Any,
    ) -> NoisePlan:
        """Return the plan of this promise.

        Args:
            problem: what it is for.
            certificate: its certificate.
            rounds: the rounds that it covers; the problem's table decides by default.
            method: "joint" for ``sv.plan``, "paper" for ``sv.paper.plan``.
            settings: those of either.
        """
        _require_method(method, settings)
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
        chosen: Any = paper_plan if method == "paper" else plan
        noise: NoisePlan = chosen(certificate, epsilon=epsilon, delta=delta, hide=hide, **settings)
        return noise


def _require_method(method: str, settings: dict[str, Any]) -> None:
    if method not in _OF_ONE_METHOD:
        raise InputError(f"method must be 'joint' or 'paper', got {method!r:.60}")
    for other in set(_OF_ONE_METHOD) - {method}:
        for name in _OF_ONE_METHOD[other]:
            if name in settings:
                raise InputError(
                    f"{name} needs method={other!r}, got method={method!r}: leave it out"
                )
