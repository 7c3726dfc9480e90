"""Programs made at random: Python and compiled code give the same bits."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest
import random_programs

from sottovoce.compiler.machine import load
from sottovoce.compiler.module import compile_module, signatures


def bits(values: Any) -> bytes:
    """The bits of numbers, with one NaN and one zero: Python's whole 0 has no sign to change."""
    found = np.atleast_1d(np.array(values, dtype=np.float64)) + 0.0
    found[np.isnan(found)] = math.nan
    return found.tobytes()


def arguments(random: Random) -> tuple[Any, ...]:
    def real() -> float:
        return random.choice([random.uniform(-3, 3), 0.0, -0.0, math.inf, math.nan, 1e308, 2.0])

    x = np.array([real() for _ in range(6)])
    a = np.array([real() for _ in range(12)]).reshape(3, 4)
    whole = np.array([random.randrange(-9, 9) for _ in range(5)], dtype=np.int64)
    return real(), real(), random.randrange(-5, 12), x, a, whole


def compare(seed: int, programs: int) -> None:
    writer = random_programs.Writer(seed)
    names = [f"program{k}" for k in range(programs)]
    source = random_programs.HEAD + "".join(writer.program(name) for name in names)
    scope: dict[str, Any] = {"__name__": "random"}
    exec(compile(source, "random", "exec"), scope)  # noqa: S102
    code, entries = compile_module(source, "random")
    compiled = load(code, signatures(entries))
    random = Random(seed)  # noqa: S311
    for name in names:
        for _ in range(5):
            given = arguments(random)
            plain, fast = ([np.array(v) if np.ndim(v) else v for v in given] for _ in "ab")
            with np.errstate(all="ignore"):
                expected = scope[name](*plain)
            assert bits(compiled[name](*fast)) == bits(expected), f"seed {seed}, {name}"
            for one, other in zip(plain[3:], fast[3:], strict=True):
                assert bits(one) == bits(other), f"seed {seed}, {name}"


def test_a_random_program_has_pythons_bits() -> None:
    compare(0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 61))
def test_random_programs_have_pythons_bits(seed: int) -> None:
    compare(seed, 6)
