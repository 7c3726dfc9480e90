"""A convex function over a box, convex rows and affine rows: a primal-dual interior-point method.

    minimise  phi(x) + sum_c weight_c (x_c - anchor_c)^2 / 2
    over      lower <= x <= upper,   c_j(x) <= 0,   e_k(x) = 0

Mehrotra's predictor and corrector steps on the optimality conditions, from a point inside the box
that need not meet the rows. Numbers count in units of the box, of the slope at the start and of
each row's, so nothing depends on anybody's units. Loops are written out: compiled and in Python
they give the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

_ITERATIONS = 100
_SHORTER = 12
_INSIDE = 0.1  # how far from its bounds a component starts, as a share of its width
_SLACK = 0.1  # the least slack to start with
_BACK = 0.99  # how much of the way to the boundary is taken
_GAP = 1e-19  # complementarity to stop at: its root is how far a component may be off a bound
_RESIDUAL = 1e-12
_ROUNDING = 1e-9  # residuals below are rounding soon: the gap then tells what is better
_PIVOT = 1e-30


class Inside(NamedTuple):
    """An iterate, its step and the optimality conditions; n components, m rows, q equalities.

    An iterate is one vector: components x, their distances from both bounds, the rows' slacks, the
    multipliers of rows and of equalities, and those of both bounds.

    Attributes:
        now: the iterate.
        step: where it goes.
        there: the iterate that is looked at.
        x: its components in their own units, shape (n,).
        unit: the unit of each component; 0 where it cannot move.
        ends: whether it has a lower and an upper end, shape (2 n,).
        row_unit: of each row, shape (m + q,).
        gradient: of phi with its damping.
        values: of the rows.
        jacobian: of the rows, shape (m + q, n).
        hessian: of phi plus multipliers times rows, shape (n, n).
        matrix: of the step's equations, then its factor, shape (n, n).
        solved: ``matrix^-1`` times gradients of equalities, shape (q, n).
        schur: of the equalities, shape (q, q).
        residual: of the gradient, and of all rows, shape (n + m + q,).
        goal: what is left of complementarity: slacks, lower and upper ends, shape (m + 2 n,).
    """

    now: Any
    step: Any
    there: Any
    x: Any
    unit: Any
    ends: Any
    row_unit: Any
    gradient: Any
    values: Any
    jacobian: Any
    hessian: Any
    matrix: Any
    solved: Any
    schur: Any
    residual: Any
    goal: Any


def interior_minimum(
    derive: Any, context: Any, anchor: Any, weight: Any, lower: Any, upper: Any, rows: Any
) -> Any:
    """Return the minimiser.

    Args:
        derive: ``derive(context, x, price, gradient, values, jacobian, hessian)`` fills in those of
            phi and of the rows, inequalities first; the Hessian is that of
            ``phi + sum_j price_j row_j``. Entries of the Jacobian that are always 0 it leaves.
        context: whatever derive wants besides.
        anchor: where the damping holds x; any point.
        weight: of the damping, not negative.
        lower: the box's lower ends; infinite where there is none.
        upper: its upper ends.
        rows: how many inequalities and how many equalities there are.
    """
    m, q = rows
    n, price = anchor.size, np.zeros(m + q)
    at = start_inside(anchor, lower, upper, m, q)
    answer = at.x.copy()
    scale, gap, worst, best, share, tries = 0.0, 1.0, 0.0, np.inf, 1.0, 0
    for _ in range(_ITERATIONS):
        for j in range(m + q):
            own = at.there[3 * n + m + j] * at.row_unit[j]
            price[j] = own / scale if scale > 0.0 else 0.0
        at.hessian[:, :] = 0.0
        derived(derive, context, price, at)
        for c in range(n):
            at.gradient[c] += weight[c] * (at.x[c] - anchor[c])
            at.hessian[c, c] += weight[c]
        if scale == 0.0:
            scale = choose_units(at, m, q)
        in_units(at, scale, n)
        if tries == 0:
            begin_slacks(at, m, q)
        residual = conditions(at, m, q)
        if tries > 0 and tries < _SHORTER and not residual <= 2.0 * worst + gap:
            share, tries = 0.5 * share, tries + 1
            look(at, share, lower, upper)
            continue
        at.now[:] = at.there
        gap = mean_gap(at, m, q, 0.0)
        off = gap if residual < _ROUNDING else 1.0 + residual
        if off < best:
            answer[:] = at.x
        elif not best > _ROUNDING:
            break
        best = min(best, off)
        if residual != residual or (gap < _GAP and residual < _RESIDUAL):
            break
        worst, tries = residual, 1
        factorise(at, m, q)
        share = best_step(at, m, q, gap)
        look(at, share, lower, upper)
    if not best < np.inf:
        answer[:] = np.nan
    return answer


def derived(derive: Any, context: Any, price: Any, at: Any) -> None:
    """Derive at x; compiled code knows ``derive`` by its address."""
    derive(context, at.x, price, at.gradient, at.values, at.jacobian, at.hessian)


def start_inside(anchor: Any, lower: Any, upper: Any, m: Any, q: Any) -> Any:
    """The first iterate: the anchor pulled inside its bounds."""
    n = anchor.size
    at = Inside(
        np.zeros(5 * n + 2 * m + q), np.zeros(5 * n + 2 * m + q), np.zeros(5 * n + 2 * m + q),
        np.zeros(n), np.zeros(n), np.zeros(2 * n), np.ones(m + q), np.zeros(n), np.zeros(m + q),
        np.zeros((m + q, n)), np.zeros((n, n)), np.zeros((n, n)), np.zeros((q, n)),
        np.zeros((q, q)), np.zeros(n + m + q), np.zeros(m + 2 * n),
    )  # fmt: skip
    for c in range(n):
        width = upper[c] - lower[c]
        has_low, has_high = lower[c] > -np.inf, upper[c] < np.inf
        at.unit[c] = width if has_low and has_high else max(abs(anchor[c]), 1.0)
        at.ends[c] = 1.0 if has_low and width > 0.0 else 0.0
        at.ends[n + c] = 1.0 if has_high and width > 0.0 else 0.0
        margin = _INSIDE * at.unit[c]
        x = anchor[c]
        x = max(x, lower[c] + margin) if has_low else x
        at.x[c] = min(x, upper[c] - margin) if has_high else x
        if width > 0.0:
            at.there[c] = at.x[c] / at.unit[c]
            at.there[n + c] = (at.x[c] - lower[c]) / at.unit[c] if has_low else 1.0
            at.there[2 * n + c] = (upper[c] - at.x[c]) / at.unit[c] if has_high else 1.0
        else:
            at.x[c], at.unit[c] = lower[c], 0.0
    return at


def choose_units(at: Any, m: Any, q: Any) -> Any:
    """Fill the rows' units from their slopes, and return the factor of the objective."""
    n, steepest = at.x.size, 0.0
    for c in range(n):
        steepest = max(steepest, abs(at.gradient[c]) * at.unit[c])
        steepest = max(steepest, abs(at.hessian[c, c]) * at.unit[c] * at.unit[c])
    for j in range(m + q):
        largest = 0.0
        for c in range(n):
            largest = max(largest, abs(at.jacobian[j, c]) * at.unit[c])
        at.row_unit[j] = 1.0 / largest if largest > 0.0 else 1.0
    return 1.0 / steepest if steepest > 0.0 else 1.0


def in_units(at: Any, scale: Any, n: Any) -> None:
    """Take what was derived to units; entries of the Jacobian are filled anew every time."""
    for c in range(n):
        at.gradient[c] *= scale * at.unit[c]
        for d in range(n):
            at.hessian[c, d] *= scale * at.unit[c] * at.unit[d]
    for j in range(at.values.size):
        at.values[j] *= at.row_unit[j]


def begin_slacks(at: Any, m: Any, q: Any) -> None:
    """Slacks that rows leave at the start, or a little; multipliers in balance with them."""
    n = at.x.size
    for j in range(m):
        slack = max(-at.values[j], _SLACK)
        at.there[3 * n + j], at.there[3 * n + m + j] = slack, 0.1 / slack
    for c in range(2 * n):
        at.there[3 * n + 2 * m + q + c] = 0.1 * at.ends[c] / max(at.there[n + c], _SLACK)


def conditions(at: Any, m: Any, q: Any) -> Any:
    """Fill the residuals of gradient and rows; return the largest, NaN if any is."""
    n, prices = at.x.size, 3 * at.x.size + m
    first, worst = prices + m + q, 0.0
    for c in range(n):
        total = at.gradient[c] - at.there[first + c] + at.there[first + n + c]
        for j in range(m + q):
            if at.jacobian[j, c] != 0.0:
                slope = at.jacobian[j, c] * at.row_unit[j] * at.unit[c]
                total += slope * at.there[prices + j]
        at.residual[c] = total if at.unit[c] > 0.0 else 0.0
    for j in range(m + q):
        at.residual[n + j] = at.values[j] + (at.there[3 * n + j] if j < m else 0.0)
    for i in range(n + m + q):
        size = abs(at.residual[i])
        worst = size if not size <= worst else worst
    return worst


def mean_gap(at: Any, m: Any, q: Any, share: Any) -> Any:
    """Mean complementarity of the iterate, ``share`` of its step ahead."""
    n, total, count = at.x.size, 0.0, 0.0
    for j in range(m):
        slack = at.now[3 * n + j] + share * at.step[3 * n + j]
        total += slack * (at.now[3 * n + m + j] + share * at.step[3 * n + m + j])
        count += 1.0
    first = 3 * n + 2 * m + q
    for c in range(2 * n):
        if at.ends[c] > 0.0:
            room = at.now[n + c] + share * at.step[n + c]
            total += room * (at.now[first + c] + share * at.step[first + c])
            count += 1.0
    return total / count if count > 0.0 else 0.0


def factorise(at: Any, m: Any, q: Any) -> None:
    """``matrix = H + J'(price/slack)J + bounds`` as a product of triangles, and the Schur part."""
    n, prices, first = at.x.size, 3 * at.x.size + m, 3 * at.x.size + 2 * m + q
    for c in range(n):
        for d in range(c + 1):
            at.matrix[c, d] = at.hessian[c, d]
        for end in (c, n + c):
            if at.ends[end] > 0.0:
                at.matrix[c, c] += at.now[first + end] / at.now[n + end]
    for j in range(m):
        weight = at.now[prices + j] / at.now[3 * n + j] * at.row_unit[j] * at.row_unit[j]
        for c in range(n):
            if at.jacobian[j, c] != 0.0:
                own = weight * at.jacobian[j, c] * at.unit[c]
                for d in range(c + 1):
                    at.matrix[c, d] += own * at.jacobian[j, d] * at.unit[d]
    for c in range(n):
        if at.unit[c] == 0.0:
            for d in range(n):
                at.matrix[max(c, d), min(c, d)] = 1.0 if c == d else 0.0
    triangle(at.matrix)
    for k in range(q):
        for c in range(n):
            at.solved[k, c] = at.jacobian[m + k, c] * at.row_unit[m + k] * at.unit[c]
        forward(at.matrix, at.solved[k])
    for k in range(q):
        for i in range(k + 1):
            total = 0.0
            for c in range(n):
                total += at.solved[k, c] * at.solved[i, c]
            at.schur[k, i] = total
    triangle(at.schur)


def triangle(matrix: Any) -> None:
    """Cholesky's factor of the lower half, in its place; what has no pivot does not move."""
    n, largest = matrix.shape[0], 0.0
    for c in range(n):
        largest = max(largest, matrix[c, c])
    for c in range(n):
        for d in range(c + 1):
            total = matrix[c, d]
            for i in range(d):
                total -= matrix[c, i] * matrix[d, i]
            if c == d:
                matrix[c, c] = np.sqrt(total) if total > _PIVOT * largest else 1e100
            else:
                matrix[c, d] = total / matrix[d, d]


def forward(factor: Any, b: Any) -> None:
    """``b := L^-1 b``."""
    for c in range(b.size):
        total = b[c]
        for i in range(c):
            total -= factor[c, i] * b[i]
        b[c] = total / factor[c, c]


def backward(factor: Any, b: Any) -> None:
    """``b := L'^-1 b``."""
    for c in range(b.size - 1, -1, -1):
        total = b[c]
        for i in range(c + 1, b.size):
            total -= factor[i, c] * b[i]
        b[c] = total / factor[c, c]


def best_step(at: Any, m: Any, q: Any, gap: Any) -> Any:
    """Fill the step: Newton's, corrected by what its first try would leave; return its length."""
    n = at.x.size
    first = 3 * n + 2 * m + q
    for j in range(m):
        at.goal[j] = at.now[3 * n + j] * at.now[3 * n + m + j]
    for c in range(2 * n):
        at.goal[m + c] = at.now[n + c] * at.now[first + c] * at.ends[c]
    solve_step(at, m, q)
    share = longest(at, m, q)
    ahead = mean_gap(at, m, q, share) / gap if gap > 0.0 else 0.0
    centre = ahead * ahead * ahead * gap
    for j in range(m):
        at.goal[j] += at.step[3 * n + j] * at.step[3 * n + m + j] - centre
    for c in range(2 * n):
        if at.ends[c] > 0.0:
            at.goal[m + c] += at.step[n + c] * at.step[first + c] - centre
    solve_step(at, m, q)
    return min(1.0, _BACK * longest(at, m, q))


def solve_step(at: Any, m: Any, q: Any) -> None:
    """Newton's step for the residuals and what ``goal`` leaves of complementarity."""
    n, prices = at.x.size, 3 * at.x.size + m
    first = prices + m + q
    move, free = at.step[:n], at.step[prices + m : prices + m + q]
    for c in range(n):
        total = -at.residual[c]
        if at.ends[c] > 0.0:
            total -= at.goal[m + c] / at.now[n + c]
        if at.ends[n + c] > 0.0:
            total += at.goal[m + n + c] / at.now[2 * n + c]
        for j in range(m):
            if at.jacobian[j, c] != 0.0:
                left = at.now[prices + j] * at.residual[n + j] - at.goal[j]
                slope = at.jacobian[j, c] * at.row_unit[j] * at.unit[c]
                total -= slope * left / at.now[3 * n + j]
        move[c] = total if at.unit[c] > 0.0 else 0.0
    forward(at.matrix, move)
    for k in range(q):
        total = at.residual[n + m + k]
        for c in range(n):
            total += at.solved[k, c] * move[c]
        free[k] = total
    forward(at.schur, free)
    backward(at.schur, free)
    for c in range(n):
        for k in range(q):
            move[c] -= at.solved[k, c] * free[k]
    backward(at.matrix, move)
    for j in range(m):
        total = at.residual[n + j]
        for c in range(n):
            if at.jacobian[j, c] != 0.0:
                total += at.jacobian[j, c] * at.row_unit[j] * at.unit[c] * move[c]
        slack, price = at.now[3 * n + j], at.now[prices + j]
        at.step[3 * n + j] = -total
        at.step[prices + j] = (price * total - at.goal[j]) / slack
    for c in range(n):
        at.step[n + c], at.step[2 * n + c] = move[c] * at.ends[c], -move[c] * at.ends[n + c]
        for end in (c, n + c):
            lost = at.goal[m + end] + at.now[first + end] * at.step[n + end]
            at.step[first + end] = -lost / at.now[n + end] if at.ends[end] > 0.0 else 0.0


def longest(at: Any, m: Any, q: Any) -> Any:
    """The longest share of the step, at most 1, that keeps all slacks and multipliers positive."""
    n, share = at.x.size, 1.0
    for i in range(n, at.now.size):
        free = i >= 3 * n + 2 * m and i < 3 * n + 2 * m + q
        if not free and at.step[i] < 0.0 and -at.now[i] > share * at.step[i]:
            share = -at.now[i] / at.step[i]
    return share


def look(at: Any, share: Any, lower: Any, upper: Any) -> None:
    """Set ``there`` a share of the step ahead, and its x from the nearer bound."""
    n = at.x.size
    for i in range(at.now.size):
        at.there[i] = at.now[i] + share * at.step[i]
    for c in range(n):
        if at.unit[c] > 0.0:
            low, high = at.there[n + c], at.there[2 * n + c]
            if at.ends[c] > 0.0 and (low <= high or at.ends[n + c] == 0.0):
                at.x[c] = lower[c] + low * at.unit[c]
            elif at.ends[n + c] > 0.0:
                at.x[c] = upper[c] - high * at.unit[c]
            else:
                at.x[c] = at.there[c] * at.unit[c]
