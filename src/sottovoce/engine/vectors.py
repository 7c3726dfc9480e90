"""A number type of compiled code: one number for each of 16 agents, in vector registers.

A plain function that is written for one agent, with ``select`` where it would branch, compiles to a
function for ``WIDTH`` agents at once. Operations are IEEE's, lane by lane: an agent's bits are
those that it would compute alone.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from itertools import product
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.core.datamodel import models
from numba.core.imputils import lower_builtin as _lower_builtin
from numba.core.typing.templates import AbstractTemplate
from numba.core.typing.templates import infer_global as _infer_global
from numba.core.typing.templates import signature as _signature
from numba.extending import register_model as _register_model

from sottovoce.algorithm import home_block

WIDTH = 16
"""Agents per block: enough to fill vector registers, few enough to read memory in a row."""

# Numba's types know neither its code builder nor what its decorators return.
cgutils: Any = _cgutils
lower_builtin: Callable[..., Callable[[Callable[..., Any]], Any]] = _lower_builtin
infer_global: Any = _infer_global
signature: Any = _signature
register_model: Any = _register_model
_DOUBLES = ir.VectorType(ir.DoubleType(), WIDTH)
_BITS = ir.VectorType(ir.IntType(1), WIDTH)


class Lanes(types.Type):
    """A number, or a truth value, for each lane."""


NUMBERS, TRUTHS = Lanes(name="numbers"), Lanes(name="truths")


@register_model(Lanes)
class _Registers(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            manager, kind, _DOUBLES if kind is NUMBERS else _BITS
        )


def leading(value: Any, width: Any) -> Any:
    """The numbers of the first ``width`` lanes, and 0 in the others."""
    raise NotImplementedError  # compiled code only


def _splat(builder: Any, value: Any, kind: Any) -> Any:
    empty = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
    return builder.shuffle_vector(first, empty, zeros)


def _every(context: Any, builder: Any, value: Any, kind: Any) -> Any:
    """The lanes of a value that may be the same for all."""
    if isinstance(kind, Lanes):
        return value
    if isinstance(kind, types.Boolean):
        return _splat(builder, builder.trunc(value, ir.IntType(1)), _BITS)
    return _splat(builder, context.cast(builder, value, kind, types.float64), _DOUBLES)


def _declare(function: Any, count: int, result: Callable[[tuple[Any, ...]], Any]) -> None:
    """Tell Numba what type a function of ``count`` arguments gives; None: no rule of ours."""

    class Rule(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            kind = result(args) if len(args) == count and not kws else None
            return None if kind is None else signature(kind, *args)

    infer_global(function)(Rule)


def _teach(function: Any, count: int, emit: Callable[..., Any], result: Lanes = NUMBERS) -> None:
    """Let a function work on lanes: ``emit(context, builder, *lanes)`` writes instructions."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pairs = zip(args, sig.args, strict=True)
        return emit(context, builder, *(_every(context, builder, v, kind) for v, kind in pairs))

    _declare(
        function, count, lambda args: result if any(isinstance(a, Lanes) for a in args) else None
    )
    for kinds in product((Lanes, types.Number), repeat=count):
        if Lanes in kinds:
            lower_builtin(function, *kinds)(lower)


def _operator(name: str) -> Callable[..., Any]:
    return lambda context, builder, *lanes: getattr(builder, name)(*lanes)


def _compared(sign: str) -> Callable[..., Any]:
    return lambda context, builder, a, b: builder.fcmp_ordered(sign, a, b)


def _instruction(name: str) -> Callable[..., Any]:
    def emit(context: Any, builder: Any, a: Any) -> Any:
        kind, full = ir.FunctionType(_DOUBLES, [_DOUBLES]), f"llvm.{name}.v{WIDTH}f64"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, full), [a])

    return emit


def _one_by_one(function: Any, count: int) -> Callable[..., Any]:
    """Instructions of a function that has none for vectors: lane after lane."""

    def emit(context: Any, builder: Any, *lanes: Any) -> Any:
        called = context.get_function(function, types.float64(*[types.float64] * count))
        found = ir.Constant(_DOUBLES, ir.Undefined)
        for lane in range(WIDTH):
            place = ir.Constant(ir.IntType(32), lane)
            value = called(builder, [builder.extract_element(v, place) for v in lanes])
            found = builder.insert_element(found, value, place)
        return found

    return emit


_teach(operator.add, 2, _operator("fadd"))
_teach(operator.sub, 2, _operator("fsub"))
_teach(operator.mul, 2, _operator("fmul"))
_teach(operator.truediv, 2, _operator("fdiv"))
_teach(operator.neg, 1, _operator("fneg"))
_teach(operator.pow, 2, _one_by_one(operator.pow, 2))
_teach(operator.and_, 2, _operator("and_"), TRUTHS)
_teach(operator.or_, 2, _operator("or_"), TRUTHS)
for _function, _sign in {
    operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=", operator.eq: "==",
}.items():  # fmt: skip
    _teach(_function, 2, _compared(_sign), TRUTHS)
_teach(abs, 1, _instruction("fabs"))
_teach(math.sqrt, 1, _instruction("sqrt"))
_teach(math.exp, 1, _one_by_one(math.exp, 1))
_teach(math.log, 1, _one_by_one(math.log, 1))
_teach(home_block.rint, 1, _instruction("rint"))


def _lanes_or_number(args: tuple[Any, ...]) -> Any:
    return NUMBERS if any(isinstance(a, Lanes) for a in args) else types.float64


_declare(home_block.select, 3, _lanes_or_number)
_declare(home_block.every, 1, lambda args: NUMBERS)
_declare(home_block.some, 1, lambda args: types.boolean)
_declare(home_block.load, 2, lambda args: NUMBERS)
_declare(home_block.store, 3, lambda args: types.void)
_declare(leading, 2, lambda args: NUMBERS)


@lower_builtin(home_block.select, types.Any, types.Any, types.Any)
def _select(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    if sig.return_type is NUMBERS:
        pairs = zip(args, sig.args, strict=True)
        return builder.select(*(_every(context, builder, v, kind) for v, kind in pairs))
    truth = context.cast(builder, args[0], sig.args[0], types.boolean)
    one, other = (
        context.cast(builder, v, kind, types.float64)
        for v, kind in zip(args[1:], sig.args[1:], strict=True)
    )
    return builder.select(builder.trunc(truth, ir.IntType(1)), one, other)


@lower_builtin(home_block.every, types.Any)
def _constant(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _every(context, builder, args[0], sig.args[0])


@lower_builtin(home_block.some, types.Any)
def _some(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    bits = builder.bitcast(args[0], ir.IntType(WIDTH))
    return builder.icmp_unsigned("!=", bits, ir.Constant(ir.IntType(WIDTH), 0))


def _place(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    data = context.make_array(sig.args[0])(context, builder, args[0]).data
    row = context.cast(builder, args[1], sig.args[1], types.int64)
    first = builder.mul(row, ir.Constant(ir.IntType(64), WIDTH))
    return builder.bitcast(cgutils.gep_inbounds(builder, data, first), _DOUBLES.as_pointer())


@lower_builtin(home_block.load, types.Array, types.Integer)
def _load(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.load(_place(context, builder, sig, args), align=8)


@lower_builtin(home_block.store, types.Array, types.Integer, types.Any)
def _store(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kept = _every(context, builder, args[2], sig.args[2])
    builder.store(kept, _place(context, builder, sig, args), align=8)
    return context.get_dummy_value()


@lower_builtin(leading, types.Any, types.Integer)
def _leading(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    counts = ir.VectorType(ir.IntType(64), WIDTH)
    most = _splat(builder, context.cast(builder, args[1], sig.args[1], types.int64), counts)
    here = builder.icmp_signed("<", ir.Constant(counts, list(range(WIDTH))), most)
    kept = _every(context, builder, args[0], sig.args[0])
    return builder.select(here, kept, ir.Constant(_DOUBLES, [0.0] * WIDTH))
