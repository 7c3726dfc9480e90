"""Sixteen agents at once: what is written for one number works on a number for each of them.

A plain function that is written for one agent, with ``select`` where it would branch, compiles to a
function for ``WIDTH`` agents in vector registers. Operations are IEEE's, lane by lane: an agent's
bits are those that it would compute alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sottovoce.algorithm import home_block
from sottovoce.compiler.arithmetic import cast, in_every_lane, number, select
from sottovoce.compiler.code import Code
from sottovoce.compiler.kinds import INT, LANES, MASK, NOTHING, TRUTH, WIDTH, Value
from sottovoce.compiler.memory import place_of
from sottovoce.compiler.operations import OPERATIONS, operation

__all__ = ["WIDTH", "leading"]


def leading(value: Any, width: Any) -> Any:
    """The numbers of the first ``width`` lanes, and 0 in the others."""
    raise NotImplementedError  # compiled code only


operation(home_block.select)(select)
operation(home_block.rint)(OPERATIONS[np.rint])


@operation(home_block.every)
def _every(code: Code, value: Value) -> Value:
    return cast(code, value, LANES)


@operation(home_block.some)
def _some(code: Code, mask: Value) -> Value:
    bits = code.new(f"bitcast {MASK.llvm} {mask.parts[0]} to i{WIDTH}")
    return Value(TRUTH, (code.new(f"icmp ne i{WIDTH} {bits}, 0"),))


def _place(code: Code, work: Value, row: Value) -> str:
    return place_of(code, work, code.new(f"mul i64 {cast(code, row, INT).parts[0]}, {WIDTH}"))


@operation(home_block.load)
def _load(code: Code, work: Value, row: Value) -> Value:
    return Value(LANES, (code.new(f"load {LANES.llvm}, ptr {_place(code, work, row)}, align 8"),))


@operation(home_block.store)
def _store(code: Code, work: Value, row: Value, value: Value) -> Value:
    kept, place = cast(code, value, LANES).parts[0], _place(code, work, row)
    code.do(f"store {LANES.llvm} {kept}, ptr {place}, align 8")
    return Value(NOTHING)


@operation(leading)
def _leading(code: Code, value: Value, width: Value) -> Value:
    counts = f"<{WIDTH} x i64>"
    most = in_every_lane(code, cast(code, width, INT))
    places = ", ".join(f"i64 {lane}" for lane in range(WIDTH))
    here = code.new(f"icmp slt {counts} <{places}>, {most}")
    return select(code, Value(MASK, (here,)), value, number(0.0))
