"""Fixtures of all tests; without compiled kernels, what needs their speed is skipped by name."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import pytest

from sottovoce.kernels.variant import PlainKernelsWarning, variant
from sottovoce.network import identity
from sottovoce.problem import gallery
from sottovoce.problem.problem import Problem

FAST = ("behaviour", "certificate", "cli", "formula", "kernels", "privacy", "problem", "report")
"""Rooms whose tests run few rounds; elsewhere only those marked ``core`` run uncompiled."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlainKernelsWarning)
        plain = variant() == "plain"
    skip = pytest.mark.skip(reason="needs compiled kernels: install a C compiler and reinstall")
    for item in items if plain else ():
        room = Path(item.path).parent.name
        needs = item.get_closest_marker("compiled") is not None
        if needs or (room not in FAST and item.get_closest_marker("core") is None):
            item.add_marker(skip)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own, for a minute at most."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    from network_harness import run

    names = pyfuncitem._fixtureinfo.argnames
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


AGENTS = 8


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority with agents 1..8, gateways for the first seven and for 1,000, an operator."""
    folder = tmp_path_factory.mktemp("keys") / "cloud"
    identity.create_keys(folder, agents=AGENTS)
    identity.issue_keys(folder, agents=range(1, 8))
    identity.issue_keys(folder, agents=range(1, 1001))
    return folder


@pytest.fixture(scope="session")
def paper() -> Problem:
    return gallery.paper()


@pytest.fixture(scope="session")
def coupled() -> Problem:
    return gallery.coupled()


@pytest.fixture
def site(paper: Problem, keys: Path, tmp_path: Path) -> Any:
    """The paper's problem, keys for it, and a folder."""
    from network_harness import Site

    return Site(paper, keys, tmp_path)


@pytest.fixture(scope="session")
def split_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority for a split cloud with agents 1..7 and gateways of two halves."""
    folder = tmp_path_factory.mktemp("keys") / "split"
    identity.create_keys(folder, agents=7, helper=())
    identity.issue_keys(folder, agents=range(1, 4))
    identity.issue_keys(folder, agents=range(4, 8))
    return folder


@pytest.fixture
def split_site(paper: Problem, split_keys: Path, tmp_path: Path) -> Any:
    """The same for a split cloud."""
    from network_harness import Site

    return Site(paper, split_keys, tmp_path)
