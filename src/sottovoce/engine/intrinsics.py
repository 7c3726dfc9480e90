"""Machine operations that Numba does not offer under a name of its own.

``fma`` is exact everywhere, so a result does not depend on what a compiler chose to fuse. ``load``
and ``store`` index without Python's negative indices: the test for them would keep LLVM from
turning loops over lanes into vector code.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic as _intrinsic
from numba.extending import overload

from sottovoce.algorithm import (
    dual_averaging,
    dual_search,
    eigen,
    home_block,
    interior,
    newton,
    prices,
    projection,
    region_prices,
    search,
    two_rows,
)
from sottovoce.algorithm import round as at_home
from sottovoce.algorithm.steps import positive, project

# Numba's types know neither the argument that it supplies itself nor its code builder.
cgutils: Any = _cgutils
intrinsic: Callable[[Callable[..., Any]], Any] = _intrinsic
# Only compiled code calls what these make, so nothing is made for Python to call it; and no array
# is reserved there, so no references are counted. Numba's types do not know these options.
_njit: Any = njit
_LEAN = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
inside: Callable[[Callable[..., Any]], Any] = _njit(error_model="numpy", **_LEAN)
inline: Callable[[Callable[..., Any]], Any] = _njit(error_model="numpy", forceinline=True, **_LEAN)


@intrinsic
def fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """``a*b + c`` with one rounding."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), emit


@intrinsic
def as_float(typing: Any, bits: Any) -> Any:
    """The float64 with these 64 bits."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), emit


@intrinsic
def as_bits(typing: Any, value: Any) -> Any:
    """The 64 bits of a float64."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.uint64(types.float64), emit


def _address(context: Any, builder: Any, array: Any, value: Any, index: Any) -> Any:
    place = context.data_model_manager[array].get_field_position("data")
    data = builder.extract_value(value, place)
    return cgutils.gep_inbounds(builder, data, index)


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """``array[index]`` of a flat array, for an index known to lie inside."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_address(context, builder, signature.args[0], *args))

    return array.dtype(array, types.int64), emit


@intrinsic
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """``array[index] = value`` of a flat array, for an index known to lie inside."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        where = _address(context, builder, signature.args[0], args[0], args[1])
        builder.store(args[2], where)
        return context.get_dummy_value()

    return types.void(array, types.int64, array.dtype), emit


@overload(project, jit_options={"forceinline": True})
def _project(x: Any, lower: Any, upper: Any) -> Any:
    # Comparisons that are false for NaN let it through, and compile to one instruction each.
    def compiled(x: Any, lower: Any, upper: Any) -> Any:
        raised = lower if x < lower else x
        return upper if raised > upper else raised

    return compiled


@overload(positive, jit_options={"forceinline": True})
def _positive(mu: Any) -> Any:
    def compiled(mu: Any) -> Any:
        return 0.0 if mu < 0.0 else mu

    return compiled


def _teach(function: Callable[..., Any], *, regional: bool) -> None:
    """Let compiled code call a plain function, which is compiled as it stands.

    A function that takes another one is compiled into its caller: as a value, a function has an
    address, and code with an address in it cannot be kept on disk. What only regions need is left
    out where ``phi`` is None, which halves the time to compile the rest.
    """
    names = list(inspect.signature(function).parameters)
    options: Any = {"no_cfunc_wrapper": True}
    if {"slope", "pull", "gradient"} & set(names):
        options["forceinline"] = True

    def chosen(*types_given: Any) -> Any:
        if regional and types_given[names.index("phi")] in (None, types.none):
            return _nothing(names)
        return function

    overload(function, strict=False, jit_options=options)(chosen)


def _nothing(names: Sequence[str]) -> Any:
    scope: dict[str, Any] = {}
    exec(f"def nothing({', '.join(names)}):\n    return 0.0\n", scope)  # noqa: S102  our own text
    return scope["nothing"]


TAUGHT = (
    dual_averaging, dual_search, eigen, home_block, interior, newton, prices, projection,
    region_prices, at_home, search, two_rows,
)  # fmt: skip
"""Modules whose functions kernels call, compiled as they stand."""

for _module in TAUGHT:
    for _function in _module.COMPILED:
        _teach(_function, regional=_function in getattr(_module, "REGIONAL", ()))


@intrinsic
def invoke(typing: Any, address: Any, arguments: Any) -> Any:
    """Call the compiled function at an address; it returns whether all went well.

    A function called so is neither linked nor optimised again with its caller, as it would be by
    its name.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = cgutils.unpack_tuple(builder, args[1])
        kind = ir.FunctionType(
            context.get_value_type(types.boolean),
            [context.get_value_type(one) for one in signature.args[1]],
        )
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), given)

    return types.boolean(types.int64, arguments), emit


@overload(interior.derived, strict=False)
def _derived(derive: Any, context: Any, price: Any, at: Any) -> Any:
    def compiled(derive: Any, context: Any, price: Any, at: Any) -> Any:
        own, lane, on, state, work, data = context
        where = (own, lane, on, state, work, data, at.x, price)
        matrices = (at.gradient, at.values, at.jacobian, at.hessian)
        invoke(derive, where + matrices)

    return compiled


def address_of(function: Any) -> int:
    """Return where ``invoke`` finds a compiled function, which must have one signature."""
    (compiled,) = function.overloads.values()
    where = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)
    return int(where)


_YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
_SPINS = 300


@intrinsic
def _arrive(typing: Any, counter: Any) -> Any:
    """Add 1 to ``counter[0]`` in one step, seen by all threads."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        where = context.make_array(signature.args[0])(context, builder, args[0]).data
        builder.atomic_rmw("add", where, ir.Constant(ir.IntType(64), 1), "seq_cst")
        return context.get_dummy_value()

    return types.void(counter), emit


@intrinsic
def _arrived(typing: Any, counter: Any) -> Any:
    """``counter[0]`` as other threads left it."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        where = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load_atomic(where, "seq_cst", 8)

    return types.int64(counter), emit


@intrinsic
def _let_others_run(typing: Any) -> Any:
    """Give the processor to another thread."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), ())
        builder.call(cgutils.get_or_insert_function(builder.module, kind, _YIELD), ())
        return context.get_dummy_value()

    return types.void(), emit


@inside
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
