"""Compiled functions give the bits that Python gives, and what cannot be compiled is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import programs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.compiler.machine import load
from sottovoce.compiler.module import compile_module, signatures
from sottovoce.errors import InputError

numbers = st.floats(-50, 50, allow_subnormal=False)
counts = st.integers(-40, 40)


@cache
def compiled() -> dict[str, Any]:
    code, entries = compile_module(inspect.getsource(programs), "programs")
    return load(code, signatures(entries))


def same(name: str, *arguments: Any) -> None:
    """Both ways: the same result, and the same left in arrays."""
    plain, fast = ([a.copy() if isinstance(a, np.ndarray) else a for a in arguments] for _ in "ab")
    with np.errstate(all="ignore"):
        expected = getattr(programs, name)(*plain)
    got = compiled()[name](*fast)
    assert got == expected or (got != got and expected != expected)
    for one, other in zip(plain, fast, strict=True):
        assert np.array_equal(one, other, equal_nan=True)


@given(numbers.filter(lambda x: abs(x) > 1e-3), numbers)
def test_arithmetic(x: float, y: float) -> None:
    same("arithmetic", x, y)


@given(numbers.filter(lambda x: abs(x) > 1e-3))
def test_whole_powers_are_products(x: float) -> None:
    assert compiled()["powers"](x) == pytest.approx(programs.powers(x), rel=1e-14)


@given(counts, counts.filter(bool))
def test_whole_numbers_round_down_as_in_python(a: int, b: int) -> None:
    same("whole", a, b)


@given(st.floats(), st.floats(), st.integers(0, 4))
def test_truths_and_what_is_no_number(x: float, y: float, n: int) -> None:
    same("truths", x, y, n)


@given(st.floats(-3, 3), st.integers(0, 9))
def test_choices_of_several_kinds(x: float, n: int) -> None:
    same("choices", x, n)


@given(st.integers(1, 12))
def test_loops(n: int) -> None:
    same("loops", n)


@given(st.integers(0, 9))
def test_arrays_and_their_parts(n: int) -> None:
    same("arrays", np.arange(1.0, 7.0), np.arange(15.0).reshape(3, 5), n)


@given(st.integers(0, 9), st.integers(1, 40))
def test_arrays_that_functions_make(n: int, size: int) -> None:
    same("made", np.arange(1.0, size + 1.0), n)


def test_arrays_larger_than_what_is_reserved_at_first() -> None:
    same("made", np.arange(1.0, 20_000.0), 1)


@given(numbers, numbers)
def test_tuples(x: float, y: float) -> None:
    same("tuples", x, y)


@given(numbers)
def test_functions_as_arguments(x: float) -> None:
    same("functions", x)


@given(st.integers(0, 2**64 - 1))
def test_words_wrap_around(z: int) -> None:
    with np.errstate(over="ignore"):
        same("words", np.uint64(z))


def test_short_whole_numbers_are_read() -> None:
    same("gathered", np.arange(5.0), np.array([4, 0, 2], dtype=np.int32))


HEAD = "import numpy as np\nfrom sottovoce.compiler.module import entry\n"


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("float64(float64)", "return [x]", "has no List"),
        ("float64(float64)", "return y", "y must be set"),
        ("float64(float64)", "if x > 0.0:\n        return x", "on every way"),
        ("float64(float64)", "x = x[0]\n    return x", "has no items"),
        ("float64(float64)", "x = np.empty(3)\n    return 0.0", "of one kind throughout"),
        ("float64(float64)", "return f(x)", "must not call itself"),
        ("float64(float64)", "return np.linalg.norm(x)", "as a plain function"),
        ("float64(float64)", "with x:\n        return x", "has no With"),
        ("float64(float64)", "return max(x, key=abs)", "by position"),
        ("float64(float64)", "return x + np.uint64(1)", "convert one"),
        ("float64(float64)", "return None", "must return float64"),
        ("void(float64)", "return x", "must return"),
        ("float64(float64[::1])", "return x[0, 1]", "has 1 indices"),
        ("float64(float64[::1])", "return 'a' if x else 'b'", "condition must be"),
        ("float64(float64)", "for i in range(0, 9, int(x)):\n        x += i\n    return x", "text"),
        ("float64(float64[::1])", "return x[:-1].size", "from the front"),
        ("float64(float64[:, ::1])", "return x[0, 1:].size", "rows and slices"),
        ("float63(float64)", "return x", "kinds of numbers"),
        ("float64(float64) ]", "return x", "signature must be like"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_its_place(
    kind: str, body: str, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        compile_module(f'{HEAD}\n@entry("{kind}")\ndef f(x):\n    {body}\n', "refused")


def test_a_refusal_names_function_line_and_file() -> None:
    with pytest.raises(InputError, match=r"\(f, line 5 of refused\)"):
        compile_module(
            f'{HEAD}@entry("float64(float64)")\ndef f(x):\n    return {{x}}\n', "refused"
        )


@pytest.mark.parametrize(
    "array",
    [np.zeros(3, dtype=np.float32), np.zeros((2, 2)), np.zeros(6)[::2], [0.0, 1.0], None],
)
def test_arrays_must_be_just_what_compiled_code_takes(array: Any) -> None:
    call: Callable[..., Any] = compiled()["made"]
    with pytest.raises(InputError, match="an array must"):
        call(array, 1)


def test_the_number_of_arguments_is_checked() -> None:
    with pytest.raises(InputError, match="takes 2 arguments, got 1"):
        compiled()["tuples"](1.0)


def test_machine_code_goes_with_its_last_function() -> None:
    code, entries = compile_module(
        f'{HEAD}@entry("float64(float64)")\ndef f(x):\n    return 2.0 * x\n', "twice"
    )
    kept = load(code, signatures(entries))["f"]
    for _ in range(20):
        load(code, signatures(entries))
    assert kept(4.0) == 8.0
