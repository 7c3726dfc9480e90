from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHOWN = {  # by test_pages, which runs them as well, and by the README
    name
    for page in (ROOT / "docs").rglob("*.md")
    for name in re.findall(r'^--8<-- "examples/(\w+)\.py"$', page.read_text("utf-8"), re.MULTILINE)
} | {"quickstart"}
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.stem not in SHOWN]


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert len(capsys.readouterr().out) > 50


def test_the_readme_shows_the_quickstart_and_what_it_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    script = ROOT / "examples" / "quickstart.py"
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out in readme
    assert script.read_text(encoding="utf-8").partition('"""\n\n')[2] in readme
    assert len(readme.splitlines()) < 150
