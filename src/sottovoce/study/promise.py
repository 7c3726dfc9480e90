"""The promise that arguments ask for, or else the table ``[privacy]`` of a problem."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from sottovoce.certificate.certificate import Certificate
from sottovoce.errors import InputError
from sottovoce.formula.parse import parse_number
from sottovoce.privacy.adjacency import Everything, PerAgent, adjacency_of
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import plan
from sottovoce.privacy.releases import REGISTERED, release_of
from sottovoce.problem.problem import Problem


def promised(problem: Problem, name: str, value: PerAgent | None = None) -> PerAgent | None:
    """Return epsilon, delta or radius: the argument, or else the problem's, or else None.

    The ``[privacy]`` table may write numbers as text, such as ``ln(3)``.
    """
    stated: PerAgent | str | None = problem.privacy.get(name) if value is None else value
    if not isinstance(stated, str):
        return stated
    numbers = [parse_number(text, where=f"[privacy] {name}") for text in stated.split(",")]
    return numbers[0] if len(numbers) == 1 else numbers


def promised_plan(
    problem: Problem,
    certificate: Certificate,
    *,
    epsilon: PerAgent | None = None,
    delta: PerAgent | None = None,
    radius: PerAgent | None = None,
    hide: str | None = None,
    rounds: int | None = None,
    method: str = "joint",
    **settings: Any,
) -> NoisePlan:
    """Return the plan of a promise; the problem's ``[privacy]`` decides where one is left out.

    ``method`` is "joint" for ``sv.plan``, or the name of another release, as "paper"; ``settings``
    are those of its plan.
    """
    chosen = _planner(method)
    for name in sorted(settings.keys() - signature(chosen).parameters.keys()):
        known = [m for m in ("joint", *REGISTERED) if name in signature(_planner(m)).parameters]
        raise InputError(
            f"{name} needs method={' or '.join(map(repr, known))}, got method={method!r}: "
            "leave it out"
        )
    kind = hide or str(problem.privacy.get("hide", "trajectory"))
    epsilon = promised(problem, "epsilon", epsilon)
    delta = promised(problem, "delta", delta)
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if value is None:
            raise InputError(
                f"{name} must be given, got none: pass {name} (--{name}), or write it under "
                "[privacy] in problem.toml"
            )
    if kind != Everything.kind or radius is not None:  # the file's is for what the file hides
        radius = promised(problem, "radius", radius)
    covered = rounds if rounds is not None else problem.privacy.get("rounds")
    hidden = adjacency_of(kind, radius=radius, rounds=covered)
    return chosen(certificate, epsilon=epsilon, delta=delta, hide=hidden, **settings)


def _planner(method: str) -> Callable[..., NoisePlan]:
    return plan if method == "joint" else release_of(method).plan
