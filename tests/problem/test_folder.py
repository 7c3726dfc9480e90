from __future__ import annotations

import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.errors import ProblemError
from sottovoce.problem.files.load import read_agent

CLOUD = """\
# Written by hand: a comment, and an odd layout.
[[agents]]
lower = -1
upper = 1
[[agents]]
name = "x2"
lower = [-2]
upper =   2.5

[[constraints]]
expression = "x1 + x2 <= 1"
[[constraints]]
name = "disc"
expression = "x1**2 + 0.5*x2**2 <= 2"

[privacy]
epsilon = "ln(3)"
delta = 0.05
[schedule]
gamma_bar = 0.01
"""


def write(folder: Path, cloud: str = CLOUD, **agents: str) -> Path:
    (folder / "agents").mkdir(parents=True)
    (folder / "problem.toml").write_text(cloud)
    texts = {"1": 'objective = "(x1 - 3)**2"\n', "2": 'objective = "x2**2"\nstart = 0.5\n'}
    for name, text in (texts | agents).items():
        (folder / "agents" / f"{name}.toml").write_text(text)
    return folder


def test_a_folder_written_by_hand_becomes_the_problem_it_says(tmp_path: Path) -> None:
    problem = sv.Problem.load(write(tmp_path / "a"))
    x = sv.agents(2, lower=[-1, -2], upper=[1, 2.5])
    stated = sv.Problem(
        agents=x,
        objectives=[(x[0] - 3) ** 2, x[1] ** 2],
        constraints=[x[0] + x[1] <= 1, x[0] ** 2 + 0.5 * x[1] ** 2 <= 2],
        start=[None, 0.5],
    )
    assert problem.fingerprint == stated.fingerprint
    assert problem.cloud.row_labels() == ["g1", "disc"]
    assert problem.privacy == {"epsilon": "ln(3)", "delta": 0.05}


def test_a_round_trip_changes_nothing_not_even_comments(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    sv.Problem.load(folder).save(tmp_path / "b")
    for path in ("problem.toml", "agents/1.toml", "agents/2.toml"):
        assert (tmp_path / "b" / path).read_bytes() == (folder / path).read_bytes()


@pytest.mark.parametrize("name", [n for n in sv.gallery.names() if n != "chargers"])
def test_a_problem_stated_in_python_reads_back_the_same(name: str, tmp_path: Path) -> None:
    problem = sv.gallery.get(name)
    problem.save(tmp_path / "a")
    again = sv.Problem.load(tmp_path / "a")
    assert again.fingerprint == problem.fingerprint
    assert again.privacy == problem.privacy
    assert again.schedule == problem.schedule
    private = [file for file in (tmp_path / "a/agents").rglob("*") if file.is_file()]
    assert private
    assert {stat.S_IMODE(file.stat().st_mode) for file in private} == {0o600}


def test_saving_never_overwrites_another_problem(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    with pytest.raises(ProblemError, match="exists already with other content"):
        sv.gallery.paper().save(folder)
    assert (folder / "problem.toml").read_text() == CLOUD


HOSTILE = {
    "code": ("__import__('os').system('true')", "line 11"),
    "an attribute": ("x1.__class__ <= 1", "line 11"),
    "a lambda": ("(lambda: x1)() <= 1", "line 11"),
    "an unknown name": ("x1 + y9 <= 1", "line 11.*y9"),
    "an unknown function": ("sin(x1) + x2 <= 1", "line 11.*sin"),
    "a very long text": ("x1 + " * 20_000 + "x2 <= 1", "line 11"),
    "deep nesting": ("(" * 5_000 + "x1" + ")" * 5_000 + " <= 1", "line 11"),
    "a tower of powers": ("x1**9**9**9**9 <= 1", "line 11"),
    "two comparisons": ("0 <= x1 <= 1", "line 11"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_text_gets_an_error_with_its_line_and_runs_nothing(
    case: str, tmp_path: Path
) -> None:
    text, message = HOSTILE[case]
    folder = write(tmp_path / "a", CLOUD.replace("x1 + x2 <= 1", text))
    with pytest.raises(ProblemError, match=message):
        sv.Problem.load(folder)


def test_an_objective_with_another_agents_state_names_file_and_line(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", **{"2": 'start = 0\nobjective = "x1 + x2"\n'})
    with pytest.raises(ProblemError, match=r"agents/2.toml, line 2.*own state only, got x1"):
        sv.Problem.load(folder)


BROKEN = {
    "not TOML": ("agents = [", "must be TOML"),
    "an unknown key": (CLOUD + "rounds_ = 3\n", "got 'rounds_'"),
    "an unknown table": (CLOUD + "[colour]\n", "got 'colour'"),
    "no agents": (
        CLOUD.replace("[[agents]]", "[[agent]]"),
        "agents, .*got 'agent'",
    ),
    "an empty list of agents": ("agents = []\nconstraints = []\n", "at least one agent"),
    "a missing bound": (CLOUD.replace("lower = -1\n", ""), "agent 1 needs 'lower'"),
    "text for a bound": (CLOUD.replace("lower = -1", 'lower = "a"'), "line 3.*must be a number"),
    "duplicate constraints": (
        CLOUD.replace('name = "disc"', 'name = "g1"'),
        "names must differ, got constraint g1 twice",
    ),
    "a newer format": ("format = 99\n" + CLOUD, "format must be 1, got 99"),
    "crossed bounds": (CLOUD.replace("upper = 1\n", "upper = -5\n"), "lower must not exceed"),
    "half a dimension": (CLOUD.replace("upper = 1\n", "upper = 1\ndim = 1.5\n"), "integer"),
    "a format that is no number": ('format = "1"\n' + CLOUD, "format must be 1, got '1'"),
    "a table for the agents": (
        CLOUD.replace("[[agents]]", "[agents]", 1).replace("[[agents]]", "[agents.b]"),
        "agents must be a list",
    ),
    "a number for a constraint": (CLOUD.replace('"x1 + x2 <= 1"', "3"), "must be text"),
    "rounds in words": (CLOUD + "rounds = 'a'\n", "integer of at least 1, got 'a'"),
    "half a round": (CLOUD + "rounds = 1.5\n", "integer of at least 1, got 1.5"),
    "an unknown kind of hiding": (
        CLOUD.replace("delta = 0.05", 'hide = "all"'),
        "line 18: hide .* got 'all'",
    ),
    "an epsilon in words": (CLOUD.replace('"ln(3)"', '"much"'), "line 17: epsilon"),
    "a truth for delta": (CLOUD.replace("0.05", "true"), "line 18: delta .* got True"),
    "a date for a radius": (CLOUD.replace("delta = 0.05", "radius = 2020-01-01"), "radius .* got"),
    "an unknown algorithm": (CLOUD + 'algorithm = "best"\n', "averaging, tikhonov, got 'best'"),
    "a setting that is no table": ("privacy = 3\n" + CLOUD.split("[privacy]")[0], "a table"),
    "a nan bound": (CLOUD.replace("upper = 1\n", "upper = nan\n"), "must be finite"),
}


def _read_by_a_device(folder: Path) -> object:
    return read_agent(folder / "agents" / "1.toml")


@pytest.mark.parametrize(
    "read", [sv.Problem.load, partial(sv.Problem.load, agents=[]), _read_by_a_device]
)
@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_says_what_is_wrong_to_everybody_who_reads_it(
    case: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    text, message = BROKEN[case]
    with pytest.raises(ProblemError, match=message):
        read(write(tmp_path / "a", text))


BROKEN_AGENTS = {
    "text for a start": ('objective = "x1"\nstart = "a"\n', "line 2: start .* must be a number"),
    "a start outside": ('objective = "x1"\nstart = 7.25\n', "line 2: start of x1 must be 1 number"),
    "too many numbers": ('objective = "x1"\nstart = [0, 0]\n', "start of x1 must be 1 number"),
    "a start that is no number": ('objective = "x1"\nstart = nan\n', "start of x1 must be"),
    "a list with a text": ('objective = "x1"\nstart = [7.25, "a"]\n', "start .* must be a number"),
    "a table for a start": ('objective = "x1"\nstart = {}\n', "start .* must be a number"),
    "no objective": ("start = 0\n", "needs 'objective'"),
    "a number for an objective": ("objective = 3\n", "objective .* must be text"),
    "another name": ('agent = "x2"\nobjective = "x1"\n', "agent must be 'x1'"),
    "an unknown key": ('objective = "x1"\nstrat = 0\n', "line 2: .* got 'strat'"),
}


@pytest.mark.parametrize("read", [sv.Problem.load, _read_by_a_device])
@pytest.mark.parametrize("case", BROKEN_AGENTS)
def test_a_broken_agents_file_says_what_is_wrong_and_no_private_number(
    case: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    text, message = BROKEN_AGENTS[case]
    with pytest.raises(ProblemError, match=message) as caught:
        read(write(tmp_path / "a", **{"1": text}))
    assert "7.25" not in str(caught.value)


# Every letter that UTF-8 can write, those that TOML and people trip over more often.
_LETTERS = st.one_of(
    st.sampled_from("\"\\'\n\r\t\0\x7f[]#=\u2028é→𝛿"), st.characters(exclude_categories=["Cs"])
)


@settings(max_examples=100, deadline=None)
@given(name=st.text(_LETTERS), epsilon=st.floats(0.01, 10) | st.just("ln(3)"), radius=st.lists(
    st.floats(0.1, 9), min_size=2, max_size=2))  # fmt: skip
def test_a_saved_problem_reads_back_whatever_its_constraints_are_called(
    name: str, epsilon: float | str, radius: list[float]
) -> None:
    x = sv.agents(2, lower=0, upper=1)
    problem = sv.Problem(
        agents=x,
        objectives=list(x),
        constraints={name: x[0] + x[1] <= 1},
        privacy={"epsilon": epsilon, "radius": tuple(map(np.float64, radius))},
    )
    with TemporaryDirectory() as folder:
        problem.save(folder)
        again = sv.Problem.load(folder)
        assert again.cloud.row_labels() == [name]
        assert again.fingerprint == problem.fingerprint
        assert again.privacy == {"epsilon": epsilon, "radius": radius}
        again.save(folder)


def test_settings_of_the_wrong_type_are_refused_in_python_too() -> None:
    x = sv.agents(1, lower=0, upper=1)
    wrong: list[tuple[Any, str]] = [
        ({"epsilon": True}, "privacy"),
        ({"epsilons": 1.0}, "privacy"),
        ({"c1": "one third"}, "schedule"),
        (["rounds"], "schedule"),
    ]
    for table, name in wrong:
        with pytest.raises(ProblemError, match=rf"\[{name}\]|got"):
            sv.Problem(agents=x, objectives=[x[0]], constraints=[x[0] <= 1], **{name: table})


def test_missing_and_surplus_agent_files_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", **{"3": 'objective = "1"\n'})
    with pytest.raises(ProblemError, match=r"agents/3.toml belongs to no agent"):
        sv.Problem.load(folder)
    (folder / "agents/3.toml").unlink()
    (folder / "agents/1.toml").unlink()
    with pytest.raises(ProblemError, match=r"1.toml must exist"):
        sv.Problem.load(folder)
    with pytest.raises(ProblemError, match=r"problem.toml must exist"):
        sv.Problem.load(tmp_path / "nowhere")
