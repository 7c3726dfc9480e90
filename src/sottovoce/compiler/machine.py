"""Machine code: LLVM's text made into it, loaded, and called from Python."""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, final

import llvmlite.binding as llvm
import numpy as np

from sottovoce.compiler.calls import symbol
from sottovoce.compiler.kinds import (
    FLOAT,
    INT,
    NOTHING,
    SHORT,
    TRUTH,
    WORD,
    Address,
    Array,
    Kind,
    called,
)
from sottovoce.errors import InputError

_CTYPES: Mapping[Kind, Any] = {
    FLOAT: ctypes.c_double, INT: ctypes.c_int64, WORD: ctypes.c_uint64, TRUTH: ctypes.c_bool,
    NOTHING: None,
}  # fmt: skip
_DTYPES = {
    FLOAT: np.dtype(np.float64),
    INT: np.dtype(np.int64),
    WORD: np.dtype(np.uint64),
    SHORT: np.dtype(np.int32),
}


@cache
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if sys.platform == "win32":
        llvm.load_library_permanently("ucrtbase.dll")  # elsewhere the process has C's functions
    return llvm.Target.from_triple(llvm.get_process_triple())


def _machine() -> Any:
    """This machine's processor, with all that it can do; who loads code needs one of its own."""
    return _target().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(),
        opt=3, reloc="pic", codemodel="jitdefault", jit=True,
    )  # fmt: skip


def object_code(text: str) -> bytes:
    """Return machine code of a module in LLVM's language, optimised as a whole."""
    machine = _machine()
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization, options.slp_vectorization = True, True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    code: bytes = machine.emit_object(module)
    return code


@final
class Entry:
    """A compiled function as Python calls it; other threads run meanwhile.

    Attributes:
        address: where it is, for compiled code to call.
        kind: what it takes and returns.
    """

    def __init__(self, address: int, kind: Address, kept: Any) -> None:
        self.address, self.kind = address, kind
        self._kept = kept  # the machine code goes with its last function
        types = [c for argument in kind.arguments for c in _c_types(argument)]
        self._call = ctypes.CFUNCTYPE(_CTYPES[kind.result], *types)(address)

    def __call__(self, *arguments: Any) -> Any:
        """Call the function; arrays must be just as it takes them, as it writes into them."""
        if len(arguments) != len(self.kind.arguments):
            raise InputError(
                f"the function takes {len(self.kind.arguments)} arguments, got {len(arguments)}"
            )
        given: list[Any] = []
        for kind, value in zip(self.kind.arguments, arguments, strict=True):
            if isinstance(kind, Array):
                given += _array(kind, value)
            elif isinstance(kind, Address):
                given.append(_address(kind, value))
            else:
                given.append(_number(kind, value))
        return self._call(*given)


def _address(kind: Address, value: Any) -> int:
    if not isinstance(value, Entry) or value.kind != kind:
        raise InputError(
            f"a function must be an entry of the same kind, got {type(value).__name__}"
        )
    return value.address


def _number(kind: Kind, value: Any) -> float:
    """A number as C takes it; C would cut what does not fit."""
    if kind == FLOAT:
        return float(value)
    if kind == TRUTH:
        return bool(value)
    whole = operator.index(value)
    least, most = (0, 2**64) if kind == WORD else (-(2**63), 2**63)
    if not least <= whole < most:
        raise InputError(f"a number must fit into {called(kind)}, got one beyond")
    return whole


def _array(kind: Array, value: Any) -> Sequence[int]:
    fits = (
        isinstance(value, np.ndarray)
        and value.dtype == _DTYPES[kind.item]
        and value.ndim == kind.dims
        and value.flags.carray
    )
    if not fits:
        raise InputError(
            f"an array must hold {kind.item.name}s in a row with {kind.dims} indices, writable, "
            f"got {type(value).__name__} {getattr(value, 'dtype', '')}"
        )
    # NumPy's own way to the address makes objects that take longer than a round.
    place = ctypes.addressof(ctypes.c_char.from_buffer(value)) if value.size else 0
    return place, *value.shape


def _c_types(kind: Kind) -> list[Any]:
    if isinstance(kind, Array):
        return [ctypes.c_void_p, *[ctypes.c_int64] * kind.dims]
    return [ctypes.c_void_p] if isinstance(kind, Address) else [_CTYPES[kind]]


def load(code: bytes, entries: Mapping[str, Address]) -> dict[str, Entry]:
    """Load machine code and return its functions by their names."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    found = {name: engine.get_function_address(symbol(name)) for name in entries}
    if not all(found.values()):
        raise InputError(f"machine code must have the entries {', '.join(entries)}, got others")
    return {name: Entry(found[name], kind, engine) for name, kind in entries.items()}
