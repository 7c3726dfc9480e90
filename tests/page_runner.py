"""Run the code of a page from top to bottom, as a reader would, and compare what it prints.

The language of a fenced block decides:

``python``               runs, as do files that it includes (``--8<-- "examples/a.py"``). The blocks
                         of a page share one namespace. What is printed must stand in the ``text``
                         block that follows, or be nothing.
``python title="a.py"``  is written to that file, as is every other block with a title.
``console``              ``$ `` begins a command; the lines below are what it prints. All commands
                         of a page share one shell.
``sh``                   names other machines or installs: every ``sottovoce`` and ``make`` in it is
                         parsed, not run.
``toml``, ``ini``, ``csv``  is data.

A page may go on with the files of another one: ``<!-- goes on from other.md -->``.

``...`` in expected output stands for anything. ``PAGES=write`` in the environment replaces output
that differs by what was printed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any

from typer.main import get_command

from sottovoce.cli import application

ROOT = Path(__file__).parents[1]
LANGUAGES = ("python", "console", "sh", "text", "toml", "ini", "csv")
_FENCE = re.compile(
    r"^(?P<in> *)```(?P<language>\w*)(?: title=\"(?P<title>\S+)\")?\n(?P<text>.*?)^(?P=in)```$",
    re.MULTILINE | re.DOTALL,
)
_EARLIER = re.compile(r"^<!-- goes on from (\S+) -->$", re.MULTILINE)
_INCLUDED = re.compile(r"^--8<-- \"(\S+)\"$", re.MULTILINE)
_END = "-- end of a command --"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block; ``start`` and ``end`` are where its text lies on the page."""

    language: str
    title: str | None
    text: str
    start: int
    end: int


def blocks_of(page: Path) -> list[Block]:
    return [
        Block(
            language=fence["language"], title=fence["title"], text=fence["text"],
            start=fence.start("text"), end=fence.end("text"),
        )
        for fence in _FENCE.finditer(page.read_text(encoding="utf-8"))
    ]  # fmt: skip


def run_page(page: Path, folder: Path) -> list[str]:
    """Run a page in a folder of its own and return what differs, or mend the page."""
    blocks = blocks_of(page)
    reader = _Reader(folder)
    for earlier in _EARLIER.findall(page.read_text(encoding="utf-8")):
        for block in blocks_of(page.parent / earlier):
            if block.title is not None:
                reader.read(block, None)
    with reader.shell:
        for block, following in zip_longest(blocks, blocks[1:]):
            reader.read(block, following)
    if os.environ.get("PAGES") == "write":
        text = page.read_text(encoding="utf-8")
        for block, new in reversed(reader.differences):
            text = text[: block.start] + new + text[block.end :]
        page.write_text(text, encoding="utf-8")
        return []
    return [f"expected:\n{old.text}\ngot:\n{new}" for old, new in reader.differences]


class _Reader:
    """Follows a page, and keeps every block that shows something else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shell = _Shell(folder)
        self.names: dict[str, Any] = {"__name__": "__page__"}
        self.differences: list[tuple[Block, str]] = []

    def read(self, block: Block, following: Block | None) -> None:
        assert block.language in LANGUAGES, f"a block of language {block.language!r}"
        if block.title is not None:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            self._python(block, following)
        elif block.language == "console":
            self._console(block)
        elif block.language == "sh":
            parse(block.text)

    def _python(self, block: Block, following: Block | None) -> None:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(with_includes(block.text), "<page>", "exec"), self.names)  # noqa: S102
        output = printed.getvalue()
        if following is None or following.language != "text" or following.title:
            assert not output, f"printed, and no text block shows it:\n{output}"
        elif not matches(output, following.text):
            self.differences.append((following, output))

    def _console(self, block: Block) -> None:
        text = ""
        for command, expected in commands_of(block.text):
            printed = self.shell.run(command)
            text += f"$ {command}\n{expected if matches(printed, expected) else printed}"
        if text != block.text:
            self.differences.append((block, text))


class _Shell:
    """One bash for all commands of a page, with this sottovoce first on its path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate("jobs -p | xargs -r kill 2>/dev/null\n", timeout=60)

    def run(self, command: str) -> str:
        if self._process is None:
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
            self._process = subprocess.Popen(
                ["bash"],
                cwd=self._folder,
                env=os.environ | {"PATH": path, "COLUMNS": "110"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\necho '{_END}' $?\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith(_END):
                assert line.split()[-1] == "0", f"{command}\n{''.join(lines)}"
                return "".join(lines)
            lines.append(line.rstrip() + "\n")
        raise AssertionError(f"the shell ended in {command}")


def with_includes(text: str) -> str:
    return _INCLUDED.sub(lambda line: (ROOT / line[1]).read_text(encoding="utf-8"), text)


def commands_of(text: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with the lines below it."""
    command = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
    return [(match[1], match[2]) for match in command.finditer(text)]


def matches(printed: str, expected: str) -> bool:
    """Return whether the text is as expected, where ``...`` may be anything."""
    pattern = ".*?".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


def parse(text: str) -> None:
    """Parse every ``sottovoce`` command as the command line would; every ``make`` has a target."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and (words[0].startswith("/") or words[0].startswith(".venv/")):
            words[0] = words[0].rpartition("/")[2]
        if words[:1] == ["make"]:
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            for target in words[1:]:
                assert f"\n{target}:" in makefile, line
        elif words[:1] == ["sottovoce"]:
            _parse_command(words[1:])


def _parse_command(words: list[str]) -> None:
    command: Any = get_command(application())
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    words = list(takewhile(lambda word: word not in ("2>", "&"), words))  # what the shell reads
    plain = [word for word in words if word != "--help"]
    try:
        command.make_context("sottovoce", plain)
    except Exception as error:  # whatever the library calls wrong usage
        raise AssertionError(f"{' '.join(words)}: {error}") from None
