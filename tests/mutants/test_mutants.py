"""Every way to break the promise that somebody thought of must make a test of the suite fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from accounting_mutants import ACCOUNTING
from certify_mutants import CERTIFIED
from feasible_mutants import FEASIBLE
from ledger_mutants import LEDGER
from mutant import Mutant
from network_mutants import SENT
from noise_mutants import NOISE
from split_mutants import SPLIT

ROOT = Path(__file__).parents[2]
MUTANTS = NOISE + SPLIT + SENT + ACCOUNTING + LEDGER + CERTIFIED + FEASIBLE
SECONDS = 240  # a test that hangs on a mutant has not found it

BROKEN = ("ImportError", "ModuleNotFoundError", "NameError", "SyntaxError")
"""A test that fails with one of these has met a bad patch, not a broken promise."""


def run(source: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Run tests against a copy of the source, in a folder where nothing they leave does harm."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith("PYTEST_")}
    own = {"PYTHONPATH": str(source), "SOTTOVOCE_CACHE": str(source / "cache"), "COLUMNS": "200"}
    options = ["-p", "no:cacheprovider", "--tb=no", "-rfE", "-m", "slow or not slow"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(str(ROOT / test) for test in tests)],
        cwd=source,
        env=kept | own,
        capture_output=True,
        text=True,
        timeout=SECONDS * len(tests),
    )


def copy(folder: Path) -> Path:
    return shutil.copytree(
        ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__")
    )


def test_every_mutant_changes_one_place_and_names_a_test_that_exists() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30
    for mutant in MUTANTS:
        text = (ROOT / "src" / "sottovoce" / mutant.file).read_text("utf-8")
        assert text.count(mutant.old) == 1, f"{mutant.name}: {mutant.file} has changed"
        compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
        assert mutant.old != mutant.new
        file, _, function = mutant.killed_by.partition("::")
        stated = f"def {function.partition('[')[0]}("
        assert stated in (ROOT / file).read_text("utf-8"), f"{mutant.name}: no {mutant.killed_by}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_named_tests_pass_on_the_source_as_it_is(tmp_path: Path) -> None:
    done = run(copy(tmp_path), *sorted({mutant.killed_by for mutant in MUTANTS}))
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed(mutant: Mutant, tmp_path: Path) -> None:
    source = copy(tmp_path)
    file = source / "sottovoce" / mutant.file
    text = file.read_text("utf-8")
    assert text.count(mutant.old) == 1, f"{mutant.file} has changed"
    file.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    done = run(source, mutant.killed_by)
    failures = re.findall(r"^FAILED .*?(?: - (.*))?$", done.stdout, re.MULTILINE)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, f"survived:\n{done.stdout}"
    assert failures, done.stdout
    assert not re.search(r"^ERROR ", done.stdout, re.MULTILINE), done.stdout
    assert not [why for why in failures if why.startswith(BROKEN)], done.stdout
