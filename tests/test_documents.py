from __future__ import annotations

import re
import runpy
from dataclasses import asdict
from pathlib import Path

import pytest

import sottovoce
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.cli import COMMANDS, GROUPS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md"])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FENCE = re.compile(r"^```python(?: title=\"(\S+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.py)`")
TEST = re.compile(r"`(test_\w+)`")


def known_tests() -> set[str]:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    return {name for source in sources for name in re.findall(r"def (test_\w+)", source)}


def test_the_reference_has_every_public_name() -> None:
    pages = (DOCS / "reference" / "python").glob("*.md")
    shown = re.findall(r"^::: [\w.]+\.(\w+)$", "\n".join(map(Path.read_text, pages)), re.MULTILINE)
    namespaces = {"errors", "gallery", "network", "paper"}
    assert set(sottovoce.__all__) - namespaces <= set(shown)


def test_the_page_of_commands_is_written_from_the_command_line() -> None:
    hook = runpy.run_path(str(DOCS / "_hooks" / "commands.py"))
    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    built = hook["on_page_markdown"](page)
    for name in (*COMMANDS, *(f"{group} " for group in GROUPS)):
        assert f"## `sottovoce {name}" in built
    assert hook["MARK"] not in built
    assert "| `--epsilon " in built


def test_formulas_become_mathml() -> None:
    hook = runpy.run_path(str(DOCS / "_hooks" / "mathematics.py"))
    html = hook["on_page_content"](r'<p><span class="arithmatex">\(x &lt; \mu_l^2\)</span></p>')
    assert "<msubsup>" in html
    assert "<mo>&#x0003C;</mo>" in html  # what HTML escaped is a formula again
    assert "arithmatex" not in html
    for wrong in (r"\nothing x", r"\begin{aligned} a &= b \end{aligned}"):
        with pytest.raises(ValueError, match="must be LaTeX that latex2mathml knows"):
            hook["on_page_content"](f'<span class="arithmatex">\\({wrong}\\)</span>')


def test_every_file_that_the_readme_links_to_exists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)", readme)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_file_and_test_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    written = {title for title, _ in FENCE.findall(text)}
    homes = (ROOT, ROOT / "src", ROOT / "src" / "sottovoce")
    missing = {
        name
        for name in FILE.findall(text)
        if name not in written
        and not any((home / name).exists() for home in homes)
        and not list((ROOT / "tests").rglob(name))
    }
    missing |= set(TEST.findall(text)) - known_tests()
    assert missing == set()


def test_the_page_on_the_algorithm_has_its_constants() -> None:
    page = (DOCS / "explanation" / "algorithm.md").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^\| `(\w+)` \| ([\d.e-]+) \|", page, re.MULTILINE))
    expected = asdict(DualAveraging())
    assert {name: float(stated[name]) for name in expected} == expected
