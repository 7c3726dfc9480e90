"""Choice of the kernels' build: AVX2, baseline, or the plain modules."""

from __future__ import annotations

import hashlib
import importlib
import os
import warnings
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from sottovoce.kernels.core import MODULES

VARIABLE: Final = "SOTTOVOCE_KERNELS"
"""The environment variable that picks a build, for tests: ``avx2``, ``baseline`` or ``plain``."""

_BUILDS: Final = ("avx2", "baseline", "plain")


class PlainKernelsWarning(RuntimeWarning):
    """The kernels run as plain Python: the same bits, some hundred times slower."""


@cache
def variant() -> str:
    """Return the build in use: what the variable asks for, or the fastest that runs here."""
    name = os.environ.get(VARIABLE)
    if name is not None:
        if name not in _BUILDS:
            raise ImportError(
                f"{VARIABLE} must be one of {', '.join(_BUILDS)}, got {name!r}: unset it"
            )
        return name
    if _built("baseline"):
        return "avx2" if build("baseline").has_avx2() and _built("avx2") else "baseline"
    warnings.warn(
        "sottovoce has no compiled kernels of its present sources and computes some hundred times "
        "slower, to the same bits: install a C compiler and Python's headers, then install "
        "sottovoce again",
        PlainKernelsWarning,
        stacklevel=2,
    )
    return "plain"


def _built(name: str) -> bool:
    """Whether there is a build, of the sources that are here: one of others has other numbers."""
    try:
        compiled = build(name)
    except ImportError:
        return False
    folder = Path(__file__).parent / "core"
    sources = b"".join((folder / f"{module}.py").read_bytes() for module in MODULES)
    return bool(hashlib.sha256(sources).hexdigest() == compiled.SOURCES)


@cache
def build(name: str) -> Any:
    """Return all kernels of one build as attributes."""
    if name != "plain":
        return importlib.import_module(f"sottovoce.kernels._{name}.core")
    modules = [importlib.import_module(f"sottovoce.kernels.core.{m}") for m in MODULES]
    kernels = {k: v for m in modules for k, v in vars(m).items()}
    quiet = np.errstate(all="ignore")  # as machine code is
    return SimpleNamespace(
        **{k: quiet(v) if k.startswith("run_") else v for k, v in kernels.items()}
    )


def core() -> Any:
    """Return the kernels in the build in use."""
    return build(variant())
