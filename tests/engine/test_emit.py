"""Formulas as code: the value of the tape to the last bit, the same text everywhere."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.engine.emit import Emitter
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import Expression, number, symbol
from sottovoce.formula.functions import exp, huber, log, maximum, norm, sqrt
from sottovoce.formula.tape import evaluate

x, y = symbol("x"), symbol("y")


@pytest.mark.parametrize(
    "expr",
    [
        x,
        number(3),
        math.pi * x,
        (x + 4) ** 4 - (y - 1) ** 9 / 12,
        1 / x + 2.25 / y**2,
        x**-3 * y**-1 / 7,
        sqrt(1 + (x - y) ** 2),
        1 / sqrt(x + 3),
        x ** Fraction(5, 2),
        x * y - 3 * (x + y) ** 2 - 3 * y,
        abs(x - y) + maximum(x, y, 1) + norm(x, y) + huber(x - 2 * y, 0.5),
    ],
)
@given(a=st.floats(0.1, 3), b=st.floats(0.1, 3))
def test_code_gives_the_bits_of_the_tape(expr: Expression, a: float, b: float) -> None:
    formula = canonical(expr)
    page = Emitter({x: "x", y: "y"})
    name = page.value(formula)
    scope: dict[str, float] = {"x": a, "y": b}
    exec("\n".join(page.lines), {"math": math}, scope)  # noqa: S102
    assert float(scope.get(name, name)) == evaluate(formula, {x: a, y: b})


def test_a_subexpression_is_computed_once() -> None:
    page = Emitter({x: "x", y: "y"})
    page.value(canonical(exp(x * y) + log(exp(x * y) + 1)))
    assert sum("math.exp" in line for line in page.lines) == 1


def test_the_text_of_a_kernel_does_not_depend_on_pythons_hashing() -> None:
    script = (
        "from sottovoce.algorithm.dual_averaging import DualAveraging\n"
        "from sottovoce.algorithm.tikhonov import Tikhonov\n"
        "from sottovoce.engine.formulas import formulas\n"
        "from sottovoce.engine.home_text import HomeText\n"
        "from sottovoce.engine.kernel import KernelText\n"
        "from sottovoce.engine.named_kernel import named_source\n"
        "from sottovoce.engine.named_text import NamedText\n"
        "from sottovoce.engine.region_text import phi_source\n"
        "from sottovoce.engine.source import Noise\n"
        "from sottovoce.problem.gallery.coupled import coupled\n"
        "p, n = coupled(), Noise(rows=(0,), entries={})\n"
        "f = formulas(p, p.constraints)\n"
        "t = NamedText(named=f.named, noise=n, algorithm=Tikhonov())\n"
        "print(named_source(t, Tikhonov(), f.offset.tolist(), lanes=32, transcript=True))\n"
        "f = formulas(p, p.cloud.sums.families)\n"
        "t = NamedText(named=f.named, noise=n, algorithm=DualAveraging())\n"
        "h = HomeText.of(t)\n"
        "print(KernelText(text=t, home=h, fleets=[], chunks=1, transcript=True).source())\n"
        "print(phi_source(p.cloud.sums.regions))\n"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
