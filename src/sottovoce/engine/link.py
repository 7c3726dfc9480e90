"""How Numba links while kernels are built: whole kernels are optimised, and nothing twice.

Left to itself Numba optimises every function and makes machine code of it, then links it into its
caller and does both again with what came of that: a function three calls deep is compiled four
times. Here a function that Python cannot call waits as it was lowered until it is linked into one
that Python can; LLVM then sees the whole kernel once. The bits of results cannot depend on it, as
LLVM may not reorder floating-point arithmetic.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from numba.core import codegen as _codegen
from numba.core.registry import cpu_target

codegen: Any = _codegen
_ENTRIES = ("cpython.", "cfunc.")  # how Numba names what Python, or an address, leads to


@final
class _LinkedLibrary(codegen.JITCodeLibrary):  # type: ignore[misc]  # Numba has no types
    """The code of one function, which is compiled only if it can be called from outside."""

    def finalize(self) -> None:
        """Compile the code, or link into it what it calls and leave it at that."""
        if any(_is_entry(function) for function in self._final_module.functions):
            super().finalize()
            return
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalize_dynamic_globals()
        self._finalized = True


def _is_entry(function: Any) -> bool:
    return not function.is_declaration and function.name.startswith(_ENTRIES)


@contextmanager
def whole_kernels() -> Iterator[None]:
    """Compile kernels as wholes, and collect no garbage meanwhile: a tenth of the time."""
    target = cpu_target.target_context.codegen()

    def set_env(name: str, env: Any) -> None:
        # Code that is not compiled has no place yet for what it would raise.
        if target._engine.is_symbol_defined(name):
            type(target).set_env(target, name, env)

    collecting = gc.isenabled()
    target._library_class, target.set_env = _LinkedLibrary, set_env
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        del target._library_class, target.set_env
