"""Progress: long work reports it, and results stay clean."""

from __future__ import annotations

import io
import sys
import time
from typing import Any

import pytest

import sottovoce as sv
from sottovoce import progress as module
from sottovoce.progress import shown, silent, watched


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def callback_into(messages: list[tuple[str, float | None]]) -> Any:
    def callback(doing: str, share: float | None = None) -> None:
        messages.append((doing, share))

    return callback


def test_a_pipe_gets_lines_after_the_patience_and_not_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.1)
    with shown("reading", patience=0.1) as tell:
        tell("certifying")
        assert capsys.readouterr().err == ""
        time.sleep(0.25)
        assert capsys.readouterr().err == "certifying\n"
        tell("planning", 0.25)
        time.sleep(0.5)
    tell("afterwards")
    time.sleep(0.2)
    output = capsys.readouterr()
    assert output.err == "planning: 25%\n"
    assert output.out == ""


def test_lines_are_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with shown("compiling", patience=0.0) as tell:
        for k in range(1000):
            tell("rounds", k / 1000)
    assert capsys.readouterr().err == "compiling\n"


def test_quick_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with shown("reading") as tell:
        tell("done")
    assert capsys.readouterr().err == ""


def test_a_terminal_has_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with shown("certifying [x]", patience=0.0) as tell:
        tell("rounds", 0.5)
    assert "certifying [x]" in screen.getvalue()
    assert screen.getvalue().rstrip().endswith("\x1b[2K")  # wiped


def test_by_default_only_a_terminal_is_shown_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(None) as tell:
        assert tell is silent
    with watched(False) as tell:
        assert tell is silent
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with watched(None) as tell:
        assert tell is not silent


@pytest.mark.core
def test_a_callback_gets_what_is_being_done() -> None:
    messages: list[tuple[str, float | None]] = []
    callback = callback_into(messages)
    problem = sv.gallery.paper()
    certificate = sv.certify(problem, progress=callback)
    assert [doing.partition(":")[0] for doing, _ in messages] == ["certifying"] * len(messages)
    assert any("sensitivities of 4 sums to 7 agents" in doing for doing, _ in messages)
    hide = sv.Trajectory(radius=0.1, rounds=100)
    plan = sv.plan(certificate, epsilon=1.0, delta=1e-3, hide=hide, progress=callback)
    assert messages[-1][0] == "planning: noise for 7 agents"
    sv.simulate(problem, plan, rounds=100, runs=2, progress=callback)
    tasks = [doing for doing, _ in messages]
    assert "round 64 of 100" in tasks
    assert messages[-1] == ("round 100 of 100", 1.0)
