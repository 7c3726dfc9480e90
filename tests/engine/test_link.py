"""How Numba works while kernels are built: nothing twice, and as before when they are."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from numba import njit, types
from numba.core.base import BaseContext
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target

from sottovoce.engine import compile as compiling
from sottovoce.engine.compile import load_kernel
from sottovoce.engine.link import whole_kernels
from sottovoce.engine.resolve import remembered_lookups
from sottovoce.engine.source import INNER

SOURCE = f"""
from numba import njit
@njit({INNER})
def innermost(x):
    return x / 3.0
@njit({INNER})
def inner(x, n):
    return innermost(x) + innermost(2.0 * x) * n
@njit("float64(float64, int64)", cache=CACHE)
def advance(x, n):
    return inner(x, n) - innermost(x)
"""


def test_functions_inside_a_kernel_are_compiled_with_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path))
    optimised: list[str] = []
    optimise: Any = JITCodeLibrary._optimize_final_module

    def counted(library: Any) -> None:
        optimised.append(library.name)
        optimise(library)

    monkeypatch.setattr(JITCodeLibrary, "_optimize_final_module", counted)
    kernel = load_kernel(SOURCE)
    assert optimised == ["advance"]
    expected = (0.7 / 3.0 + 1.4 / 3.0 * 5) - 0.7 / 3.0
    assert kernel.advance(0.7, 5) == expected
    compiling._loaded.clear()
    again = load_kernel(SOURCE)  # from disk
    assert optimised == ["advance"]
    assert again.advance(0.7, 5) == expected


def test_numba_and_the_collector_work_as_before_when_kernels_are_built() -> None:
    target: Any = cpu_target.target_context.codegen()

    def found() -> tuple[Any, ...]:
        return (
            target._library_class, type(target).set_env, "set_env" in vars(target),
            types.Function.get_call_type, BaseContext.get_function, gc.isenabled(),
        )  # fmt: skip

    before = found()
    with whole_kernels(), remembered_lookups():
        assert found() != before
    assert found() == before
    with pytest.raises(ZeroDivisionError):
        _fail()
    assert found() == before


def _fail() -> None:
    with whole_kernels(), remembered_lookups():
        raise ZeroDivisionError


def test_what_is_remembered_of_an_operation_depends_on_its_types() -> None:
    def text(a: Any, b: Any) -> Any:
        return (a + b) * 2 - a // b + (a > 3) + a**2

    given: tuple[tuple[Any, Any], ...] = ((7, 2), (7.5, 2), (7, 2.5), (True, 2))
    with whole_kernels(), remembered_lookups():
        compiled = njit(text)
        results = [compiled(*one) for one in given]
    for one, result in zip(given, results, strict=True):
        assert type(result) is type(text(*one))
        assert result == text(*one)
