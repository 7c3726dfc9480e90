"""Compiled functions give the bits that Python gives, and what cannot be compiled is refused."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
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


def test_other_powers_are_those_of_c() -> None:
    for x in np.random.default_rng(1).uniform(0.1, 20.0, 2000).tolist():
        same("roots", x)


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


least, most = -(2**63), 2**63 - 1
edges = st.sampled_from([least, least + 1, -1, 0, 1, most])


@given(counts | edges, counts | edges)
def test_no_division_of_whole_numbers_stops_the_process(a: int, b: int) -> None:
    got = compiled()["divided"](a, b)
    expected = (a // b) * 3 + a % b if b else 0
    assert (got - expected) % 2**64 == 0


@given(counts | edges, st.integers(0, 200))
def test_bits_can_be_moved_beyond_the_last(a: int, n: int) -> None:
    same("shifted", a, n)
    same("shifted_words", np.uint64(a % 2**64), np.uint64(n))


@pytest.mark.parametrize(
    ("x", "whole"), [(1e300, most), (-1e300, least), (math.nan, 0), (-2.7, -2), (2.0**53, 2**53)]
)
def test_whole_numbers_of_large_ones_are_the_nearest(x: float, whole: int) -> None:
    assert compiled()["cut"](x) == whole


@given(st.integers(-3, 9))
def test_a_chain_of_comparisons_ends_with_the_first_that_is_false(n: int) -> None:
    same("chained", np.zeros(4), n)


def test_negative_numbers_in_the_text_count_from_the_end() -> None:
    same("from_the_end", np.arange(6.0).reshape(2, 3), np.arange(4.0))


@given(numbers)
def test_names_of_functions_are_free(x: float) -> None:
    same("tan", x)
    same("itself_for_other_kinds", x)


@given(st.integers(0, 12))
def test_a_kind_widens_through_many_variables(n: int) -> None:
    same("widened_one_after_another", n)


@given(numbers | st.just(0.0), numbers | st.just(0.0))
def test_choices_in_choices(x: float, y: float) -> None:
    same("nested", x, y)


def test_text_may_be_long_and_choices_deep() -> None:
    choice = "x"
    for depth in range(60):
        choice = f"({choice} if x > {depth}.0 else {depth})"
    terms = " + ".join(["x * 0.5"] * 1500)
    code, entries = compile_module(
        f'{HEAD}@entry("float64(float64)")\ndef f(x):\n    return {choice} + ({terms})\n', "long"
    )
    assert load(code, signatures(entries))["f"](33.5) == 59 + 0.5 * 33.5 * 1500


@pytest.mark.parametrize("size", [-(10**4), 2**62])
def test_where_there_is_no_memory_the_process_ends_with_a_word(size: int) -> None:
    found = subprocess.run(
        [sys.executable, "-c", f"import test_program as t; t.compiled()['filled']({size})"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode < 0
    assert "sottovoce: no memory for a new array" in found.stderr


HEAD = "import numpy as np\nfrom sottovoce.compiler.module import entry\n"


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("float64(float64)", "return [x]", "has no List"),
        ("float64(float64)", "return z", "z must be set"),
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
        ("float64(float64[:, ::1])", "x[0] = np.ones((2, 2))\n    return 1.0", "of its own kind"),
        ("float64(float64[::1])", "return x[1.0]", "whole numbers, got float64"),
        ("float64(float64[::1])", "return x[True]", "whole numbers, got boolean"),
        ("float64(float64[::1])", "return x[:, :][0]", "has 1 indices, got 2"),
        ("float64(float64[::1])", "x[:] = x[1:2, 5]\n    return 0.0", "has 1 indices, got 2"),
        ("float64(float64[::1])", "return x.reshape((-1, 2))[0, 0]", "from 0"),
        ("float64(float64[::1])", "return x.copy('F')[0]", "copy()"),
        ("float64(float64[::1])", "x += 1.0\n    return x[0]", "kinds that mix"),
        ("float64(float64[::1])", "x[:] += 1.0\n    return x[0]", "has no Slice"),
        ("float64(int64[::1])", "x[0] = 1.5\n    return 0.0", "must be int64"),
        ("float64(float64[::1], int64[::1])", "x[:] = y\n    return 0.0", "of its own kind"),
        ("float64(int32[::1])", "z = x.copy()\n    return 0.0", "not copied"),
        ("float64(float64)", "return np.zeros((2, 2, 2))[0]", "one size or two"),
        ("float64(float64)", "return np.zeros(x)[0]", "whole numbers"),
        ("float64(float64)", "return np.full(3, 1)[0]", "takes a float64"),
        ("float64(float64)", "return x or 1.0", "take truth values"),
        ("boolean(float64)", "return x is True", "compares with None"),
        ("boolean(float64)", "return x in (1.0, 2.0)", "has no In"),
        ("float64(float64)", "return x @ x", "has no MatMult"),
        ("float64(float64)", "return max(x)", "must have its arguments"),
        ("float64(float64)", "return max((x, 2.0))", "must have its arguments"),
        ("float64(float64)", "return np.nothing", "has no nothing"),
        ("float64(float64)", "return x + 9223372036854775808", "64 bits"),
        ("int64(int64)", "return x**x", "number in the text"),
        ("int64(int64)", "return x + 2**70", "64 bits"),
        ("int64(uint64)", "return x", "must be int64, got uint64"),
        ("float64(uint64[::1])", "x[0] = -1\n    return 0.0", "must be uint64, got int64"),
        ("float64(int64)", "return ()[x]", "has no items"),
        ("int64(float64)", "return x", "must be int64"),
        ("float64(float64)", "return (1, 2)[2]", "has 2 items"),
        ("float64(float64)", "x += abs(x)\n    abs = 1.0\n    return x", "abs must be set"),
        ("float64(float64)", "for i in range():\n        x += i\n    return x", "1 to 3"),
        ("float63(float64)", "return x", "kinds of numbers"),
        ("float64[::1](float64)", "return x", "return a number"),
        ("float64(int32)", "return x", "take numbers"),
        ("float64(boolean[::1])", "return x", "signature must"),
        ("float64(float64) ]", "return x", "signature must be like"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_its_place(
    kind: str, body: str, words: str
) -> None:
    given = "x, y" if "= y" in body else "x"
    with pytest.raises(InputError, match=words):
        compile_module(f'{HEAD}\n@entry("{kind}")\ndef f({given}):\n    {body}\n', "refused")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def g(x, y=2.0):\n    return x\n", "by position, all given"),
        ("y = 1.0\ndef g(x, *, y=2.0):\n    return x + y\n", "by position, all given"),
        ("def g(x):\n    return x\nfrom math import exp as g\n", "set once"),
        ("def g(x):\n    return x\nh = g\ndef g(x):\n    return h(x)\n", "set once"),
        ("g = lambda x: x\n", "must be in a file"),
        ('@entry("float64(float64)")\ndef \u00e9(x):\n    return x\ng = \u00e9\n', "plain name"),
        ("values = [1.0]\ndef g(x):\n    return values[0]\n", "knows no list"),
    ],
)
def test_functions_must_be_what_their_text_says(text: str, words: str) -> None:
    source = f'{HEAD}{text}@entry("float64(float64)")\ndef f(x):\n    return g(x)\n'
    with pytest.raises(InputError, match=words):
        compile_module(source, "refused")


def test_a_refusal_names_function_line_and_file() -> None:
    with pytest.raises(InputError, match=r"\(f, line 5 of refused\)"):
        compile_module(
            f'{HEAD}@entry("float64(float64)")\ndef f(x):\n    return {{x}}\n', "refused"
        )


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3, dtype=np.float32),
        np.zeros(3, dtype=">f8"),
        np.zeros((2, 2)),
        np.zeros(6)[::2],
        np.frombuffer(bytes(24)),
        np.frombuffer(bytearray(25), dtype=np.uint8)[1:].view(np.float64),
        [0.0, 1.0],
        None,
    ],
)
def test_arrays_must_be_just_what_compiled_code_takes(array: Any) -> None:
    call: Callable[..., Any] = compiled()["made"]
    with pytest.raises(InputError, match="an array must"):
        call(array, 1)


def test_the_number_of_arguments_is_checked() -> None:
    with pytest.raises(InputError, match="takes 2 arguments, got 1"):
        compiled()["tuples"](1.0)


@pytest.mark.parametrize("value", [2.5, "3", None])
def test_whole_numbers_are_not_cut_on_the_way_in(value: Any) -> None:
    with pytest.raises(TypeError):
        compiled()["loops"](value)


@pytest.mark.parametrize(("name", "value"), [("loops", 2**63), ("words", 2**64), ("words", -1)])
def test_whole_numbers_must_fit(name: str, value: int) -> None:
    with pytest.raises(InputError, match="must fit"):
        compiled()[name](value)


def test_a_function_that_is_handed_on_must_be_of_its_kind() -> None:
    code, entries = compile_module(
        f'{HEAD}@entry("float64(float64(float64), float64)")\ndef f(g, x):\n    return g(x)\n',
        "calls",
    )
    call = load(code, signatures(entries))["f"]
    assert call(compiled()["functions"], 0.5) == compiled()["functions"](0.5)
    with pytest.raises(InputError, match="of the same kind"):
        call(compiled()["loops"], 0.5)


def test_machine_code_must_have_the_entries_that_are_asked_for() -> None:
    code, entries = compile_module(
        f'{HEAD}@entry("float64(float64)")\ndef f(x):\n    return x\n', "one"
    )
    with pytest.raises(InputError, match="must have the entries"):
        load(code, signatures({**entries, "g": "float64(float64)"}))


def test_machine_code_goes_with_its_last_function() -> None:
    code, entries = compile_module(
        f'{HEAD}@entry("float64(float64)")\ndef f(x):\n    return 2.0 * x\n', "twice"
    )
    kept = load(code, signatures(entries))["f"]
    for _ in range(20):
        load(code, signatures(entries))
    assert kept(4.0) == 8.0
