"""Functions that compiled code knows by itself: Python's, those of ``math`` and of NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from sottovoce.compiler.arithmetic import (
    alike,
    binary,
    by_lane,
    cast,
    compare,
    converted,
    minus,
    number,
    select,
    whole,
)
from sottovoce.compiler.code import Code
from sottovoce.compiler.kinds import (
    FLOAT,
    INT,
    LANES,
    WIDTH,
    WORD,
    Array,
    Tuple,
    Value,
    called,
    items_of,
)
from sottovoce.compiler.memory import fill, new_array
from sottovoce.errors import InputError

Operation: TypeAlias = Callable[..., Value]
"""Writes instructions: takes the code and the arguments, and returns the result."""

OPERATIONS: dict[Any, Operation] = {}
"""What is written in place of a call, by function."""

SUBSTITUTES: dict[Any, Any] = {}
"""Functions that are compiled in place of others, which do the same in Python."""


def operation(*functions: Any) -> Callable[[Operation], Operation]:
    """Let a function write the instructions of these."""

    def register(emit: Operation) -> Operation:
        OPERATIONS.update(dict.fromkeys(functions, emit))
        return emit

    return register


def substitute(function: Any) -> Callable[[Any], Any]:
    """Let a function be compiled in place of this one."""

    def register(compiled: Any) -> Any:
        SUBSTITUTES[function] = compiled
        return compiled

    return register


def inline(function: Any) -> Any:
    """Mark a function as one that is always written out where it is called."""
    function.__dict__["inline"] = True
    return function


def _instruction(name: str) -> Operation:
    """An instruction of LLVM's, which has one for lanes too."""

    def emit(code: Code, value: Value) -> Value:
        kind = LANES if value.kind == LANES else FLOAT
        suffix = f"v{WIDTH}f64" if kind == LANES else "f64"
        given = f"{kind.llvm} {cast(code, value, kind).parts[0]}"
        return Value(kind, (code.call(f"llvm.{name}.{suffix}", kind.llvm, given),))

    return emit


def _library(name: str) -> Operation:
    """A function of C, lane after lane."""

    def emit(code: Code, value: Value) -> Value:
        return by_lane(code, lambda given: code.call(name, "double", given), [value])

    return emit


operation(math.sqrt, np.sqrt)(_instruction("sqrt"))
operation(np.rint)(_instruction("rint"))
for _name in ("exp", "log", "sin", "cos"):
    operation(getattr(math, _name))(_library(f"llvm.{_name}.f64"))
for _name in ("log1p", "expm1", "tan", "tanh", "sinh", "cosh", "atan"):
    operation(getattr(math, _name))(_library(_name))


operation(math.fabs)(_instruction("fabs"))


@operation(abs, np.abs)
def absolute(code: Code, value: Value) -> Value:
    """``abs``: of whole numbers by a choice."""
    if value.kind in (FLOAT, LANES):
        return _instruction("fabs")(code, value)
    return select(code, compare(code, "<", value, number(0)), minus(code, value), value)


def _extreme(sign: str) -> Operation:
    """The first unless a later one is beyond it, as Python has it."""

    def emit(code: Code, one: Value, other: Value, *more: Value) -> Value:
        found, *others = alike(code, [one, other, *more])
        for value in others:
            found = select(code, compare(code, sign, value, found), value, found)
        return found

    return emit


operation(max)(_extreme(">"))
operation(min)(_extreme("<"))


@operation(float, np.float64)
def as_real(code: Code, value: Value) -> Value:
    """A number as float64."""
    return cast(code, value, FLOAT)


@operation(int, np.int64)
def as_whole(code: Code, value: Value) -> Value:
    """A number as int64, cut towards 0."""
    return converted(code, value, INT)


@operation(np.uint64)
def as_word(code: Code, value: Value) -> Value:
    """A number as uint64, cut towards 0."""
    return converted(code, value, WORD)


@operation(math.isfinite, np.isfinite)
def finite(code: Code, value: Value) -> Value:
    """Whether a number is one: less itself it is 0 then."""
    return compare(code, "==", binary(code, "-", value, value), number(0.0))


@operation(len)
def length(code: Code, value: Value) -> Value:
    """How many items there are."""
    if isinstance(value.kind, Tuple):
        return number(len(value.kind.items))
    if isinstance(value.kind, Array):
        return Value(INT, (value.parts[1],))
    raise InputError(f"len takes an array or a tuple, got {called(value.kind)}")


def shape_of(code: Code, value: Value) -> tuple[str, ...]:
    """Return the sizes that an array is to have: one, or a tuple of one or two."""
    sizes = items_of(value) if isinstance(value.kind, Tuple) else [value]
    found = tuple(whole(code, size).parts[0] for size in sizes)
    if len(found) not in (1, 2) or any(size.startswith("-") for size in found):
        raise InputError(f"an array has one size or two, from 0, got {', '.join(found) or 'none'}")
    return found


@operation(np.empty)
def empty(code: Code, shape: Value) -> Value:
    """An array that holds anything."""
    return new_array(code, shape_of(code, shape))


@operation(np.full)
def full(code: Code, shape: Value, value: Value) -> Value:
    """An array that holds one float64 everywhere; of another kind Python's would be too."""
    if value.kind != FLOAT:
        raise InputError(f"np.full takes a float64, got {called(value.kind)}")
    made = new_array(code, shape_of(code, shape))
    fill(code, made, value)
    return made


@operation(np.zeros)
def zeros(code: Code, shape: Value) -> Value:
    """An array of zeros."""
    return full(code, shape, number(0.0))


@operation(np.ones)
def ones(code: Code, shape: Value) -> Value:
    """An array of ones."""
    return full(code, shape, number(1.0))
