"""The builds of the kernels that this installation has, for tests that compare them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType

import pytest

from sottovoce.kernels import variant

BUILT = [name for name in ("_baseline", "_avx2") if find_spec(f"sottovoce.kernels.{name}")]
if BUILT and not importlib.import_module("sottovoce.kernels._baseline.functions").has_avx2():
    BUILT.remove("_avx2")

compiled = pytest.mark.parametrize(
    "build", BUILT or [pytest.param("", marks=pytest.mark.skip("no compiled kernels here"))]
)


def module(name: str, build: str = "core") -> ModuleType:
    """A module of the kernels in one build; ``core`` is the plain one."""
    return importlib.import_module(f"sottovoce.kernels.{build}.{name}")


BUILDS = [*(name.removeprefix("_") for name in BUILT), "plain"]


def use_build(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Let the doors use one build, for a fixture."""
    variant.variant.cache_clear()
    monkeypatch.setenv(variant.VARIABLE, name)
    yield name
    monkeypatch.undo()
    variant.variant.cache_clear()
