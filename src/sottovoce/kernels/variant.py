"""Which build of the kernels runs: AVX2, baseline, or the plain modules."""

from __future__ import annotations

import importlib
import os
import warnings
from functools import cache
from types import ModuleType
from typing import Final

VARIABLE: Final = "SOTTOVOCE_KERNELS"
"""The environment variable that picks a build, for tests: ``avx2``, ``baseline`` or ``plain``."""

_PACKAGES = {"avx2": "_avx2", "baseline": "_baseline", "plain": "core"}
_TOP = ("run_loop", "ensemble")  # between them they link to all others


class PlainKernelsWarning(RuntimeWarning):
    """The kernels run as plain Python: the same bits, some hundred times slower."""


@cache
def variant() -> str:
    """Return the build in use: what the variable asks for, or the fastest this processor can run.

    Raises:
        ImportError: the variable asks for something else than a build.
    """
    asked = os.environ.get(VARIABLE)
    if asked is not None:
        if asked not in _PACKAGES:
            raise ImportError(
                f"{VARIABLE} must be one of {', '.join(_PACKAGES)}, got {asked!r}: unset it"
            )
        return asked
    if _built("baseline"):
        functions = importlib.import_module("sottovoce.kernels._baseline.functions")
        return "avx2" if functions.has_avx2() and _built("avx2") else "baseline"
    warnings.warn(
        "sottovoce was installed without its compiled kernels and computes some hundred times "
        "slower, to the same bits: install a C compiler and Python's headers, then install "
        "sottovoce again",
        PlainKernelsWarning,
        stacklevel=2,
    )
    return "plain"


def _built(name: str) -> bool:
    try:
        for module in _TOP:
            importlib.import_module(f"sottovoce.kernels.{_PACKAGES[name]}.{module}")
    except ImportError:
        return False
    return True


def core(name: str) -> ModuleType:
    """Return the module ``name`` of ``sottovoce.kernels.core`` in the build in use."""
    return importlib.import_module(f"sottovoce.kernels.{_PACKAGES[variant()]}.{name}")
