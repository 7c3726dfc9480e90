"""Arithmetic and comparisons of compiled code, to the bits that Python gives.

Nothing is reordered and nothing fused. A number with lanes is added lane by lane.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable

from sottovoce.compiler.code import Code
from sottovoce.compiler.kinds import (
    FLOAT,
    INT,
    LANES,
    MASK,
    TRUTH,
    WIDTH,
    WORD,
    Kind,
    Number,
    Tuple,
    Value,
    called,
    common_kind,
    items_of,
    number_kind,
    tuple_of,
)
from sottovoce.errors import InputError

_FLOAT_SIGNS = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}
_WHOLE_SIGNS = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}
_ORDERED = {"<": "olt", "<=": "ole", ">": "ogt", ">=": "oge", "==": "oeq", "!=": "une"}
_WHOLE = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_CASTS = {
    (INT, FLOAT): "sitofp", (WORD, FLOAT): "uitofp", (TRUTH, FLOAT): "uitofp",
    (TRUTH, INT): "zext",
}  # fmt: skip
_CUT = {INT: "llvm.fptosi.sat.i64.f64", WORD: "llvm.fptoui.sat.i64.f64"}
_FOLDED = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_LARGEST = 2**63 - 1


def number(value: float) -> Value:
    """Return a Python number as a constant of the code."""
    if isinstance(value, bool):
        return Value(TRUTH, ("true" if value else "false",))
    if isinstance(value, int):
        if abs(value) > _LARGEST:
            raise InputError("a whole number must fit into 64 bits, got one beyond")
        return Value(INT, (str(value),), value)
    return Value(FLOAT, (double(float(value)),), float(value))


def double(value: float) -> str:
    """Return LLVM's spelling of a float64, exact."""
    return "0x" + struct.pack(">d", value).hex().upper()


def cast(code: Code, value: Value, kind: Kind) -> Value:
    """Return a value as one of another kind that can hold it."""
    own = value.kind
    if own == kind:
        return value
    if isinstance(own, Tuple) and isinstance(kind, Tuple) and len(own.items) == len(kind.items):
        pairs = zip(items_of(value), kind.items, strict=True)
        return tuple_of([cast(code, item, to) for item, to in pairs], kind.named)
    if kind in (LANES, MASK):
        one = cast(code, value, FLOAT if kind == LANES else TRUTH)
        return Value(kind, (in_every_lane(code, one),))
    if kind == FLOAT and value.constant is not None:
        return number(float(value.constant))
    if isinstance(own, Number) and isinstance(kind, Number) and (own, kind) in _CASTS:
        text = f"{_CASTS[own, kind]} {own.llvm} {value.parts[0]} to {kind.llvm}"
        return Value(kind, (code.new(text),))
    raise InputError(f"a value must be {called(kind)}, got {called(own)}")


def converted(code: Code, value: Value, kind: Number) -> Value:
    """Return a number as one of another kind, cut towards 0 and at the ends of what fits."""
    if value.kind == FLOAT and kind in _CUT:
        given = f"double {value.parts[0]}"
        return Value(kind, (code.call(_CUT[kind], "i64", given),))
    if {value.kind, kind} == {INT, WORD}:
        return Value(kind, value.parts, value.constant if kind == INT else None)
    return cast(code, value, kind)


def whole(code: Code, value: Value) -> Value:
    """Return a whole number, such as an index or a size; no other number is taken for one."""
    if value.kind not in (INT, WORD):
        raise InputError(f"indices and sizes must be whole numbers, got {called(value.kind)}")
    return converted(code, value, INT)


def in_every_lane(code: Code, value: Value) -> str:
    """Return a machine value that has a number in each lane."""
    one = number_kind(value).llvm
    lanes = f"<{WIDTH} x {one}>"
    first = code.new(f"insertelement {lanes} poison, {one} {value.parts[0]}, i32 0")
    text = f"shufflevector {lanes} {first}, {lanes} poison, <{WIDTH} x i32> zeroinitializer"
    return code.new(text)


def alike(code: Code, values: list[Value]) -> list[Value]:
    """Return numbers as numbers of the one kind that holds all."""
    kind = values[0].kind
    for value in values[1:]:
        found = common_kind(kind, value.kind)
        if found is None:
            raise InputError(
                f"numbers must be of kinds that mix, got {called(kind)} and {called(value.kind)}: "
                "convert one with np.float64, np.int64 or np.uint64"
            )
        kind = found
    return [cast(code, value, kind) for value in values]


def binary(code: Code, sign: str, a: Value, b: Value) -> Value:
    """Return ``a sign b``."""
    if isinstance(a.kind, Tuple) and isinstance(b.kind, Tuple) and sign == "+":
        return tuple_of([*items_of(a), *items_of(b)])
    if sign == "**":
        return power(code, a, b)
    if isinstance(a.constant, int) and isinstance(b.constant, int) and sign in _FOLDED:
        return number(_FOLDED[sign](a.constant, b.constant))
    a, b = alike(code, [_real(code, v) for v in (a, b)] if sign == "/" else [a, b])
    kind, x, y = number_kind(a), a.parts[0], b.parts[0]
    if kind in (FLOAT, LANES) and sign in _FLOAT_SIGNS:
        return Value(kind, (code.new(f"{_FLOAT_SIGNS[sign]} {kind.llvm} {x}, {y}"),))
    if kind in (INT, WORD) and sign in ("//", "%"):
        return _divided(code, sign, kind, x, y)
    if kind in (INT, WORD) and sign in ("<<", ">>"):
        return _shifted(code, sign, kind, x, y)
    if sign in _WHOLE_SIGNS and (kind in (INT, WORD) or (kind in (TRUTH, MASK) and sign in "&|^")):
        return Value(kind, (code.new(f"{_WHOLE_SIGNS[sign]} {kind.llvm} {x}, {y}"),))
    raise InputError(f"compiled code has no {sign} of {called(kind)}s")


def _real(code: Code, value: Value) -> Value:
    return value if value.kind == LANES else cast(code, value, FLOAT)


def _shifted(code: Code, sign: str, kind: Number, x: str, y: str) -> Value:
    """Bits moved; beyond the 64 there are comes 0, or the sign. LLVM leaves that open."""
    far = code.new(f"icmp ugt i64 {y}, 63")
    near = code.new(f"select i1 {far}, i64 63, i64 {y}")
    if sign == ">>" and kind == INT:
        return Value(kind, (code.new(f"ashr i64 {x}, {near}"),))
    moved = code.new(f"{'shl' if sign == '<<' else 'lshr'} i64 {x}, {near}")
    return Value(kind, (code.new(f"select i1 {far}, i64 0, i64 {moved}"),))


def _divided(code: Code, sign: str, kind: Number, x: str, y: str) -> Value:
    """Quotient or rest of whole numbers, rounded down as Python does; by 0 they are 0.

    Processors stop the process at a division by 0, and of the least number by -1.
    """
    none = code.new(f"icmp eq i64 {y}, 0")
    stops = none
    if kind == INT:
        stops = code.new(f"or i1 {none}, {code.new(f'icmp eq i64 {y}, -1')}")
    by = code.new(f"select i1 {stops}, i64 1, i64 {y}")
    found = _rounded_down(code, sign, kind, x, by)
    if kind == INT and sign == "//":
        found = code.new(f"select i1 {stops}, i64 {code.new(f'sub i64 0, {x}')}, i64 {found}")
    return Value(kind, (code.new(f"select i1 {none}, i64 0, i64 {found}"),))


def _rounded_down(code: Code, sign: str, kind: Number, x: str, y: str) -> str:
    if kind == WORD:
        return code.new(f"{'udiv' if sign == '//' else 'urem'} i64 {x}, {y}")
    rest = code.new(f"srem i64 {x}, {y}")
    some = code.new(f"icmp ne i64 {rest}, 0")
    mixed = code.new(f"icmp slt i64 {code.new(f'xor i64 {rest}, {y}')}, 0")
    below = code.new(f"and i1 {some}, {mixed}")
    if sign == "%":
        raised = code.new(f"add i64 {rest}, {y}")
        return code.new(f"select i1 {below}, i64 {raised}, i64 {rest}")
    quotient = code.new(f"sdiv i64 {x}, {y}")
    return code.new(f"sub i64 {quotient}, {code.new(f'zext i1 {below} to i64')}")


def power(code: Code, a: Value, b: Value) -> Value:
    """Return ``a ** b``: by products where b is a whole number in the text."""
    if isinstance(b.constant, int):
        result, square, left = number(1 if a.kind == INT else 1.0), a, abs(b.constant)
        while left:
            result = binary(code, "*", result, square) if left & 1 else result
            left >>= 1
            square = binary(code, "*", square, square) if left else square
        return result if b.constant >= 0 else binary(code, "/", number(1.0), result)
    if a.kind in (INT, WORD) and b.kind in (INT, WORD):
        raise InputError("a power of whole numbers takes a number in the text: use float(...)")
    return by_lane(code, lambda x, y: code.call("pow", "double", x, y), [a, b])


def by_lane(code: Code, one: Callable[..., str], values: list[Value]) -> Value:
    """Apply to numbers, lane after lane, what is written for one; arguments with their types."""
    values = alike(code, [_real(code, v) for v in values])
    if values[0].kind == FLOAT:
        return Value(FLOAT, (one(*(f"double {v.parts[0]}" for v in values)),))
    found = "poison"
    for lane in range(WIDTH):
        taken = [code.new(f"extractelement {LANES.llvm} {v.parts[0]}, i32 {lane}") for v in values]
        result = one(*(f"double {part}" for part in taken))
        found = code.new(f"insertelement {LANES.llvm} {found}, double {result}, i32 {lane}")
    return Value(LANES, (found,))


def minus(code: Code, value: Value) -> Value:
    """Return ``-value``."""
    if value.constant is not None:
        return number(-value.constant)
    if value.kind in (FLOAT, LANES):
        return Value(value.kind, (code.new(f"fneg {number_kind(value).llvm} {value.parts[0]}"),))
    return binary(code, "-", number(0), value)


def compare(code: Code, sign: str, a: Value, b: Value) -> Value:
    """Return ``a sign b``, which is false where one is no number, but for ``!=``."""
    a, b = alike(code, [a, b])
    kind = number_kind(a)
    truth = MASK if kind in (LANES, MASK) else TRUTH
    if kind in (FLOAT, LANES):
        text = f"fcmp {_ORDERED[sign]} {kind.llvm} {a.parts[0]}, {b.parts[0]}"
    else:
        signed = "" if sign in ("==", "!=") else ("s" if kind == INT else "u")
        text = f"icmp {signed}{_WHOLE[sign]} {kind.llvm} {a.parts[0]}, {b.parts[0]}"
    return Value(truth, (code.new(text),))


def truth(code: Code, value: Value) -> Value:
    """Return whether a value counts as true."""
    if value.kind == TRUTH:
        return value
    if value.kind in (INT, WORD, FLOAT):
        return compare(code, "!=", value, cast(code, number(0), value.kind))
    raise InputError(f"a condition must be one truth value or number, got {called(value.kind)}")


def settled(value: Value) -> bool | None:
    """Return what a truth value is, if that is known while compiling."""
    return {"true": True, "false": False}.get(value.parts[0])


def select(code: Code, choice: Value, one: Value, other: Value) -> Value:
    """Return ``one if choice else other``, both worked out; in lanes if any of them is."""
    one, other = alike(code, [one, other])
    if LANES in (one.kind, other.kind) or choice.kind == MASK:
        choice, one, other = (
            cast(code, value, kind)
            for value, kind in ((choice, MASK), (one, LANES), (other, LANES))
        )
    parts = [f"{number_kind(v).llvm} {v.parts[0]}" for v in (choice, one, other)]
    return Value(one.kind, (code.new(f"select {', '.join(parts)}"),))
