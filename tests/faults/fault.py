"""A fault: a sound part of the package replaced by a broken one, and the test that must fail."""

from __future__ import annotations

import functools
import pkgutil
import re
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from seams import SEAMS

HERE = Path(__file__).parent
TESTS = HERE.parent
PATIENCE = 2.0

OPTIONS = (
    *("-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:unraisableexception"),
    *("-p", "pytest_timeout", "-o", "timeout=0"),
    *("-p", "_hypothesis_pytestplugin", "-o", "addopts=", "--hypothesis-profile=ci"),
)
"""A session without what costs more than most tests: plugins, terminal, garbage collection."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A part that breaks the guarantee.

    Attributes:
        name: what is broken.
        seam: where, a key of ``SEAMS``.
        breaks: takes the sound part and returns the broken one.
        killed_by: the test that must fail, ``function[case]`` anywhere below tests/.
        slow: whether that takes more than ten seconds, or a cheaper test finds the same fault.
        hangs: whether that test waits for what never comes, and fails at its timeout.
    """

    name: str
    seam: str
    breaks: Callable[[Any], Any]
    killed_by: str
    slow: bool = False
    hangs: bool = False


def _files_of_tests() -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    definition = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
    for path in TESTS.rglob("test_*.py"):
        for name in definition.findall(path.read_text(encoding="utf-8")):
            files.setdefault(name, []).append(path)
    return files


FILES_OF_TESTS = _files_of_tests()


def node_of(test: str) -> str:
    """Return the node id of a test, from its name and case."""
    files = FILES_OF_TESTS.get(test.partition("[")[0], [])
    assert len(files) == 1, f"{test} must be one test, got it in {files or 'no file'}"
    return f"{files[0]}::{test}"


def changed(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Break a function: change what it returns."""
    return lambda sound: lambda *arguments, **options: change(sound(*arguments, **options))


def returning(value: Any = None) -> Callable[[Any], Any]:
    """Break a function: do nothing, and return a value."""
    return lambda _: lambda *_, **__: value


@contextmanager
def injected(fault: Fault) -> Iterator[None]:
    """Replace the part at a seam, under every name that a loaded module has for it."""
    owner_path, _, name = SEAMS[fault.seam].rpartition(".")
    owner = pkgutil.resolve_name(owner_path)
    sound = vars(owner)[name]
    broken = fault.breaks(sound)
    modules = own_modules()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hypothesis.internal.conjecture.engine.MAX_SHRINKS", 0)  # any example will do
        patch.setattr(owner, name, broken)
        for module in () if isinstance(owner, type) else modules:
            for alias in [alias for alias, value in vars(module).items() if value is sound]:
                patch.setattr(module, alias, broken)
        if fault.hangs:
            run = sys.modules["network_harness"].run  # the test that hangs has loaded it
            patch.setattr(run, "__kwdefaults__", {"patience": PATIENCE})
        forget(modules)
        yield
    forget(modules)


def own_modules() -> list[Any]:
    tests = str(TESTS)
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("sottovoce") or str(getattr(module, "__file__", "")).startswith(tests)
    ]


def forget(modules: list[Any]) -> None:
    """Empty every cache of functions: what is kept there was made by other parts."""
    for module in modules:
        for value in list(vars(module).values()):
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()


class Watch:
    """Runs collected tests under a fault, and keeps how they ended."""

    def __init__(self, fault: Fault | None) -> None:
        self.fault = fault
        self.reports: list[pytest.TestReport] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        config.option.tbstyle = "native"  # reads no source, which may be deep in recursion here

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        with nullcontext() if self.fault is None else injected(self.fault):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)


def failures(*tests: str, fault: Fault | None = None) -> list[str]:
    """Run tests in this process, with or without a fault; return how their cases failed.

    Raises:
        AssertionError: a test did not run, or it is the fault that fails and not the test.
    """
    watch = Watch(fault)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        options = OPTIONS if fault is None else (*OPTIONS, "-x")  # one case that fails is enough
        code = pytest.main([*options, *map(node_of, tests)], plugins=[watch])
    calls = [report for report in watch.reports if report.when == "call"]
    others = [report for report in watch.reports if report.when != "call" and not report.passed]
    assert not others, f"{others[0].nodeid} must fail by itself, got {others[0].longreprtext}"
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), f"{tests} must run: {code}"
    assert calls, f"{tests} must have cases, got none"
    if fault is not None and not fault.slow:
        assert not any("slow" in report.keywords for report in calls), f"{tests} must not be slow"
    return [_reason(report, fault) for report in calls if report.failed]


def _reason(report: pytest.TestReport, fault: Fault | None) -> str:
    """How a test failed: by an assertion, by a refusal, or in its own lines."""
    crash = report.longrepr.reprcrash  # type: ignore[union-attr]
    found, path = crash.message, Path(crash.path)
    by_test = path.is_relative_to(TESTS) and not path.is_relative_to(HERE / "fault.py")
    judged = found.startswith(
        ("assert", "AssertionError", "Failed", "sottovoce.errors", "sottovoce.network.failures")
    )
    waited = found.startswith("TimeoutError") and fault is not None and fault.hangs
    assert by_test or judged or waited, f"the injection fails: {report.longreprtext}"
    return str(found)
