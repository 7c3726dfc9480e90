"""What a value in compiled code can be, and of which machine values it is made.

A value of any kind is a row of machine values: an array is where its numbers lie and how many
there are, a tuple is all that its items are. What is known while compiling, a function or None,
takes none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from sottovoce.errors import InputError

WIDTH = 16
"""Numbers in a value of lanes: enough to fill vector registers, few enough to lie in a row."""


@final
@dataclass(frozen=True, slots=True)
class Number:
    """One machine value, or one in every lane."""

    name: str
    llvm: str


FLOAT = Number("float64", "double")
INT = Number("int64", "i64")
WORD = Number("uint64", "i64")
TRUTH = Number("boolean", "i1")
SHORT = Number("int32", "i32")
"""Whole numbers as some arrays hold them; whoever reads one has an ``INT``."""
LANES = Number("lanes", f"<{WIDTH} x double>")
MASK = Number("mask", f"<{WIDTH} x i1>")


@final
@dataclass(frozen=True, slots=True)
class Array:
    """Numbers side by side in memory, last index fastest, with one index or two."""

    item: Number
    dims: int


@final
@dataclass(frozen=True, slots=True)
class Tuple:
    """Values in a row; with the class of a named tuple, also by their names."""

    items: tuple[Kind, ...]
    named: Any = None


@final
@dataclass(frozen=True, slots=True)
class Known:
    """A Python object that is known while compiling: a function, a class, a module or None."""

    value: Any


@final
@dataclass(frozen=True, slots=True)
class Address:
    """Where a compiled function is, which takes and returns these."""

    result: Kind
    arguments: tuple[Kind, ...]


Kind: TypeAlias = Number | Array | Tuple | Known | Address
NOTHING = Known(None)


@final
@dataclass(frozen=True, slots=True)
class Value:
    """A value in the code of a function.

    Attributes:
        kind: what it is.
        parts: the machine values that make it up, as LLVM calls them.
        constant: the number, where it is known while compiling.
    """

    kind: Kind
    parts: tuple[str, ...] = ()
    constant: int | float | None = None


def machine_kinds(kind: Kind) -> tuple[str, ...]:
    """Return LLVM's types of the machine values that make up a value."""
    match kind:
        case Number():
            return (kind.llvm,)
        case Array():
            return ("ptr", *["i64"] * kind.dims)
        case Tuple():
            return tuple(part for item in kind.items for part in machine_kinds(item))
        case Address():
            return ("ptr",)
        case Known():
            return ()


def called(kind: Kind) -> str:
    """Return what to call a kind in a message."""
    return kind.name if isinstance(kind, Number) else type(kind).__name__.lower()


def number_kind(value: Value) -> Number:
    """Return the kind of a number."""
    if not isinstance(value.kind, Number):
        raise InputError(f"a number is wanted, got {called(value.kind)}")
    return value.kind


def array_kind(value: Value) -> Array:
    """Return the kind of an array."""
    if not isinstance(value.kind, Array):
        raise InputError(f"an array is wanted, got {called(value.kind)}")
    return value.kind


def items_of(value: Value) -> list[Value]:
    """Take a tuple apart."""
    if not isinstance(value.kind, Tuple):
        raise InputError(f"a tuple is wanted, got {called(value.kind)}")
    found, at = [], 0
    for kind in value.kind.items:
        size = len(machine_kinds(kind))
        found.append(Value(kind, value.parts[at : at + size]))
        at += size
    return found


def tuple_of(items: list[Value], named: Any = None) -> Value:
    """Put values in a row."""
    kind = Tuple(tuple(item.kind for item in items), named)
    return Value(kind, tuple(part for item in items for part in item.parts))


def common_kind(one: Kind, other: Kind) -> Kind | None:
    """Return the kind that holds values of both, or None: whole numbers may become others."""
    if one == other:
        return one
    if isinstance(one, Tuple) and isinstance(other, Tuple) and one.named is other.named:
        if len(one.items) != len(other.items):
            return None
        items = [common_kind(a, b) for a, b in zip(one.items, other.items, strict=True)]
        return None if None in items else Tuple(tuple(k for k in items if k is not None), one.named)
    for narrow, wide in ((INT, FLOAT), (FLOAT, LANES), (INT, LANES), (TRUTH, MASK)):
        if {one, other} == {narrow, wide}:
            return wide
    return None


_NUMBERS = {kind.name: kind for kind in (FLOAT, INT, WORD, TRUTH, SHORT)}
_TOKEN = re.compile(r"\s*([a-z0-9]+|\[::1\]|\[:, ::1\]|[(),])")


def signature(text: str) -> Address:
    """Read a signature such as ``boolean(int64, float64[::1])``.

    Kinds are ``float64``, ``int64``, ``uint64`` and ``boolean``, arrays of them and of ``int32``
    with ``[::1]`` and ``[:, ::1]``, for the result ``void``, and signatures where the address of a
    compiled function is taken.
    """
    tokens = _TOKEN.findall(text)
    rest = iter([*tokens, ""])
    kind, after = _read(next(rest), rest)
    if after or not isinstance(kind, Address) or "".join(tokens) != re.sub(" +(?!::)", "", text):
        raise InputError(f"signature must be like float64(int64, float64[::1]), got {text!r}")
    return kind


def _read(word: str, tokens: Iterator[str]) -> tuple[Kind, str]:
    """The kind that begins with a word, and the token after it."""
    kind: Kind | None = NOTHING if word == "void" else _NUMBERS.get(word)
    if kind is None:
        raise InputError(f"signature must name kinds of numbers, got {word!r}")
    after = next(tokens)
    if after.startswith("[") and kind not in (NOTHING, TRUTH) and isinstance(kind, Number):
        kind, after = Array(kind, after.count(":") - 1), next(tokens)
    if after != "(":
        return kind, after
    arguments: list[Kind] = []
    word = next(tokens)
    while word != ")":
        argument, word = _read(word, tokens)
        arguments.append(argument)
        word = next(tokens) if word == "," else word
    if not isinstance(kind, Number | Known) or SHORT in (kind, *arguments) or NOTHING in arguments:
        raise InputError("signature must return a number or nothing, and take numbers and arrays")
    return Address(kind, tuple(arguments)), next(tokens)
