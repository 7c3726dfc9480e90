"""The builds of the kernels that this installation has, and fleets for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from sottovoce.formula.expression import ZERO, Expression
from sottovoce.kernels import fleet_tapes, variant
from sottovoce.kernels.fleet_kernel import FleetKernel, FleetStates
from sottovoce.kernels.run_kernel import Release, Run
from sottovoce.problem.agents import Group
from sottovoce.problem.fleets import Fleet, FleetContribution
from sottovoce.problem.local import LocalSet

BUILT = [
    name
    for name in ("baseline", "avx2")
    if find_spec(f"sottovoce.kernels._{name}") and find_spec(f"sottovoce.kernels._{name}.core")
]
if BUILT and not variant.build("baseline").has_avx2():
    BUILT.remove("avx2")

compiled = pytest.mark.parametrize(
    "build", BUILT or [pytest.param("", marks=pytest.mark.skip("no compiled kernels here"))]
)
BUILDS = [*BUILT, "plain"]


def use_build(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Let the doors use one build, for a fixture."""
    variant.variant.cache_clear()
    monkeypatch.setenv(variant.VARIABLE, name)
    yield name
    monkeypatch.undo()
    variant.variant.cache_clear()


def make_fleet(
    states: tuple[Expression, ...],
    sums: tuple[FleetContribution, ...],
    bounds: tuple[Any, Any],
    *,
    objective: Expression = ZERO,
    parameters: Mapping[Expression, Any] | None = None,
    inequalities: tuple[Expression, ...] = (),
    equalities: tuple[Expression, ...] = (),
) -> Fleet:
    """A fleet from canonical formulas; bounds have shape (count, d)."""
    lower, upper = (np.array(bound, dtype=float) for bound in bounds)
    group = Group(name="a", count=len(lower), symbols=states, lower=lower, upper=upper,
                  parameters=dict(parameters or {}))  # fmt: skip
    local = LocalSet(inequalities=inequalities, equalities=equalities, labels=(), lower=lower,
                     upper=upper)  # fmt: skip
    return Fleet(group=group, objective=objective, sums=sums, local=local)


def kernel_of(fleet: Fleet, *, interior: bool = False, **more: Any) -> FleetKernel:
    """The kernel of a fleet in its own box; ``interior``: without the search for few rows."""
    box = (fleet.group.lower, fleet.group.upper)
    if not interior:
        return FleetKernel(fleet, *box, **more)
    with patch.object(fleet_tapes, "separable_form", return_value=None):
        return FleetKernel(fleet, *box, **more)


def gradient_step(fleet: FleetStates, mu: Any, gamma: float, alpha: float) -> Any:
    """Take Algorithm 1's step and return what the states before it contribute."""
    none, sums = np.zeros(mu.size), np.zeros((1, mu.size))
    run = Run([fleet], Release(offset=none, sigma=none, grid=None, seeds=(0,)), None)
    run.mu[:] = mu
    for task in run.tasks(0, 1, np.array([[gamma, alpha]]), transcript=sums):
        task()
    return sums[0]
