"""The builds of the kernels that this installation has, for tests that compare them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from sottovoce.kernels import variant

BUILT = [
    name
    for name in ("baseline", "avx2")
    if find_spec(f"sottovoce.kernels._{name}") and find_spec(f"sottovoce.kernels._{name}.core")
]
if BUILT and not variant.build("baseline").has_avx2():
    BUILT.remove("avx2")

compiled = pytest.mark.parametrize(
    "build", BUILT or [pytest.param("", marks=pytest.mark.skip("no compiled kernels here"))]
)
BUILDS = [*BUILT, "plain"]


def use_build(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Let the doors use one build, for a fixture."""
    variant.variant.cache_clear()
    monkeypatch.setenv(variant.VARIABLE, name)
    yield name
    monkeypatch.undo()
    variant.variant.cache_clear()
