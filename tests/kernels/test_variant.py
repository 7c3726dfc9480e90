"""Which build runs, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest

from sottovoce.kernels import variant


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variant.VARIABLE, raising=False)
    variant.variant.cache_clear()


def test_without_compiled_kernels_the_first_use_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant, "_built", lambda name: False)
    with pytest.warns(variant.PlainKernelsWarning, match="install a C compiler"):
        assert variant.variant() == "plain"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert variant.core() is variant.build("plain")
    variant.variant.cache_clear()


def test_kernels_compiled_from_other_sources_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant, "build", lambda name: SimpleNamespace(SOURCES="of another time"))
    with pytest.warns(variant.PlainKernelsWarning, match="of its present sources"):
        assert variant.variant() == "plain"


def test_importing_the_room_warns_of_nothing_and_loads_no_kernel() -> None:
    code = (
        "import sys, sottovoce.kernels.run_kernel; "
        "print(sum('kernels._' in m for m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "0"


def test_an_unknown_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variant.VARIABLE, "fastest")
    with pytest.raises(ImportError, match="must be one of avx2, baseline, plain, got 'fastest'"):
        variant.variant()
