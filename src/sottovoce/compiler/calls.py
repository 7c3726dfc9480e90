"""How values come into compiled code, go to functions and come back."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from sottovoce.compiler.arithmetic import cast, number
from sottovoce.compiler.code import Code
from sottovoce.compiler.kinds import (
    TRUTH,
    WORD,
    Address,
    Kind,
    Known,
    Value,
    called,
    machine_kinds,
    tuple_of,
)
from sottovoce.errors import InputError


def known(value: Any) -> Value:
    """Return a Python object as a value: numbers as constants, tuples item by item.

    Functions, classes and modules are what they are now, and so are numbers.
    """
    if isinstance(value, np.uint64):
        return Value(WORD, (str(int(value)),))
    if isinstance(value, bool | int | float):
        return number(value)
    if isinstance(value, np.integer | np.floating):
        return number(value.item())
    if isinstance(value, tuple):
        named = type(value) if hasattr(value, "_fields") else None
        return tuple_of([known(item) for item in value], named)
    if value is None or callable(value) or isinstance(value, ModuleType):
        return Value(Known(value))
    raise InputError(f"compiled code knows no {type(value).__name__}: hand it on as an argument")


def invoked(code: Code, function: Value, arguments: list[Value]) -> Value:
    """Write the call of a compiled function at an address."""
    kind = function.kind
    if not isinstance(kind, Address):
        raise InputError(f"{called(kind)} cannot be called")
    if len(arguments) != len(kind.arguments):
        raise InputError(f"a function of {len(kind.arguments)} arguments got {len(arguments)}")
    given = [cast(code, one, to) for one, to in zip(arguments, kind.arguments, strict=True)]
    listed = ", ".join(listed_parts(tuple_of(given)))
    return returned(code, kind.result, f"{function.parts[0]}({listed})", entry=True)


def symbol(name: str) -> str:
    """Return what an entry is called in machine code: like no function of C."""
    return f"entry.{name}"


def listed_parts(value: Value) -> list[str]:
    """Return a value's parts, each with its type."""
    pairs = zip(machine_kinds(value.kind), value.parts, strict=True)
    return [f"{machine} {part}" for machine, part in pairs]


def result_kind(kind: Kind, *, entry: bool = False) -> str:
    """Return LLVM's type of what a function returns; to C a truth value fills a byte."""
    machine = machine_kinds(kind)
    if not machine:
        return "void"
    if len(machine) == 1:
        return f"zeroext {machine[0]}" if entry and kind == TRUTH else machine[0]
    return f"{{ {', '.join(machine)} }}"


def returned(code: Code, kind: Kind, call: str, *, entry: bool = False) -> Value:
    """Write a call and take apart what it returns."""
    machine = machine_kinds(kind)
    text = f"call {result_kind(kind, entry=entry)} {call}"
    if not machine:
        code.do(text)
        return Value(kind)
    got = code.new(text)
    if len(machine) == 1:
        return Value(kind, (got,))
    whole = f"{{ {', '.join(machine)} }}"
    return Value(
        kind, tuple(code.new(f"extractvalue {whole} {got}, {i}") for i in range(len(machine)))
    )
