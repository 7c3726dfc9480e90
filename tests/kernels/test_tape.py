"""Register code has the bits of ``sottovoce.formula.tape``, in lanes, alone, compiled or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernel_builds import compiled

from sottovoce.formula.canonical import canonical
from sottovoce.formula.derive import gradient, hessian
from sottovoce.formula.expression import Expression, symbol
from sottovoce.formula.functions import absolute, exp, huber, log, maximum, norm, sqrt
from sottovoce.formula.tape import tape
from sottovoce.kernels import variant
from sottovoce.kernels.lower import TapeBuilder, TapeCode, registers_of

X = [symbol(f"x{i}") for i in range(4)]
VALUES = np.random.default_rng(5).normal(size=(4, 16)) * 3.0
VALUES[:, 0] = 0.0
VALUES[0, 1] = VALUES[1, 1]


def lowered(formulas: list[Expression]) -> TapeCode:
    builder = TapeBuilder(len(X), {s: i for i, s in enumerate(X)})
    return builder.finish([builder.value(canonical(f)) for f in formulas])


def in_lanes(code: TapeCode, build: str = "plain") -> Any:
    r = registers_of([code], 16)
    r.reshape(-1, 16)[: len(X)] = VALUES
    with np.errstate(all="ignore"):
        variant.build(build).evaluate(code.code, r, 16)
    return r.reshape(-1, 16)[code.outputs]


def one_by_one(code: TapeCode, build: str = "plain") -> Any:
    results = []
    for lane in range(16):
        r = registers_of([code], 1)
        r[: len(X)] = VALUES[:, lane]
        with np.errstate(all="ignore"):
            variant.build(build).evaluate(code.code, r, 1)
        results.append(r[code.outputs])
    return np.array(results).T


def expected(formulas: list[Expression]) -> Any:
    canon = [canonical(f) for f in formulas]
    return np.array(tape(canon, X).arrays(list(VALUES), (16,)))


def bits(values: Any) -> Any:
    """Floats as integers, every NaN alike."""
    return np.where(np.isnan(values), np.nan, values).view(np.int64)


NUMBERS = (-3, -1, 1, 2, 0.1, 2.5, -0.7)
OPERATIONS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: X[0] / (a * b + X[1] ** 2 + 1),
    lambda a, b: (a + X[2]) ** 3,
    lambda a, b: (b - X[3]) ** 5,
    lambda a, b: sqrt(1 + (a + b) ** 2),
    lambda a, b: absolute(a - X[0]),
    lambda a, b: maximum(a, b, 2 * X[2]),
    lambda a, b: norm(a, b, X[2]),
    lambda a, b: huber(a + X[3], 2),
]


def random_formula(rng: np.random.Generator, depth: int) -> Any:
    if depth == 0:
        return NUMBERS[rng.integers(7)] if rng.random() < 0.3 else X[rng.integers(4)]
    operation = OPERATIONS[rng.integers(len(OPERATIONS))]
    return operation(random_formula(rng, depth - 1), random_formula(rng, depth - 1))


def random_formulas(seed: int) -> list[Expression]:
    rng = np.random.default_rng(seed)
    written = [X[0] + random_formula(rng, int(rng.integers(1, 4))) for _ in range(3)]
    whole = [canonical(f) for f in written]
    return whole + [slope for f in whole[:2] for slope in gradient(f, X).values()]


def test_register_code_has_the_bits_of_the_formula_tape() -> None:
    for seed in range(60):
        whole = random_formulas(seed)
        code = lowered(whole)
        assert np.array_equal(bits(in_lanes(code)), bits(expected(whole))), seed
        assert np.array_equal(bits(one_by_one(code)), bits(expected(whole))), seed


@compiled
def test_compiled_tapes_have_the_bits_of_plain_ones(build: str) -> None:
    for seed in range(60):
        code = lowered(random_formulas(seed))
        assert np.array_equal(bits(in_lanes(code, build)), bits(in_lanes(code))), seed
        assert np.array_equal(bits(one_by_one(code, build)), bits(in_lanes(code))), seed


TRANSCENDENTAL = [
    log(exp(X[0]) + exp(X[1]) + 1),
    (1 + X[0] ** 2) ** 1.5,
    (2 + X[1] ** 2) ** -0.3,
    exp(-X[2]) * log(1 + X[3] ** 2),
]


@compiled
def test_compiled_exp_log_and_power_have_the_bits_of_plain_ones(build: str) -> None:
    code = lowered(TRANSCENDENTAL)
    assert np.array_equal(bits(in_lanes(code, build)), bits(in_lanes(code)))
    assert np.array_equal(bits(one_by_one(code, build)), bits(in_lanes(code)))


def test_exp_log_and_power_agree_with_numpy_to_rounding() -> None:
    code = lowered(TRANSCENDENTAL)
    np.testing.assert_allclose(in_lanes(code), expected(TRANSCENDENTAL), rtol=1e-14)


def applied(function: Any, x: Any, build: str = "plain") -> Any:
    """A function of numbers, 16 at a time."""
    code = lowered([function(X[0])])
    r = registers_of([code], 16).reshape(-1, 16)
    out = []
    for lanes in np.pad(x, (0, -x.size % 16)).reshape(-1, 16):
        r[0] = lanes
        with np.errstate(all="ignore"):
            variant.build(build).evaluate(code.code, r.reshape(-1), 16)
        out.append(r[code.outputs[0]].copy())
    return np.concatenate(out)[: x.size]


@pytest.mark.parametrize("name", ["exp", "log"])
def test_exp_and_log_are_within_a_unit_in_the_last_place(name: str) -> None:
    mpmath = pytest.importorskip("mpmath")
    rng = np.random.default_rng(1)
    x = rng.uniform(-700, 700, 2000) if name == "exp" else np.exp(rng.uniform(-740, 700, 2000))
    out = applied({"exp": exp, "log": log}[name], x)
    with mpmath.workdps(40):
        exact = np.array([getattr(mpmath, name)(mpmath.mpf(float(v))) for v in x])
        error = [abs(mpmath.mpf(float(o)) - e) for o, e in zip(out, exact, strict=True)]
    assert max(float(e) / np.spacing(abs(o)) for e, o in zip(error, out, strict=True)) < 1.0


@compiled
def test_exp_and_log_treat_special_values_as_ieee_does(build: str) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1000.0, -1000.0, 5e-324, -1.0])
    for function, reference in ((exp, np.exp), (log, np.log)):
        out = applied(function, x, build)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(out, reference(x), rtol=1e-15)


def test_second_derivatives_share_a_tape_with_values() -> None:
    f = canonical(exp(X[0] * X[1]) + (X[2] - X[3]) ** 4)
    whole = [f, *gradient(f, X).values(), *hessian(f, X).values()]
    np.testing.assert_allclose(in_lanes(lowered(whole)), expected(whole), rtol=1e-13)


def test_registers_are_given_back() -> None:
    builder = TapeBuilder(1, {X[0]: 0})
    value = 0
    for _ in range(1000):
        value = builder.operation("mul", value, 0)
    assert builder.finish([value]).registers < 5


def test_a_long_sum_neither_recurses_nor_takes_registers() -> None:
    builder = TapeBuilder(len(X), {s: i for i, s in enumerate(X)})
    f = canonical(sum((X[i % 4] ** 2 * (i + 1) for i in range(3000)), X[0]))
    assert builder.finish([builder.value(f)]).registers < 20


def test_a_foreign_symbol_is_refused_by_name() -> None:
    with pytest.raises(KeyError, match="stranger"):
        lowered([symbol("stranger") + X[0]])
