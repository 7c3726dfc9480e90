"""A problem's formulas, boxes and public set as kernels take them.

Simulation and network both lay out agents and clouds here, so both have the same bits. A named
agent is laid out in its form, numbers as parameters, whether or not others of its form are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.certificate.contributions import sum_ranges
from sottovoce.errors import ProblemError
from sottovoce.formula.expression import Expression
from sottovoce.kernels.cloud_kernel import LARGEST_REGION, Ball, Gains, Level, PublicSum
from sottovoce.kernels.fleet_kernel import FleetKernel
from sottovoce.kernels.fleet_problem import FleetProblem, Terms
from sottovoce.privacy.feasibility import TargetSet
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.code import Watched
from sottovoce.problem.fleet import Fleet
from sottovoce.problem.sums import Region, Sums, ball_of
from sottovoce.simulation.home_shape import Shape, general_form, shape_of


def fleet_kernel(
    fleet: Fleet,
    lower: Array,
    upper: Array,
    *,
    gradient: Watched | None = None,
    gradient_steps: bool = False,
) -> FleetKernel:
    """Lay out a fleet.

    Args:
        fleet: its formulas.
        lower: bounds that states are kept in, shape (count, d).
        upper: likewise.
        gradient: of an objective that is code, added to that of the fleet's formula.
        gradient_steps: whether agents take gradient steps instead of minimising.
    """
    rows = 0 if gradient_steps or fleet.local is None else fleet.local.rows
    if gradient is not None:
        shape: Shape = general_form(fleet) if rows else None
        if not rows:  # with rows the minimiser itself looks around
            gradient.look(lower[0], upper[0])
    else:
        shape = None if gradient_steps else shape_of(fleet)
    problem = FleetProblem(
        states=fleet.group.symbols,
        parameters=_used_parameters(fleet),
        objective=fleet.objective,
        sums=tuple(
            Terms(row=part.row, terms=part.terms, weights=part.weights, table=part.table)
            for part in fleet.sums
        ),
        lower=lower,
        upper=upper,
        form=shape,
        local_rows=rows,
        gradient=gradient if shape is not None or fleet.group.dim > 1 else _scalar(gradient),
    )
    return FleetKernel(problem, gradient_steps=gradient_steps)


def public_sums(
    sums: Sums, domain: Sequence[Group], sigma: Array | None, target: TargetSet | None = None
) -> PublicSum:
    """Return what is public of the sums; a sum without noise counts in units of its range.

    Args:
        sums: the sums and C.
        domain: the boxes of the agents that make them.
        sigma: the noise of every sum, if there is any.
        target: how much of C is aimed at; all of it by default.
    """
    known = np.zeros(sums.count) if sigma is None or sigma.size != sums.count else sigma
    unit = np.array(known)
    if not np.all(known > 0.0):
        widths = np.array([high - low for low, high in sum_ranges(sums, domain)])
        fine = np.isfinite(widths) & (widths > 0.0)
        unit = np.where(known > 0.0, known, np.where(fine, widths, 1.0))
    aimed = TargetSet.whole(sums) if target is None else target
    return PublicSum(
        lower=np.array(aimed.lower),
        upper=np.array(aimed.upper),
        unit=unit,
        noisy=np.where(known > 0.0, 1.0, 0.0),
        regions=tuple(map(_region, sums.regions, aimed.moved)),
    )


def gains(algorithm: DualAveraging) -> Gains:
    """Return the constants of dual averaging."""
    return Gains(
        memory=algorithm.memory,
        doubt=algorithm.doubt,
        reach=algorithm.reach,
        theta=algorithm.theta,
        start=algorithm.start,
    )


def _scalar(gradient: Watched | None) -> Callable[[float], float] | None:
    """The derivative by a state that is a number."""
    if gradient is None:
        return None
    return lambda x: float(gradient(np.array([x]))[0])


def _used_parameters(fleet: Fleet) -> dict[Expression, Array]:
    """The parameters that an agent's formulas name; others are in its bounds alone."""
    rows = () if fleet.local is None else (*fleet.local.inequalities, *fleet.local.equalities)
    named = set().union(*(expr.symbols for expr in (fleet.objective, *fleet.terms, *rows)))
    return {s: values for s, values in fleet.group.parameters.items() if s in named}


def _region(region: Region, moved: float) -> Ball | Level:
    """A region of C with its edge moved in; balls are recognised."""
    if len(region.rows) > LARGEST_REGION:
        raise ProblemError(
            f"constraint {region.name} must mix at most {LARGEST_REGION} sums, got "
            f"{len(region.rows)}: state it as several constraints"
        )
    ball = ball_of(region)
    if ball is not None:
        center, radius = ball
        return Ball(members=tuple(region.rows), center=tuple(center), radius=radius - moved)
    return Level(
        members=tuple(region.rows), symbols=tuple(region.symbols), phi=region.phi, level=moved
    )
