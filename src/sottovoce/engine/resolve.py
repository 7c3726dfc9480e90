"""How Numba looks up operations while kernels are built: each once, not at every use.

Numba finds the implementation of ``a * b`` by trying all products that it knows, of lists, arrays
and dates, and keeps a formatted error message for every one that does not fit; then again when it
writes the code. Generated texts are thousands of products of the same two types.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba import types as _types
from numba.core.base import BaseContext as _BaseContext

types: Any = _types
BaseContext: Any = _BaseContext

# Their result does not depend on the value of a number that is written in the text.
_ARITHMETIC = {
    operator.add, operator.sub, operator.mul, operator.truediv, operator.neg,
    operator.iadd, operator.isub, operator.imul, operator.itruediv,
    operator.lt, operator.le, operator.gt, operator.ge, operator.getitem,
}  # fmt: skip
# Numba asks for these at every access to an array or a tuple, has none, and loads its registries.
_NEVER_FOUND = {"__array__", "static_getitem", "static_setitem"}


@contextmanager
def remembered_lookups() -> Iterator[None]:
    """Let Numba remember, until the end of the block, what it has looked up."""
    look_up, find = types.Function.get_call_type, BaseContext.get_function
    found: dict[tuple[int, tuple[Any, ...]], tuple[Any, Any]] = {}

    def remembered(function: Any, typing: Any, args: Any, kws: Any) -> Any:
        if kws:
            return look_up(function, typing, args, kws)
        given = tuple(args)
        if function.typing_key in _ARITHMETIC:
            given = tuple(types.unliteral(a) for a in given)
        # By identity, and kept alive: a function that learns a new overload is another object.
        key = (id(function), given)
        if key not in found:
            found[key] = (look_up(function, typing, given, kws), function)
        return found[key][0]

    def without_reloading(context: Any, name: Any, signature: Any, _firstcall: bool = True) -> Any:
        first = _firstcall and not (isinstance(name, str) and name in _NEVER_FOUND)
        return find(context, name, signature, _firstcall=first)

    types.Function.get_call_type, BaseContext.get_function = remembered, without_reloading
    try:
        yield
    finally:
        types.Function.get_call_type, BaseContext.get_function = look_up, find
