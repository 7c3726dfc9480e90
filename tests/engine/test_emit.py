"""Formulas as code: the same value, each subexpression once, the same text everywhere."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import sympy as sp
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.engine.emit import Emitter
from sottovoce.errors import ProblemError

x, y = sp.symbols("x y")


def value(expr: sp.Expr, at: tuple[float, float]) -> float:
    page = Emitter({x: "x", y: "y"})
    name = page.value(expr)
    scope: dict[str, float] = {"x": at[0], "y": at[1]}
    exec("\n".join(page.lines), {"math": math}, scope)  # noqa: S102
    return float(scope.get(name, math.nan)) if name in scope else float(name)


@pytest.mark.parametrize(
    "expr",
    [
        x,
        sp.Integer(3),
        sp.pi * x,
        x**2,
        (x + 4) ** 4 - (y - 1) ** 9 / 12,
        1 / x + 2.25 / y**2,
        x**-3 * y**-1 / 7,
        sp.sqrt(1 + (x - y) ** 2),
        1 / sp.sqrt(x + 3),
        x ** sp.Rational(5, 2) + x**1.7,
        sp.log(sp.exp(x) + sp.exp(y)),
        x * y * sp.exp(-x) - 3,
    ],
)
@given(a=st.floats(0.1, 3), b=st.floats(0.1, 3))
def test_code_gives_the_value_of_the_formula(expr: sp.Expr, a: float, b: float) -> None:
    exact = expr.evalf(30, subs={x: sp.Float(a, 30), y: sp.Float(b, 30)})
    scale = 1 + sum(abs(float(t.evalf(subs={x: a, y: b}))) for t in sp.Add.make_args(expr))
    assert abs(value(expr, (a, b)) - float(exact)) < 1e-14 * scale


def test_an_integer_power_is_a_few_products() -> None:
    page = Emitter({x: "x"})
    page.value(x**8)
    assert len(page.lines) == 3
    assert all("*" in line and "**" not in line for line in page.lines)


def test_a_subexpression_is_computed_once() -> None:
    page = Emitter({x: "x", y: "y"})
    page.value(sp.exp(x * y) + sp.log(sp.exp(x * y) + 1))
    assert sum("math.exp" in line for line in page.lines) == 1


def test_other_functions_are_refused() -> None:
    with pytest.raises(ProblemError, match="may use sums, products, powers, exp and log"):
        Emitter({x: "x"}).value(sp.sin(x))


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
