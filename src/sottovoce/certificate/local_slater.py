"""Slater's condition where agents keep local sets: coupling rows that hold strictly inside them.

The cloud cannot look for such a point, because it does not know the sets; whoever holds the whole
problem can. Local rows themselves need no interior: each agent keeps them exactly.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sottovoce.certificate.interior_point import InteriorPoint
from sottovoce.certificate.slater import SlaterPoint
from sottovoce.certificate.smooth_form import has_kinks, smooth_form
from sottovoce.formula.canonical import add, multiply
from sottovoce.formula.expression import ZERO, number, symbol
from sottovoce.problem.agents import Group, read_only
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.local import box_of
from sottovoce.problem.local_numeric import numeric_of
from sottovoce.problem.problem import Problem

_MET = 1e-6  # how far a local row or an equality may be off, relative to the numbers it adds up
_ROOM = 1e-7  # the least slack of an inequality, likewise
_SLACK = symbol("slack of all rows")  # no user's symbol has spaces


def local_slater_point(problem: Problem) -> SlaterPoint:
    """Find x in the local sets with ``max_j g_j(x) < 0``, to rounding.

    ``minimise t`` over x in X and t with ``g_j(x) - t <= 0`` for inequalities, ``g_j(x) = 0`` for
    equalities, by the interior-point method that the saddle point uses; kinks by variables of
    their own, as there.

    Raises:
        ProblemError: if the rows have no common point in the local sets.
    """
    reach = _reach(problem)
    form = smooth_form(problem) if has_kinks(problem) else None
    smooth = problem if form is None else form.problem
    numeric = numeric_of(_relaxed(smooth, reach, len(problem.constraints)))
    *_, found = InteriorPoint(numeric).approach((1e-6,))
    x, t = found.x[:-1], float(found.x[-1]) * reach
    x = x if form is None else x[form.columns]
    stated = numeric_of(problem)
    g, m = stated.constraints(x), problem.rows
    jacobian = stated.jacobian(x)
    scales = 1.0 + np.abs(jacobian.times(x))
    off = np.where(stated.equality, np.abs(g), g)
    off[:m] = np.where(stated.equality[:m], off[:m], -np.inf)
    rows = g[:m][~stated.equality[:m]]
    slack = float(np.max(rows, initial=-np.inf))
    point = read_only(x)
    if np.any(off > _MET * scales) or not slack < -_ROOM * (1.0 + abs(t)):
        worst = int(np.argmax(np.where(stated.equality, -np.inf, g)[:m]))
        how = (
            "a point of the agents' local sets with g(x) < 0 must exist, got none: "
            f"{stated.label(worst)} is {slack:.6g} at the best point found; relax the constraints "
            "or the local rows"
        )
        return SlaterPoint(point=point, slack=slack, status="fails", how=how)
    what = f"max_j g_j(x) is {slack:.6g}" if rows.size else "no inequalities"
    how = f"{what} at a point found inside the local sets, which it meets to rounding"
    return SlaterPoint(point=point, slack=slack, status="numerical", how=how)


def _reach(problem: Problem) -> float:
    """A slack that the rows have at the start, and more: the unit of t."""
    start = np.concatenate([np.ravel(part) for part in problem.start])
    largest = np.max(np.abs(numeric_of(problem).constraints(start)), initial=1.0)
    return 2.0 * (float(largest) if np.isfinite(largest) else 1e6)


def _relaxed(problem: Problem, reach: float, stated: int) -> Problem:
    """The problem of the largest slack: the same agents, and one more whose state is t / reach.

    Args:
        problem: without kinks.
        reach: the unit of t.
        stated: how many families were stated; those behind them hold kinks together.
    """
    slack = Group(
        name=_SLACK.name,
        count=1,
        symbols=(_SLACK,),
        lower=read_only([[-1.0]]),
        upper=read_only([[1.0]]),
        parameters={},
    )
    groups = (*problem.groups, slack)
    families = tuple(_loosened(family, reach) for family in problem.constraints[:stated])
    families += problem.constraints[stated:]
    made: Problem = object.__new__(Problem)
    vars(made).update(
        vars(problem)
        | {
            "groups": groups,
            "objectives": (*(ZERO for _ in problem.groups), _SLACK),
            "code": (None,) * len(groups),
            "cloud": replace(problem.cloud, groups=groups, constraints=families),
            "local": (*problem.local, box_of(slack)),
            "start": (*problem.start, read_only([[0.5]])),
        }
    )
    return made


def _loosened(family: Constraint, reach: float) -> Constraint:
    if family.equality:
        return family
    rest = family.rest or (ZERO,) * family.rows
    slack = multiply(number(-reach), _SLACK)
    return replace(family, rest=tuple(add(g, slack) for g in rest))
