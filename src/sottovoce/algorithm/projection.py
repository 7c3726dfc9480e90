"""The exact projection on the public set C in a diagonal metric, compiled and in Python.

Every function here is plain arithmetic on float64 arrays: the engine compiles it as it stands, and
Python runs the same text to the same bits. Loops are written out for that reason: a library's sums
may be added up in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.problem.agents import Array

Phi: TypeAlias = Callable[[int, Array, Array, Array], float]
"""``phi(region, u, gradient, hessian)`` fills both arrays and returns phi_r(u)."""

_NEWTON = 60
_SEARCH = 100
_SHORTER = 40
_SMALL = 1e-15
_CLOSE = 1e-14  # relative, of nu: a displacement this much off is rounding
_QUADRATIC = 1e-8  # after a step this short, relative to the way to go, the next would be rounding


class PublicSet(NamedTuple):
    """C, a product of intervals and of regions over disjoint groups of sums.

    A named tuple because compiled code takes it apart as Python does. Sums that belong to a region
    have the interval ``(-inf, inf)``.

    Attributes:
        lower: the least value of every sum, ``-inf`` if there is none.
        upper: the largest; a point has ``lower == upper``.
        starts: region r holds ``members[starts[r]:starts[r + 1]]``.
        members: the sums of all regions, region by region.
        centers: the centre of a ball, laid out as members; unused for other regions.
        radii: the radius of a ball, or a negative number for a region ``{phi_r(u) <= -level}``.
        levels: that level, 0 for C as it was stated; unused for balls.
    """

    lower: Array
    upper: Array
    starts: NDArray[np.int64]
    members: NDArray[np.int64]
    centers: Array
    radii: Array
    levels: Array


def intervals(lower: ArrayLike, upper: ArrayLike) -> PublicSet:
    """Return the set ``lower <= s <= upper`` without regions."""
    none = np.zeros(0)
    return PublicSet(
        np.array(lower, dtype=np.float64),
        np.array(upper, dtype=np.float64),
        np.zeros(1, dtype=np.int64),
        np.zeros(0, dtype=np.int64),
        none,
        none,
        none,
    )


def no_phi(region: int, u: Array, gradient: Array, hessian: Array) -> float:
    """Stand in for phi where C has no general region."""
    return -1.0


def project_work(size: int) -> int:
    """Return how many floats of scratch ``project`` needs for regions of at most ``size`` sums."""
    return 6 * size + 2 * size * size


def project(
    v: Array, weight: Array, public: PublicSet, phi: Phi | None, u: Array, work: Array
) -> float:
    """Fill ``u = argmin over u in C of sum_o weight_o (u_o - v_o)^2 / 2``; return the largest nu.

    Args:
        v: the point to project.
        weight: the metric, positive.
        public: C.
        phi: the functions of its general regions; None if it has no regions at all.
        u: where the projection goes.
        work: scratch, see ``project_work``.
    """
    for o in range(v.size):
        u[o] = min(max(v[o], public.lower[o]), public.upper[o])
    if phi is None:  # C has no regions, and compiled code for them is not wanted
        return 0.0
    return _project_regions(v, weight, public, phi, u, work)


def _project_regions(
    v: Array, weight: Array, public: PublicSet, phi: Phi, u: Array, work: Array
) -> float:
    """The same for the sums that belong to regions."""
    largest = 0.0
    for r in range(public.radii.size):
        first, last = public.starts[r], public.starts[r + 1]
        size = last - first
        point, metric, found = work[:size], work[size : 2 * size], work[2 * size : 3 * size]
        for i in range(size):
            point[i], metric[i] = v[public.members[first + i]], weight[public.members[first + i]]
        if public.radii[r] >= 0.0:
            center = public.centers[first:last]
            nu = project_ball(point, metric, center, public.radii[r], found)
        else:
            nu = project_region(r, point, metric, phi, public.levels[r], found, work[3 * size :])
        for i in range(size):
            u[public.members[first + i]] = found[i]
        largest = max(largest, nu)
    return largest


def project_ball(v: Array, weight: Array, center: Array, radius: float, u: Array) -> float:
    """Fill u with the nearest point of ``|u - c| <= radius`` and return its multiplier nu.

    ``u = c + d (v - c) / (d + nu)`` with nu the root of ``1/|u - c| = 1/radius``, which Newton's
    method reaches from the left without a safeguard, as the left side is concave in nu (Reinsch).
    In an equal metric the first step is exact.
    """
    distance = 0.0
    for i in range(v.size):
        distance += (v[i] - center[i]) ** 2
    distance = sqrt(distance)
    if distance <= radius:
        for i in range(v.size):
            u[i] = v[i]
        return 0.0
    if radius == 0.0:
        for i in range(v.size):
            u[i] = center[i]
        return inf
    nu = 0.0
    for _ in range(_NEWTON):
        length, slope = 0.0, 0.0
        for i in range(v.size):
            part = weight[i] * (v[i] - center[i]) / (weight[i] + nu)
            length += part * part
            slope += part * part / (weight[i] + nu)
        step = length / slope * (sqrt(length) / radius - 1.0)
        nu += step
        if step <= _SMALL * nu:
            break
    for i in range(v.size):
        u[i] = center[i] + weight[i] * (v[i] - center[i]) / (weight[i] + nu)
    return nu


def project_region(
    region: int, v: Array, weight: Array, phi: Phi, level: float, u: Array, work: Array
) -> float:
    """Fill u with the nearest point of ``phi(u) + level <= 0`` and return its multiplier nu.

    ``u(nu) = argmin sum_o d_o (u_o - v_o)^2 / 2 + nu phi(u)``, and nu is the root of the decreasing
    ``phi(u(nu)) + level``: Newton's method kept inside a bracket, which bisection shrinks where a
    step leaves it.

    Args:
        region: r, passed on to phi.
        v: the point to project.
        weight: d.
        phi: value, gradient and Hessian of phi_r.
        level: how far below 0 phi must be.
        u: where the projection goes.
        work: scratch of ``3 m + 2 m^2``.
    """
    size = v.size
    gradient, bent = work[:size], work[size : 2 * size]
    hessian = work[3 * size : 3 * size + size * size].reshape((size, size))
    factor = work[3 * size + size * size : 3 * size + 2 * size * size].reshape((size, size))
    for i in range(size):
        u[i] = v[i]
    value = phi(region, u, gradient, hessian) + level
    if value <= 0.0:
        return 0.0
    low, high, nu, last = 0.0, inf, 0.0, inf
    for _ in range(_SEARCH):
        # d phi(u(nu)) / d nu = -gradient' (D + nu Hessian)^-1 gradient
        factored(hessian, nu, weight, factor)
        for i in range(size):
            bent[i] = gradient[i]
        solve_factored(factor, bent)
        slope = 0.0
        for i in range(size):
            slope += gradient[i] * bent[i]
        if value > 0.0:
            low = nu
        else:
            high = nu
        if not slope > 0.0:
            break
        before = nu
        nu = before + value / slope
        if abs(nu - before) <= _CLOSE * nu or (high < inf and high - low <= _CLOSE * high):
            break
        if high == inf and value > 0.5 * last:
            nu = max(nu, 4.0 * before)  # too far off for Newton's method to be fast
        elif not low < nu < high:
            nu = 0.5 * (low + high)
        last = value
        value = _damped(region, nu, v, weight, phi, u, work) + level
    return nu


def _damped(
    region: int, nu: float, v: Array, weight: Array, phi: Phi, u: Array, work: Array
) -> float:
    """Move u to u(nu) by Newton's method with halved steps; return phi there, with derivatives."""
    size = v.size
    gradient, step, there = work[:size], work[size : 2 * size], work[2 * size : 3 * size]
    hessian = work[3 * size : 3 * size + size * size].reshape((size, size))
    factor = work[3 * size + size * size : 3 * size + 2 * size * size].reshape((size, size))
    value = phi(region, u, gradient, hessian)
    for _ in range(_NEWTON):
        factored(hessian, nu, weight, factor)
        for i in range(size):
            step[i] = -(weight[i] * (u[i] - v[i]) + nu * gradient[i])
        fall = 0.0
        for i in range(size):
            there[i] = step[i]
        solve_factored(factor, step)
        length, travelled = 0.0, 0.0
        for i in range(size):
            fall += there[i] * step[i]
            length += weight[i] * step[i] * step[i]
            travelled += weight[i] * (u[i] - v[i]) ** 2
        if not length > 0.0:
            break
        last = length <= _QUADRATIC * _QUADRATIC * travelled
        here = 0.5 * travelled + nu * value
        share = 1.0
        for _ in range(_SHORTER):
            travelled = 0.0
            for i in range(size):
                there[i] = u[i] + share * step[i]
                travelled += weight[i] * (there[i] - v[i]) ** 2
            value = phi(region, there, gradient, hessian)
            slack = 4.0 * _SMALL * abs(here)
            if 0.5 * travelled + nu * value <= here - 0.25 * share * fall + slack:
                break
            share *= 0.5
        for i in range(size):
            u[i] = there[i]
        if last:
            break
    return value


def factored(hessian: Array, nu: float, weight: Array, factor: Array) -> None:
    """Fill the Cholesky factor of ``diag(weight) + nu hessian``."""
    size = weight.size
    for i in range(size):
        for j in range(i + 1):
            left = nu * hessian[i, j]
            if i == j:
                left += weight[i]
            for k in range(j):
                left -= factor[i, k] * factor[j, k]
            if i == j:
                # Rounding must not make a positive definite matrix anything else.
                factor[i, i] = sqrt(max(left, _SMALL * weight[i]))
            else:
                factor[i, j] = left / factor[j, j]


def solve_factored(factor: Array, right: Array) -> None:
    """Solve ``L L' x = right`` in place."""
    size = right.size
    for i in range(size):
        left = right[i]
        for k in range(i):
            left -= factor[i, k] * right[k]
        right[i] = left / factor[i, i]
    for i in range(size - 1, -1, -1):
        left = right[i]
        for k in range(i + 1, size):
            left -= factor[k, i] * right[k]
        right[i] = left / factor[i, i]
