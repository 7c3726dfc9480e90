"""The prices of the quadratic model where C has regions: Newton's method with a safeguard.

    H l + A u = right,    l normal to C at u

In a diagonal metric D any such pair is ``u = P(z), l = D (z - P(z))`` with P the projection on C,
so one vector z is sought: ``G(z) = H l + A u - right = 0``. Its derivative
``H D (I - P') + A P'`` is regular wherever P has one, and Newton's steps from the last round's pair
end after a few. Where one does not halve the residual, the proximal step ``z - G/A`` is taken,
which never raises it.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

from sottovoce.algorithm.projection import Phi, factored, project, project_work, solve_factored
from sottovoce.problem.agents import Array

if TYPE_CHECKING:
    from sottovoce.algorithm.dual_averaging import Rows

_NEWTON = 40
_SHORTER = 6
_STEPS = 300
_CLOSE = 1e-9
_EXACT = 1e-11  # relative, of the prices
_ROUNDING = 1e-14  # relative, of what they are solved from
_TINY = 1e-300


class Quadratic(NamedTuple):
    """The model of the dual: ``right``, ``A`` and H, row by row or its diagonal."""

    right: Array
    recent: float
    model: Array


class Pair(NamedTuple):
    """What is sought: prices l, the point u of C, the metric D, and G there."""

    price: Array
    aim: Array
    weight: Array
    rest: Array


def region_work(sums: int, entries: int, largest: int) -> int:
    """Return how many floats of scratch ``by_regions`` needs, with H of so many entries."""
    return 8 * sums + 2 * entries + project_work(min(sums, largest))


def row_of(model: Array, o: int, price: Array) -> float:
    """Return ``(H price)_o``."""
    p = price.size
    if model.size == p:
        return float(model[o] * price[o])
    value = 0.0
    for q in range(p):
        value += model[o * p + q] * price[q]
    return value


def by_regions(
    quadratic: Quadratic, rows: Rows, phi: Phi, price: Array, aim: Array, work: Array
) -> None:
    """Fill price and aim with the pair ``(l, u)``; both hold that of another model on entry."""
    p = price.size
    pair = Pair(price, aim, work[:p], work[p : 2 * p])
    diagonal = quadratic.model.size == p
    for o in range(p):
        bound = _TINY
        for q in range(o if diagonal else 0, o + 1 if diagonal else p):
            bound += abs(quadratic.model[o if diagonal else o * p + q])
        pair.weight[o] = quadratic.recent / bound
    # Where H is diagonal the first proximal step is exact.
    if diagonal or not _by_newton(quadratic, rows, phi, pair, work[2 * p :]):
        _by_steps(quadratic, rows, phi, pair, work[2 * p :])


def _by_newton(quadratic: Quadratic, rows: Rows, phi: Phi, pair: Pair, work: Array) -> bool:
    """Return whether Newton's method found the pair."""
    p, recent = pair.price.size, quadratic.recent
    z, there, step, plain = work[:p], work[p : 2 * p], work[2 * p : 3 * p], work[3 * p : 4 * p]
    inner = work[4 * p :]
    known = 0.0
    for o in range(p):
        z[o] = pair.aim[o] + pair.price[o] / pair.weight[o]
        known += quadratic.right[o] * quadratic.right[o] * pair.weight[o]
    off = _residual(z, quadratic, rows, phi, pair, inner)
    for _ in range(_NEWTON):
        size = 0.0
        for o in range(p):
            size += pair.price[o] * pair.price[o] / pair.weight[o]
        if off <= max((_EXACT * recent) ** 2 * size, _ROUNDING * _ROUNDING * known):
            return True
        _direction(z, quadratic, rows, phi, pair, step, inner)
        for o in range(p):
            plain[o] = z[o] - pair.rest[o] / recent
        share, after = 1.0, off
        for _ in range(_SHORTER):
            for o in range(p):
                there[o] = z[o] + share * step[o]
            after = _residual(there, quadratic, rows, phi, pair, inner)
            if after <= (1.0 - 0.5 * share) ** 2 * off:
                break
            share *= 0.5
        if after > (1.0 - 0.5 * share) ** 2 * off:
            for o in range(p):
                there[o] = plain[o]
            after = _residual(there, quadratic, rows, phi, pair, inner)
        for o in range(p):
            z[o] = there[o]
        off = after
    return False


def _residual(
    z: Array, quadratic: Quadratic, rows: Rows, phi: Phi, pair: Pair, work: Array
) -> float:
    """Fill ``u = P(z)``, ``l = D (z - u)`` and ``G``; return ``G'D G``."""
    p = z.size
    point, metric, scratch = work[:p], work[p : 2 * p], work[2 * p :]
    for o in range(p):
        point[o] = z[o] * rows.unit[o]
        metric[o] = pair.weight[o] / (rows.unit[o] * rows.unit[o])
    project(point, metric, rows.public, phi, pair.aim, scratch)
    for o in range(p):
        # Exactly 0 where the projection moved nothing.
        pair.price[o] = pair.weight[o] * (point[o] - pair.aim[o]) / rows.unit[o]
        pair.aim[o] /= rows.unit[o]
    total = 0.0
    for o in range(p):
        steep = row_of(quadratic.model, o, pair.price)
        pair.rest[o] = steep + quadratic.recent * pair.aim[o] - quadratic.right[o]
        total += pair.rest[o] * pair.rest[o] * pair.weight[o]
    return total


def _direction(
    z: Array, quadratic: Quadratic, rows: Rows, phi: Phi, pair: Pair, step: Array, work: Array
) -> None:
    """Fill Newton's step ``-(H D (I - P') + A P')^-1 G``."""
    p = z.size
    m, model = p * p, quadratic.model
    slope, matrix, scratch = work[:m], work[m : 2 * m], work[2 * m :]
    for o in range(p):
        for q in range(p):
            slope[o * p + q] = 0.0
        inside = rows.public.lower[o] < z[o] * rows.unit[o] < rows.public.upper[o]
        slope[o * p + o] = 1.0 if inside else 0.0
    for r in range(rows.public.radii.size):
        _bend(r, rows, phi, pair, slope, scratch)
    for o in range(p):
        for q in range(p):
            value = quadratic.recent * slope[o * p + q] + model[o * p + q] * pair.weight[q]
            for e in range(p):
                value -= model[o * p + e] * pair.weight[e] * slope[e * p + q]
            matrix[o * p + q] = value
        step[o] = -pair.rest[o]
    _eliminate(matrix, step)


def _bend(r: int, rows: Rows, phi: Phi, pair: Pair, slope: Array, work: Array) -> None:
    """Put in the derivative of P where region r holds.

    ``P' = (K - K g g'K / g'K g) D`` with ``K = (D + nu Hessian)^-1``; g is the gradient of the
    region's function, and nu follows from ``l = nu g``.
    """
    p, public = pair.price.size, rows.public
    first, size = public.starts[r], public.starts[r + 1] - public.starts[r]
    member, metric, u = public.members[first : first + size], work[:size], work[size : 2 * size]
    inner = work[2 * size :]
    g, turned = inner[:size], inner[size : 2 * size]
    hessian = inner[3 * size : 3 * size + size * size].reshape((size, size))
    factor = inner[3 * size + size * size : 3 * size + 2 * size * size].reshape((size, size))
    holds = 0.0
    for i in range(size):
        holds = max(holds, abs(pair.price[member[i]]))
        u[i], metric[i] = pair.aim[member[i]] * rows.unit[member[i]], pair.weight[member[i]]
    if not holds > 0.0:
        return
    if public.radii[r] >= 0.0:
        for i in range(size):
            g[i] = u[i] - public.centers[first + i]
            for j in range(size):
                hessian[i, j] = 1.0 if i == j else 0.0
    else:
        phi(r, u, g, hessian)
    above, below = 0.0, 0.0
    for i in range(size):
        g[i] *= rows.unit[member[i]]
        above += pair.price[member[i]] * g[i] / metric[i]
        below += g[i] * g[i] / metric[i]
        for j in range(size):
            hessian[i, j] *= rows.unit[member[i]] * rows.unit[member[j]]
    nu = max(above / below, 0.0) if below > 0.0 else 0.0
    factored(hessian, nu, metric, factor)
    for i in range(size):
        turned[i] = g[i]
    solve_factored(factor, turned)
    long = 0.0
    for i in range(size):
        long += g[i] * turned[i]
    column = u
    for j in range(size):
        for i in range(size):
            column[i] = metric[j] if i == j else 0.0
        solve_factored(factor, column)
        for i in range(size):
            along = turned[i] * turned[j] * metric[j] / long if long > 0.0 else column[i]
            slope[member[i] * p + member[j]] = column[i] - along


def _eliminate(matrix: Array, right: Array) -> None:
    """Solve a linear system in place, exchanging rows for the largest pivot."""
    p = right.size
    for i in range(p):
        best = i
        for k in range(i + 1, p):
            if abs(matrix[k * p + i]) > abs(matrix[best * p + i]):
                best = k
        if best != i:
            for j in range(i, p):
                matrix[i * p + j], matrix[best * p + j] = matrix[best * p + j], matrix[i * p + j]
            right[i], right[best] = right[best], right[i]
        if matrix[i * p + i] == 0.0:
            continue
        for k in range(i + 1, p):
            share = matrix[k * p + i] / matrix[i * p + i]
            for j in range(i + 1, p):
                matrix[k * p + j] -= share * matrix[i * p + j]
            right[k] -= share * right[i]
    for i in range(p - 1, -1, -1):
        for j in range(i + 1, p):
            right[i] -= matrix[i * p + j] * right[j]
        right[i] = right[i] / matrix[i * p + i] if matrix[i * p + i] != 0.0 else 0.0


def _by_steps(quadratic: Quadratic, rows: Rows, phi: Phi, pair: Pair, work: Array) -> None:
    """Proximal steps in the same metric, accelerated and restarted."""
    p, price, aim = pair.price.size, pair.price, pair.aim
    z, v, new = work[:p], work[p : 2 * p], work[2 * p : 3 * p]
    point, metric, rest = work[3 * p : 4 * p], work[4 * p : 5 * p], work[5 * p :]
    for o in range(p):
        z[o] = price[o]
        metric[o] = pair.weight[o] / (rows.unit[o] * rows.unit[o])
    t = 1.0
    for _ in range(_STEPS):
        for o in range(p):
            bound = quadratic.recent / pair.weight[o]
            v[o] = z[o] + (quadratic.right[o] - row_of(quadratic.model, o, z)) / bound
            point[o] = v[o] / pair.weight[o] * rows.unit[o]
        project(point, metric, rows.public, phi, aim, rest)
        moved, size, back = 0.0, 0.0, 0.0
        for o in range(p):
            aim[o] /= rows.unit[o]
            new[o] = v[o] - pair.weight[o] * aim[o]
            moved = max(moved, abs(new[o] - price[o]) / sqrt(pair.weight[o]))
            size = max(size, abs(new[o]) / sqrt(pair.weight[o]))
            back += (z[o] - new[o]) / pair.weight[o] * (new[o] - price[o])
        if back > 0.0:
            t = 1.0
        after = 0.5 * (1.0 + sqrt(1.0 + 4.0 * t * t))
        for o in range(p):
            z[o] = new[o] + (t - 1.0) / after * (new[o] - price[o])
            price[o] = new[o]
        t = after
        if moved <= _CLOSE * size:
            break
