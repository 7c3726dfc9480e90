"""Functions of the language: run by Python and compiled, they must give the same bits."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from sottovoce.compiler.module import entry

TABLE = (3, 5, 7, 11)
WEIGHTS = (0.5, 0.25, 2.0)
SCRAMBLE = np.uint64(0x9E3779B97F4A7C15)


class Box(NamedTuple):
    lower: Any
    upper: Any


def inside(x: Any, box: Any) -> Any:
    return min(max(x, box.lower), box.upper)


@entry("float64(float64, float64)")
def arithmetic(x: Any, y: Any) -> Any:
    z = x * y - x / (abs(y) + 1.0) + x**2 - 2 * y
    z += math.sqrt(abs(x)) * 0.5
    z -= math.exp(-abs(y)) + math.log(1.0 + x * x)
    return -z


@entry("float64(float64)")
def powers(x: Any) -> Any:
    return x**5 + x**-2 + abs(x) ** 1.5 + abs(x) ** (1.0 / 3.0)


@entry("int64(int64, int64)")
def whole(a: Any, b: Any) -> Any:
    return a // b * 1000 + a % b + (a & 12) + (a << 2) - (a >> 1) + (a ^ b) + abs(a) + a**2


@entry("boolean(float64, float64, int64)")
def truths(x: Any, y: Any, n: Any) -> Any:
    return (x < y < 2.0 or x != y) and (n != 3 or x >= y) and not (x > 1.5 and y <= 0.0)


@entry("float64(float64, int64)")
def choices(x: Any, n: Any) -> Any:
    if x > 1.0:
        y: Any = 1
    elif x < -1.0:
        y = -2.5
    else:
        y = x if n > 0 else 0
    return y * TABLE[n % 4] + WEIGHTS[1]


@entry("float64(int64)")
def loops(n: Any) -> Any:
    total, seen = 0.0, 0
    for i in range(n):
        if i % 3 == 1:
            continue
        for j in range(n, i, -2):
            seen += 1
            if seen > 40:
                break
            total += i / (j + 1)
    k = n
    while k > 0:
        k //= 2
        total += k
    for part in (total, 2.0, n):
        total = 0.5 * total + part
    return total + i + seen


@entry("float64(float64[::1], float64[:, ::1], int64)")
def arrays(x: Any, a: Any, n: Any) -> Any:
    first, rest = x[:n], x[n:]
    a[0, 1] += first.size * 10 + rest.size
    a[1] = 3.5
    a[2] = x[: a.shape[1]]
    row = a[2]
    row[0], row[1] = row[1], row[0]
    x[-1] = a.size
    y = x[1:].copy()
    y[:] = x[: y.size]
    x[0] = y[y.size - 1]
    square = x[:4].reshape((2, 2))
    square[1, 0] = -1.0
    return square[0, 1] + x[2]


def doubled(x: Any) -> Any:
    out = np.empty(x.size)
    for i in range(x.size):
        out[i] = 2.0 * x[i]
    return out


def longest(x: Any) -> Any:
    """Makes arrays, and returns none of them."""
    best = 0.0
    for _ in range(4):
        x = doubled(x)
        scale = np.ones(x.size)
        for i in range(x.size):
            best = max(best, x[i] * scale[i])
            x[i] *= 0.5
    return best


@entry("float64(float64[::1], int64)")
def made(x: Any, n: Any) -> Any:
    total = 0.0
    for k in range(n):
        y = np.zeros((k + 1, 3))
        z = np.full(k + 2, 0.5)
        y[k, 2] = longest(x) + z[k + 1]
        total += y[k, 2] + y[0, 0]
    x[:] = doubled(x)
    return total


@entry("float64(float64, float64)")
def tuples(x: Any, y: Any) -> Any:
    box = Box(-1.0, y)
    pair = (inside(x, box), x)
    low, (a, b) = box.lower, pair
    joined = (*pair, low)
    return a + 2.0 * b + joined[2] + len(joined)


@entry("uint64(uint64)")
def words(z: Any) -> Any:
    return (z ^ (z >> np.uint64(30))) * SCRAMBLE


def applied(f: Any, x: Any, extra: Any) -> Any:
    if extra is not None:
        return f(x) + extra
    return f(x)


@entry("float64(float64)")
def functions(x: Any) -> Any:
    return applied(math.exp, x, None) + applied(half, x, 1)


def half(x: Any) -> Any:
    """A whole number from one way, another from the other: the wider kind holds both."""
    if x > 0.0:
        return 0.5 * x
    return 7


@entry("float64(float64[::1], int32[::1])")
def gathered(x: Any, at: Any) -> Any:
    total = 0.0
    for i in range(at.size):
        total += x[at[i]]
    return total
