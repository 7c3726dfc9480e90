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
    return (z ^ (z >> np.uint64(30))) * SCRAMBLE + np.uint64(3) * np.uint64(4)


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


@entry("int64(int64, int64)")
def divided(a: Any, b: Any) -> Any:
    return (a // b) * 3 + a % b


@entry("int64(int64, int64)")
def shifted(a: Any, n: Any) -> Any:
    return (a >> n) + ((a & 1) << (n % 50))


@entry("uint64(uint64, uint64)")
def shifted_words(a: Any, n: Any) -> Any:
    return (a >> n) ^ (a << n)


@entry("int64(float64)")
def cut(x: Any) -> Any:
    return int(x)


@entry("int64(float64[::1], int64)")
def chained(x: Any, n: Any) -> Any:
    """The last comparison of a chain, which writes, is left out where the first is false."""
    return 1 if 0 <= n < noted(x, n) else 2


def noted(x: Any, n: Any) -> Any:
    x[0] += 1.0
    return n + 1 if n < x.size else 0


@entry("float64(float64[:, ::1], float64[::1])")
def from_the_end(a: Any, x: Any) -> Any:
    a[-1] = 7.0
    return a[-1][0] + a[-2, -1] + x[LAST[0]] + x[2 - 4]


LAST = (-1,)


@entry("float64(float64)")
def tan(x: Any) -> Any:
    """Called like a function of C, which it is not."""
    return 2.0 * x + math.tan(x)


def twice(x: Any, y: Any) -> Any:
    if y is None:
        return 2.0 * twice(x, 1.0)
    return x + y


@entry("float64(float64)")
def itself_for_other_kinds(x: Any) -> Any:
    return twice(x, None)


@entry("float64(int64)")
def widened_one_after_another(n: Any) -> Any:
    one: Any = 1
    a, b, c, d, e, f, g, h, i = one, one, one, one, one, one, one, one, one
    for _ in range(n):
        a, b, c, d, e, f, g, h, i = b, c, d, e, f, g, h, i, i * 0.5
    return a + b + c


@entry("float64(float64, float64)")
def nested(x: Any, y: Any) -> Any:
    return (x if x > 1.0 else (1 if y > 1.0 else (2 if x and y else -3))) if x != y else 4


@entry("float64(int64)")
def filled(n: Any) -> Any:
    return np.zeros(n)[0]


@entry("float64(float64)")
def roots(x: Any) -> Any:
    return x**0.5 - x**2.0 + 2.0**x - x**-1.0
