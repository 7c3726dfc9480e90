"""The tutorial and the how-tos: what they tell to do is done, and what it prints is compared."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from page_runner import ROOT, run_page

DOCS = ROOT / "docs"
PAGES = {
    str(page.relative_to(DOCS)): page
    for part in ("tutorial/*.md", "how-to/*.md", "reference/problems.md")
    for page in sorted(DOCS.glob(part))
}
SLOW = {
    "how-to/code.md": "a cloud with two agents",
    "how-to/dispatch.md": "a certificate and many runs",
    "how-to/ev-fleet.md": "a certificate and many runs",
    "how-to/feasible.md": "a certificate and many runs",
    "how-to/gateways.md": "a cloud and two gateways",
    "how-to/load-shedding.md": "a certificate and many runs",
    "how-to/rates.md": "a certificate and many runs",
    "how-to/regression.md": "a certificate and many runs",
    "how-to/robots.md": "a certificate and many runs",
    "how-to/cluster.md": "processes of their own, each with its imports",
    "tutorial/network.md": "a cloud and three agents",
}


def _page(name: str) -> object:
    return pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])


@pytest.mark.parametrize("name", [_page(name) for name in PAGES])
def test_what_a_page_does_prints_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run_page(PAGES[name], tmp_path) == []


def test_pages_that_are_slow_exist() -> None:
    assert set(SLOW) <= set(PAGES)


def test_a_page_that_says_otherwise_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PAGES", raising=False)
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
        "```console\n$ echo one; true \\\n    && echo more\none\n...\n$ echo two\n2\n```\n"
    )
    first, second = run_page(page, tmp_path)
    assert first == "expected:\n3\n\ngot:\n2\n"
    assert second.endswith(
        "got:\n$ echo one; true \\\n    && echo more\none\n...\n$ echo two\ntwo\n"
    )


@pytest.mark.parametrize(
    "block",
    [
        "```python\nprint(1)\n```\n",  # printed, and shown nowhere
        "```console\n$ false\n```\n",
        "```sh\nsottovoce plan my-problem --epsilom 1\n```\n",
        "```sh\nmake everything\n```\n",
        "```\nsottovoce plan my-problem\n```\n",  # of no language
    ],
)
def test_what_cannot_be_followed_is_refused(block: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(block)
    with pytest.raises(AssertionError):
        run_page(page, tmp_path)


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


def test_the_readme_shows_what_the_quickstart_prints(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    script = ROOT / "examples" / "quickstart.py"
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out in readme
    assert script.read_text(encoding="utf-8").partition('"""\n\n')[2] in readme
    assert len(readme.splitlines()) < 150
