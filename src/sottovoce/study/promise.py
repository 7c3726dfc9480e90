"""The promise that arguments ask for, or else the table ``[privacy]`` of a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, final

from sottovoce.certificate.certificate import Certificate
from sottovoce.errors import InputError
from sottovoce.formula.parse import parse_number
from sottovoce.privacy.adjacency import Everything, PerAgent, adjacency_of
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import plan
from sottovoce.privacy.releases import REGISTERED, release_of
from sottovoce.privacy.trust import Trust
from sottovoce.problem.problem import Problem
from sottovoce.progress import Progress


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What is promised to every agent; a problem's ``[privacy]`` decides where a field is None.

    Numbers may be text, such as ``ln(3)``, or ``1,1,2`` for one per agent.
    """

    epsilon: PerAgent | str | None = None
    delta: PerAgent | str | None = None
    radius: PerAgent | str | None = None
    hide: str | None = None

    def plan(
        self,
        problem: Problem,
        certificate: Certificate,
        *,
        rounds: int | None = None,
        method: str = "joint",
        trust: Trust | None = None,
        feasible: float | None = None,
        each_row: bool = False,
        allow_undernoised: bool = False,
        progress: bool | Progress | None = None,
    ) -> NoisePlan:
        """Return the noise plan of the promise.

        ``method`` is "joint" for ``sv.plan``, or the name of another release, as "paper"; the
        arguments after it are those of its plan, and refused where that has none such.
        """
        chosen = _planner(method)
        settings: dict[str, Any] = {"trust": trust, "feasible": feasible}
        settings |= {"each_row": each_row, "allow_undernoised": allow_undernoised}
        settings = {n: v for n, v in settings.items() if v is not None and v is not False}
        for name in sorted(settings.keys() - signature(chosen).parameters.keys()):
            methods = [
                m for m in ("joint", *REGISTERED) if name in signature(_planner(m)).parameters
            ]
            raise InputError(
                f"{name} needs method={' or '.join(map(repr, methods))}, got method={method!r}: "
                "leave it out"
            )
        kind = self.hide or str(problem.privacy.get("hide", "trajectory"))
        epsilon = stated_number(problem, "epsilon", self.epsilon)
        delta = stated_number(problem, "delta", self.delta)
        for name, value in (("epsilon", epsilon), ("delta", delta)):
            if value is None:
                raise InputError(
                    f"{name} must be given, got none: pass {name} (--{name}), or write it under "
                    "[privacy] in problem.toml"
                )
        radius = None
        if kind != Everything.kind or self.radius is not None:  # the file's is for its own kind
            radius = stated_number(problem, "radius", self.radius)
        covered = problem.privacy.get("rounds") if rounds is None else rounds
        hide = adjacency_of(kind, radius=radius, rounds=covered)
        return chosen(
            certificate, epsilon=epsilon, delta=delta, hide=hide, progress=progress, **settings
        )


def stated_number(
    problem: Problem, name: str, value: PerAgent | str | None = None
) -> PerAgent | None:
    """Return epsilon, delta or radius: the argument, or else the problem's, or else None."""
    stated: PerAgent | str | None = problem.privacy.get(name) if value is None else value
    if not isinstance(stated, str):
        return stated
    where = f"[privacy] {name}" if value is None else f"--{name}"
    numbers = [parse_number(text, where=where) for text in stated.split(",")]
    return numbers[0] if len(numbers) == 1 else numbers


def _planner(method: str) -> Callable[..., NoisePlan]:
    return plan if method == "joint" else release_of(method).plan
