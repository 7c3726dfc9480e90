"""What agents of a game answer to prices: exact minimisers."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.problems.games import EXP, LOG


def slope_of(a: Any, c: int, x: float, price: Any) -> Any:
    """Slope and curvature of ``f_c + price'h_c``, couplings within the agent left out."""
    kind, d = a.kind[c], x - a.place[c]
    if kind == LOG:
        t = x + a.place[c]
        slope, bend = a.linear[c] - a.scale[c] / t, a.scale[c] / (t * t)
    else:
        m = a.power[c]
        if m == 2.0:
            slope, bend = a.linear[c] + 2.0 * a.scale[c] * d, 2.0 * a.scale[c]
        else:
            even = d ** (m - 2.0)
            slope, bend = a.linear[c] + a.scale[c] * m * even * d, a.scale[c] * m * (m - 1.0) * even
    for e in range(a.h_ptr[c], a.h_ptr[c + 1]):
        cost, m = price[a.h_row[e]] * a.h_coef[e], a.h_power[e]
        if a.h_kind[e] == EXP:
            value = m * math.exp(m * x)
            slope += cost * value
            bend += cost * m * value
        elif m == 1.0:
            slope += cost
        else:
            below = x ** (m - 2.0)
            slope += cost * m * below * x
            bend += cost * m * (m - 1.0) * below
    return slope, bend


def force_of(a: Any, c: int, x: float, price: Any) -> float:
    force = 0.0
    for e in range(a.h_ptr[c], a.h_ptr[c + 1]):
        cost, m = price[a.h_row[e]] * a.h_coef[e], a.h_power[e]
        if a.h_kind[e] == EXP:
            force += cost * m * math.exp(m * x)
        elif m == 1.0:
            force += cost
        else:
            force += cost * m * x ** (m - 1.0)
    return force


def scalar(a: Any, c: int, price: Any, extra: float, eps: float, anchor: float, x: float) -> float:
    """argmin of ``f_c + price'h_c + extra x + eps/2 (x - anchor)^2`` on the box, by Newton."""
    low, high = a.lower[c], a.upper[c]
    width = high - low
    for _ in range(200):
        slope, bend = slope_of(a, c, x, price)
        slope += extra + eps * (x - anchor)
        bend += eps
        if a.straight[c] and bend > 0.0:
            return min(max(x - slope / bend, a.lower[c]), a.upper[c])
        if slope > 0.0:
            high = x
        else:
            low = x
        if slope == 0.0 or (x == a.lower[c] and slope > 0.0) or (x == a.upper[c] and slope < 0.0):
            return x
        new = x - slope / bend if bend > 0.0 else (a.lower[c] if slope > 0.0 else a.upper[c])
        if new <= a.lower[c] and high > a.lower[c]:
            new = a.lower[c]
        elif new >= a.upper[c] and low < a.upper[c]:
            new = a.upper[c]
        if not low <= new <= high or new == x:
            new = 0.5 * (low + high) if abs(new - x) > 1e-15 * width else new
        moved = abs(new - x)
        x = new
        if moved <= 1e-14 * width or high - low <= 1e-14 * width:
            break
    return min(max(x, a.lower[c]), a.upper[c])


def shared(a: Any, b: int, price: Any, x: Any, old: Any, eps: Any) -> None:
    """An agent with a square of its total: its derivative is a price, ``nu = w (sum - need)``.

    ``w (sum(nu) - need) - nu`` falls in nu: Newton's method in a bracket.
    """
    i, j, w, need = a.block_ptr[b], a.block_ptr[b + 1], a.block_weight[b], a.block_need[b]
    low, high, nu = -need, -need, -need
    for c in range(i, j):
        low += a.lower[c]
        high += a.upper[c]
        nu += x[c]
    low, high, nu = w * low, w * high, w * nu
    for _ in range(100):
        total, answer = -need, 0.0
        for c in range(i, j):
            x[c] = scalar(a, c, price, nu, eps[c], old[c], x[c])
            total += x[c]
            if a.lower[c] < x[c] < a.upper[c]:
                answer += 1.0 / (slope_of(a, c, x[c], price)[1] + eps[c])
        off = w * total - nu
        if off > 0.0:
            low = nu
        else:
            high = nu
        step = off / (1.0 + w * answer)
        if abs(step) <= 1e-14 * (abs(nu) + abs(low) + abs(high)):
            break
        nu += step
        if not low < nu < high:
            nu = 0.5 * (low + high)


def respond(a: Any, price: Any, x: Any, old: Any, eps: Any) -> None:
    """Every agent's exact minimiser, in place."""
    for b in range(a.block_weight.size):
        i, j = a.block_ptr[b], a.block_ptr[b + 1]
        if a.block_weight[b] > 0.0:
            shared(a, b, price, x, old, eps)
        elif a.quad_ptr[j] > a.quad_ptr[i]:
            for _ in range(300):
                moved = 0.0
                for c in range(i, j):
                    extra = 0.0
                    for e in range(a.quad_ptr[c], a.quad_ptr[c + 1]):
                        extra += a.quad[e] * x[a.quad_to[e]]
                    new = scalar(a, c, price, extra, eps[c], old[c], x[c])
                    moved = max(moved, abs(new - x[c]) / (a.upper[c] - a.lower[c]))
                    x[c] = new
                if moved < 1e-13:
                    break
        else:
            for c in range(i, j):
                x[c] = scalar(a, c, price, 0.0, eps[c], old[c], x[c])


def sums_of(a: Any, x: Any, s: Any) -> None:
    s[:] = 0.0
    for c in range(x.size):
        for e in range(a.h_ptr[c], a.h_ptr[c + 1]):
            if a.h_kind[e] == EXP:
                s[a.h_row[e]] += a.h_coef[e] * math.exp(a.h_power[e] * x[c])
            elif a.h_power[e] == 1.0:
                s[a.h_row[e]] += a.h_coef[e] * x[c]
            else:
                s[a.h_row[e]] += a.h_coef[e] * x[c] ** a.h_power[e]
