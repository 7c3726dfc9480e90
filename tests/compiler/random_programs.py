"""Programs of the language made at random, for Python and the compiler to run."""

from __future__ import annotations

from random import Random

HEAD = """import math
import numpy as np
from typing import NamedTuple
from sottovoce.compiler.module import entry

table = (3, -5, 7, 11)
numbers = (0.5, -0.0, 1e300, 2.0)


class pair(NamedTuple):
    u: object
    v: object


def picked(truth, x, y):
    if truth:
        return x
    return y


def grown(x, more):
    out = np.zeros(x.size + more)
    for i in range(x.size):
        out[i] = x[i] * 1.5
    return out


def both(x, more):
    y = grown(x, more)
    if more > 2:
        return y[1:], y.copy()
    return np.full(y.size, 0.25), y


def total(x):
    found = 0.0
    for i in range(x.size):
        if x[i] > 1e200:
            break
        found += x[i]
    return found


def scratch(n):
    found = 0.0
    for k in range(n):
        part = np.ones(k + 1)
        part[k] = k
        found += total(grown(part, 1))
    return found


def applied(f, x):
    return f(x) + 1


def half(x):
    return x / 2


def above(x):
    if x > 0:
        return x
    return 1

"""

KIND = "float64(float64, float64, int64, float64[::1], float64[:, ::1], int64[::1])"
_REALS = ("f0", "f1", "f2", "w0", "w1", "p.u", "p.v", "t[1]")
_WHOLES = ("i0", "i1", "i2", "n")


class Writer:
    """Writes one program; whole numbers stay small, as Python's would grow."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311
        self._depth = self._loops = self._counters = 0

    def program(self, name: str) -> str:
        """Return a function that is an entry."""
        lines = [
            f'@entry("{KIND}")',
            f"def {name}(f0, f1, n, x, a, whole):",
            "    f2, i0, i1, i2, b0 = -2.0, 1, n, -4, f0 < f1",
            "    w0, w1, p, t = 1, n, pair(f0, 0.5), (n, f1, 0.25)",
            *self._block(1, 14, loop=False),
            "    f0 += i0 + i1 + i2 + picked(b0, 1, 3)",
            "    return f0 + f1 + f2 + w0 + w1 + p.u + p.v + t[1]",
        ]
        return "\n".join(lines) + "\n\n"

    def _any(self, *given: str) -> str:
        return self._random.choice(given)

    def _filled(self, forms: tuple[str, ...], depth: int) -> str:
        """One of some forms: R is any real number, I a whole one, B a truth value, V a variable."""
        form, deeper = self._any(*forms), depth + 1
        found = ""
        for sign in form:
            if sign == "R":
                found += self._real(deeper)
            elif sign == "I":
                found += self._whole(deeper)
            elif sign == "B":
                found += self._truth(deeper)
            elif sign == "V":
                found += self._any(*_REALS)
            else:
                found += self._any("<", "<=", "==", "!=", ">") if sign == "?" else sign
        return found

    def _real(self, depth: int = 0) -> str:
        if depth > 3 or self._random.random() < 0.3:
            return self._any(*_REALS, "0.5", "-1.25", "math.inf", "math.nan", "-0.0")
        forms = (
            "(R + R)", "(R - R)", "(R * R)", "(R * I)", "(R / (abs(R) + 0.5))", "(R if B else R)",
            "(R if B else I)", "min(V, V, V)", "max(V, V)", "x[I % 6]", "a[I % 3, I % 4]", "(-R)",
            "numbers[I % 4]", "picked(B, R, R)", "total(x[I % 4:])", "math.sqrt(abs(R))",
            "applied(half, R)", "applied(above, R)", "applied(abs, R)", "scratch(I % 4)",
            "float(I)",
        )  # fmt: skip
        return self._filled(forms, depth)

    def _whole(self, depth: int = 0) -> str:
        if depth > 3 or self._random.random() < 0.35:
            return self._any(*_WHOLES, "7", "-3", "0", "x.size", "len(t)", "a.shape[1]")
        forms = (
            "(I + I)", "(I - I)", "(I * I % 101)", "(I // (I % 13 + 1))", "(I // (I % 13 - 14))",
            "(I % (I % 13 - 14))", "(I & I)", "(I ^ I)", "(I >> (I % 5))", "(I << (I % 5))",
            "(I if B else I)", "min(I, I)", "max(I, I)", "table[I % 4]", "whole[I % 5]", "abs(I)",
        )  # fmt: skip
        return self._filled(forms, depth)

    def _truth(self, depth: int = 0) -> str:
        if depth > 3 or self._random.random() < 0.2:
            return self._any("b0", "True")
        forms = (
            "(R ? R)", "(I ? I)", "(R ? I)", "(R ? R ? R)", "(B and B)", "(B or B)", "(not B)",
            "math.isfinite(R)",
        )  # fmt: skip
        return self._filled(forms, depth)

    def _block(self, depth: int, size: int, *, loop: bool) -> list[str]:
        found: list[str] = []
        for _ in range(size):
            nests = self._depth < 3 and self._random.random() < 0.3
            lines = self._nested(loop=loop) if nests else self._plain()
            found += ["    " * depth + line for line in lines]
        return found

    def _plain(self) -> list[str]:
        forms = (
            "f0 = R", "f1 = R", "f2 += R", "w0 = R", "w1 = I", "w0 *= R", "i0 = I % 1009",
            "i1 -= I % 50", "b0 = B", "x[I % 6] = R", "x[I % 6] += R", "a[I % 3, I % 4] -= R",
            "x[I % 6], x[I % 6] = x[I % 6], x[I % 6]", "i2, x[i2 % 6] = I % 6, R", "f0, f1 = f1, R",
            "p = pair(R, p.u)", "t = (I, R, p.v)", "f2 = f0 = x[I % 6] = R", "x[1:] = x[:5]",
            "whole[I % 5] = I % 999", "y = x[I % 3:I % 8];y = y[1:];y[:] = R", "a[-1] = x[2:6]",
            "row = a[I % 3];row[I % 4] = R", "a[I % 3] = R",
            "q = x.reshape((2, 3));q[I % 2, 1] = R",
            "g, h = both(x, I % 5);x[:4] = g[:4];f2 = total(h)",
        )  # fmt: skip
        return self._filled(forms, 0).split(";")

    def _nested(self, *, loop: bool) -> list[str]:
        self._depth += 1
        kind = self._random.random()
        if loop and kind < 0.15:
            found = [f"if {self._truth()}:", self._any("    break", "    continue")]
        elif kind < 0.2:
            found = [f"if {self._truth()}:", f"    return {self._real()}"]
        elif kind < 0.65 or self._loops > 1:
            test = self._any(self._truth(), self._real(), f"{self._real()} and {self._truth()}")
            found = [f"if {test}:", *self._block(1, 2, loop=loop)]
            found += ["else:", *self._block(1, 2, loop=loop)] if kind < 0.5 else []
        else:
            found = self._loop(kind)
        self._depth -= 1
        return found

    def _loop(self, kind: float) -> list[str]:
        if kind < 0.7:
            return [f"for e in ({self._real()}, {self._whole()}, p.u):", "    f0 = e * 0.5 - f0"]
        self._loops += 1
        self._counters += 1
        name = f"c{self._counters}"
        if kind < 0.8:
            head = [f"{name} = 0", f"while {name} < 5 and {self._truth()}:", f"    {name} += 1"]
        else:
            name = self._any("i0", "i1", name)
            forms = ("range(I % 6)", "range(I % 6, I % 9)", "range(I % 9, I % 5, -2)")
            head = [f"for {name} in {self._filled(forms, 2)}:"]
        found = [*head, *self._block(1, 3, loop=True)]
        self._loops -= 1
        return found
