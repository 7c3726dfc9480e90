"""Operations of kernels that Python has under no name of its own.

``fma`` is exact everywhere, so a result does not depend on what a compiler chose to fuse.
"""

from __future__ import annotations

import sys
from typing import Any

from sottovoce.algorithm import interior
from sottovoce.algorithm.steps import positive, project
from sottovoce.compiler.arithmetic import cast
from sottovoce.compiler.calls import invoked
from sottovoce.compiler.code import Code
from sottovoce.compiler.kinds import FLOAT, INT, NOTHING, TRUTH, WORD, Address, Value, items_of
from sottovoce.compiler.operations import operation, substitute


def fma(a: Any, b: Any, c: Any) -> Any:
    """``a*b + c`` with one rounding."""
    raise NotImplementedError  # compiled code only, as all of these


def as_float(bits: Any) -> Any:
    """The float64 with these 64 bits."""
    raise NotImplementedError


def as_bits(value: Any) -> Any:
    """The 64 bits of a float64."""
    raise NotImplementedError


def invoke(address: Any, arguments: Any) -> Any:
    """Call the compiled function at an address; it returns whether all went well.

    A function called so is compiled once for all kernels.
    """
    raise NotImplementedError


@operation(fma)
def _fma(code: Code, *values: Value) -> Value:
    given = [f"double {cast(code, value, FLOAT).parts[0]}" for value in values]
    return Value(FLOAT, (code.call("llvm.fma.f64", "double", *given),))


@operation(as_float)
def _as_float(code: Code, bits: Value) -> Value:
    return Value(FLOAT, (code.new(f"bitcast i64 {bits.parts[0]} to double"),))


@operation(as_bits)
def _as_bits(code: Code, value: Value) -> Value:
    return Value(WORD, (code.new(f"bitcast double {value.parts[0]} to i64"),))


@operation(invoke)
def _invoke(code: Code, address: Value, arguments: Value) -> Value:
    given = items_of(arguments)
    kind = Address(TRUTH, tuple(value.kind for value in given))
    where = code.new(f"inttoptr i64 {address.parts[0]} to ptr")
    return invoked(code, Value(kind, (where,)), given)


@substitute(project)
def _project(x: Any, lower: Any, upper: Any) -> Any:
    # Comparisons that are false for NaN let it through, and compile to one instruction each.
    raised = lower if x < lower else x
    return upper if raised > upper else raised


@substitute(positive)
def _positive(mu: Any) -> Any:
    return 0.0 if mu < 0.0 else mu


@substitute(interior.derived)
def _derived(derive: Any, context: Any, price: Any, at: Any) -> None:
    own, lane, on, state, work, data = context
    filled = (at.gradient, at.values, at.jacobian, at.hessian)
    invoke(derive, (own, lane, on, state, work, data, at.x, price, *filled))


_YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
_SPINS = 300


def _arrive(counter: Any) -> None:
    """Add 1 to ``counter[0]`` in one step, seen by all threads."""
    raise NotImplementedError


def _arrived(counter: Any) -> Any:
    """``counter[0]`` as other threads left it."""
    raise NotImplementedError


def _let_others_run() -> None:
    """Give the processor to another thread."""
    raise NotImplementedError


@operation(_arrive)
def _emit_arrive(code: Code, counter: Value) -> Value:
    code.new(f"atomicrmw add ptr {counter.parts[0]}, i64 1 seq_cst")
    return Value(NOTHING)


@operation(_arrived)
def _emit_arrived(code: Code, counter: Value) -> Value:
    return Value(INT, (code.new(f"load atomic i64, ptr {counter.parts[0]} seq_cst, align 8"),))


@operation(_let_others_run)
def _emit_let_others_run(code: Code) -> Value:
    code.call(_YIELD, "i32")
    return Value(NOTHING)


def meet(counter: Any, everybody: Any) -> None:
    """Wait until ``counter[0]``, which every thread that comes here raises by 1, is ``everybody``.

    Rounds of a fleet take microseconds, far less than waking a sleeping thread; after a while of
    waiting the processor goes to others all the same.
    """
    _arrive(counter)
    spins = 0
    while _arrived(counter) < everybody:
        spins += 1
        if spins > _SPINS:
            _let_others_run()
