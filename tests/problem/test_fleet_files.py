"""Fleets in files: what is public and what is private, round trips, and refusals that help."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import scipy.sparse as sparse
from pyarrow import parquet

import sottovoce as sv
from sottovoce.errors import ProblemError
from sottovoce.network.agent_group import AgentGroup

CLOUD = """\
# Two chargers by themselves and a fleet of four.
[[agents]]
name = "home"
lower = 0
upper = 3

[[fleet]]
name = "ev"
count = 4
dim = 2
lower = 0
parameters = "ev.csv"

[[constraints]]
name = "hours"
expression = "total(ev) <= bound"
bound = [8, 9.5]

[[constraints]]
name = "feeder"
expression = "2*total(loss*ev[1]) + home <= 11"

[[constraints]]
name = "streets"
expression = "total(ev[1]) <= 5"
weights = { ev = "streets.csv" }
"""
PUBLIC = "loss,upper[1],upper[2]\n1,3,4\n1.5,3,4\n2,3,3\n1,2,2\n"
STREETS = "row,agent,weight\n1,2,1\n1,3,1\n2,4,1\n2,5,0.5\n"
FLEET = """\
objective = "hurry*(sum(ev) - need)**2 + loss*ev[1]"
parameters = ["north.csv", "south.csv"]
start = 0.25
local = ["sum(ev) >= need/2"]
"""
NORTH = "agent,need,hurry\n2,3.123456,1\n3,4,0.5\n"
SOUTH = "agent,need,hurry\n5,2,1\n4,1.5,2\n"


def write(folder: Path, **change: str) -> Path:
    files = {
        "problem.toml": CLOUD,
        "ev.csv": PUBLIC,
        "streets.csv": STREETS,
        "agents/1.toml": 'objective = "(home - 2)**2"\n',
        "agents/fleet-ev.toml": FLEET,
        "agents/north.csv": NORTH,
        "agents/south.csv": SOUTH,
    } | change
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def stated() -> sv.Problem:
    home = sv.agents(["home"], lower=0, upper=3)
    ev = sv.agents(
        4,
        name="ev",
        dim=2,
        lower=0,
        upper=[[3, 4], [3, 4], [3, 3], [2, 2]],
        parameters={
            "loss": [1, 1.5, 2, 1],
            "need": [3.123456, 4, 1.5, 2],
            "hurry": [1, 0.5, 2, 1],
        },
    )
    x, (loss, need, hurry) = ev.x, map(ev.__getitem__, ("loss", "need", "hurry"))
    weights = sparse.csr_array([[1, 1, 0, 0], [0, 0, 1, 0.5]])
    return sv.Problem(
        agents=[home, ev],
        objectives=[(home[0] - 2) ** 2, hurry * (sum(x) - need) ** 2 + loss * x[0]],
        constraints={
            "hours": sv.total(x) <= [8, 9.5],
            "feeder": sv.total(2 * loss * x[0]) + home[0] <= 11,
            "streets": sv.total(x[0], weights=weights) <= 5,
        },
        local=[sum(x) >= need / 2],
        start=[None, 0.25],
    )


def test_a_fleet_written_by_hand_becomes_the_problem_it_says(tmp_path: Path) -> None:
    problem = sv.Problem.load(write(tmp_path / "a"))
    assert problem.cloud.fingerprint == stated().cloud.fingerprint
    assert problem.fingerprint == stated().fingerprint
    assert problem.cloud.row_labels() == [
        "hours[1]", "hours[2]", "feeder", "streets[1]", "streets[2]",
    ]  # fmt: skip


def test_the_cloud_needs_and_knows_the_public_files_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    for file in (folder / "agents").iterdir():
        file.unlink()
    cloud = sv.Problem.load(folder, agents=[]).cloud
    assert cloud.fingerprint == stated().cloud.fingerprint
    assert [s.name for s in cloud.groups[1].parameters] == ["loss"]


def test_a_gateway_needs_the_lines_of_its_own_agents_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    (folder / "agents/1.toml").unlink()
    (folder / "agents/south.csv").unlink()
    part, whole = sv.Problem.load(folder, agents=[2, 3]), stated()
    for agent in (2, 3):
        assert part.agent(agent).objective is whole.agent(agent).objective
        np.testing.assert_array_equal(part.agent(agent).start, whole.agent(agent).start)
        rows = (one.agent(agent).local.inequalities for one in (part, whole))
        assert all(a is b for a, b in zip(*rows, strict=True))
    assert part.cloud.fingerprint == whole.cloud.fingerprint
    with pytest.raises(ProblemError, match=r"fleet-ev.toml, line 2.* one line for agent 4, got 0"):
        sv.Problem.load(folder, agents=[3, 4])


def test_a_household_of_a_folder_is_that_of_the_whole_problem(tmp_path: Path) -> None:
    problem = sv.gallery.chargers(5, seed=1, hours=3)
    problem.save(tmp_path / "gateway", agents=[2, 3, 5])
    mine = AgentGroup.of_folder(tmp_path / "gateway", [2, 3, 5])
    whole = AgentGroup.of_problem(problem, [2, 3, 5])
    np.testing.assert_array_equal(mine.start, whole.start)
    assert mine.cloud.fingerprint == whole.cloud.fingerprint
    one, other = mine.groups[0].fleet.group, whole.groups[0].fleet.group
    np.testing.assert_array_equal(one.upper, other.upper)
    assert one.parameters.keys() == other.parameters.keys()
    for symbol, values in one.parameters.items():
        np.testing.assert_array_equal(values, other.parameters[symbol])


def test_a_folder_is_written_back_to_the_letter(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    sv.Problem.load(folder).save(tmp_path / "b")
    names = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    assert len(names) == 7
    for name in names:
        assert (tmp_path / "b" / name).read_bytes() == (folder / name).read_bytes()


def mixed() -> sv.Problem:
    """A fleet before agents, columns of all kinds, weights dense and sparse, an equality."""
    rng = np.random.default_rng(1)
    ev = sv.agents(
        6, name="ev", lower=0, upper=np.arange(1, 7),
        parameters={"w": rng.normal(size=6) ** 2, "need": rng.normal(size=(6, 2))},
    )  # fmt: skip
    x = sv.agents(["a", "b"], lower=0, upper=1)
    heat = sv.agents(3, name="heat", dim=2, lower=-1, upper=1)
    need, state = ev["need"], ev.x
    return sv.Problem(
        agents=[ev, x, heat],
        objectives=[(state - need[0]) ** 2, x[0] ** 2, x[1] ** 2, sum(heat.x**2)],
        constraints={
            "one": sv.total(ev["w"] * state) + (x[0] - x[1]) <= 3,
            "sparse/": sv.total(state, weights=sparse.random_array((3, 6), density=0.5, rng=rng))
            <= [1, 2, 3.5],
            "dense": sv.total(state, weights=rng.normal(size=(2, 6))) >= 0.25,
            "both": sv.total(state) + sv.total(heat.x[0]) + x[1] == 1,
            "terms": sv.total([heat.x[0] ** 2, heat.x[1]]) <= 2,
            "plain": x[0] + x[1] <= 1,
        },
        start=[rng.uniform(size=(6, 1)), None, None, None],
        privacy={"epsilon": 1, "delta": 1e-3},
    )


@pytest.mark.parametrize("make", [mixed, stated, lambda: sv.gallery.chargers(5, seed=1, hours=4)])
def test_what_python_states_reads_back_the_same(make: object, tmp_path: Path) -> None:
    problem = make()  # type: ignore[operator]
    problem.save(tmp_path / "a")
    again = sv.Problem.load(tmp_path / "a")
    assert again.fingerprint == problem.fingerprint
    assert again.cloud.fingerprint == problem.cloud.fingerprint
    assert again.cloud.row_labels() == problem.cloud.row_labels()
    assert again.privacy == problem.privacy
    for file in (tmp_path / "a/agents").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_files_for_the_cloud_hold_nothing_private(tmp_path: Path) -> None:
    stated().save(tmp_path / "a", agents=[])
    written = [p for p in (tmp_path / "a").rglob("*") if p.is_file()]
    assert sorted(p.name for p in written) == ["ev.csv", "problem.toml", "weights3-ev.csv"]
    for path in written:
        assert "need" not in path.read_text()
        assert "3.123456" not in path.read_text()


def test_parquet_is_as_good_as_csv(tmp_path: Path) -> None:
    table = pyarrow.table(
        {"loss": [1, 1.5, 2, 1], "upper[1]": [3, 3, 3, 2], "upper[2]": [4, 4, 3, 2]}
    )
    folder = write(tmp_path / "a", **{"problem.toml": CLOUD.replace("ev.csv", "ev.parquet")})
    parquet.write_table(table, folder / "ev.parquet")
    problem = sv.Problem.load(folder)
    assert problem.fingerprint == stated().fingerprint
    problem.save(tmp_path / "b")  # as CSV: what was read is no text
    assert sv.Problem.load(tmp_path / "b").fingerprint == problem.fingerprint


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "a", **{"problem.toml": CLOUD.replace("ev.csv", "ev.parquet")})
    (folder / "ev.parquet").write_bytes(b"PAR1")
    with pytest.raises(ProblemError, match=r"ev.parquet must be a Parquet file"):
        sv.Problem.load(folder)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ProblemError, match=r"install sottovoce\[parquet\], or write .* as CSV"):
        sv.Problem.load(folder)


def test_a_table_from_a_spreadsheet_is_read(tmp_path: Path) -> None:
    marked = "\ufeff" + PUBLIC.replace("\n", "\r\n")
    problems = [sv.Problem.load(write(tmp_path / str(k), **{"ev.csv": text}))
                for k, text in enumerate((PUBLIC, marked))]  # fmt: skip
    assert problems[0].fingerprint == problems[1].fingerprint


REFUSED = {
    "no count": ("problem.toml", CLOUD.replace("count = 4\n", ""), "fleet ev needs 'count'"),
    "half an agent": (
        "problem.toml",
        CLOUD.replace("count = 4", "count = 3.5"),
        "line 9: count of fleet ev must be an integer",
    ),
    "an unknown key": ("problem.toml", CLOUD.replace("dim = 2", "size = 2"), "fleet ev may have"),
    "a bound twice": (
        "problem.toml",
        CLOUD.replace("lower = 0\npara", "lower = 0\nupper = 1\npara"),
        "line 12: upper of fleet ev must be said once",
    ),
    "a bound nowhere": ("problem.toml", CLOUD.replace("lower = 0\npara", "para"), "needs 'lower'"),
    "a table elsewhere": (
        "problem.toml",
        CLOUD.replace('"ev.csv"', '"../ev.csv"'),
        "line 12: a table must be a file in the same folder",
    ),
    "no table": ("problem.toml", CLOUD.replace('"ev.csv"', '"x.csv"'), "x.csv must exist"),
    "a table of words": ("problem.toml", CLOUD.replace('"ev.csv"', '"ev.txt"'), "must be called"),
    "a line too few": ("ev.csv", PUBLIC.rpartition("1,2,2")[0], "line for each of 4 agents"),
    "a number too few": ("ev.csv", PUBLIC.replace("1.5,3,4", "1.5,3"), "3 numbers in every line"),
    "a word": ("ev.csv", PUBLIC.replace("1.5,3,4", "x,3,4"), r"\(line 3, column 1\)"),
    "no number": ("ev.csv", PUBLIC.replace("1.5,3,4", "nan,3,4"), "line 3: column 'loss' must be"),
    "one name twice": ("ev.csv", PUBLIC.replace("loss,", "upper[1],"), "names of columns must"),
    "half a vector": ("ev.csv", PUBLIC.replace("upper[2]", "upper[3]"), r"a column 'upper\[2\]'"),
    "semicolons": ("ev.csv", PUBLIC.replace(",", ";"), "must have commas between its columns"),
    "an empty table": ("ev.csv", "", "must begin with a line of column names"),
    "first of nobody": (
        "problem.toml",
        CLOUD.replace("count = 4", "count = 4\nfirst = 3"),
        "first of fleet ev must be the number after",
    ),
    "a private name in a constraint": (
        "problem.toml",
        CLOUD.replace("loss*ev[1]", "need*ev[1]"),
        "unknown name 'need'",
    ),
    "a total of two": (
        "problem.toml",
        CLOUD.replace("2*total(loss*ev[1])", "total(ev[1])*total(ev[2])"),
        "may be added and multiplied by numbers only",
    ),
    "a total of none": ("problem.toml", CLOUD.replace("loss*ev[1])", "1)"), "over one fleet"),
    "a fleet by itself": ("problem.toml", CLOUD.replace("+ home", "+ ev[1]"), "unknown name"),
    "a bound too short": ("problem.toml", CLOUD.replace("[8, 9.5]", "[8, 9, 5]"), "same number of"),
    "a bound for no total": (
        "problem.toml",
        CLOUD + '[[constraints]]\nexpression = "home <= bound"\nbound = 2\n',
        "for a total over a fleet or a matrix only",
    ),
    "weights of nobody": (
        "problem.toml",
        CLOUD.replace("{ ev =", "{ eve ="),
        "must be for a fleet",
    ),
    "weights that are no table": (
        "problem.toml",
        CLOUD.replace('{ ev = "streets.csv" }', "3"),
        "weights of .* must be a table for each fleet",
    ),
    "weights of strangers": ("streets.csv", STREETS.replace("2,5,", "2,6,"), "agent lie in 2 to 5"),
    "an agent twice": (
        "agents/south.csv",
        SOUTH.replace("4,1.5,2", "2,1.5,2"),
        r"fleet-ev.toml, line 2.* one line for agent 2, got 2",
    ),
    "a stranger": ("agents/south.csv", SOUTH.replace("4,1.5,2", "9,1.5,2"), "from 2 to 5"),
    "other columns": ("agents/south.csv", SOUTH.replace("hurry", "haste"), "the same columns"),
    "public and private": (
        "agents/fleet-ev.toml",
        FLEET.replace('["north.csv", "south.csv"]', '"both.csv"'),
        "parameter loss of ev must be public or private",
    ),
    "no objective": ("agents/fleet-ev.toml", "start = 1\n", "needs 'objective'"),
    "another fleet": ("agents/fleet-ev.toml", 'fleet = "b"\n' + FLEET, "fleet must be 'ev'"),
    "another's state": (
        "agents/fleet-ev.toml",
        FLEET.replace("+ loss", "+ home + loss"),
        "own state only, got home",
    ),
    "a start outside": (
        "agents/fleet-ev.toml",
        FLEET.replace("0.25", "2.5"),
        "line 3: start of ev",
    ),
    "parameters in numbers": (
        "agents/fleet-ev.toml",
        FLEET.replace('["north.csv", "south.csv"]', "[1, 2]"),
        "parameters .* must be a table's name",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_file_and_what_is_wrong(case: str, tmp_path: Path) -> None:
    name, text, message = REFUSED[case]
    both = "agent,need,hurry,loss\n2,3.123456,1,1\n3,4,1,1\n4,1,1,1\n5,2,1,1\n"
    folder = write(tmp_path / "a", **{"agents/both.csv": both, name: text})
    with pytest.raises(ProblemError, match=message) as error:
        sv.Problem.load(folder)
    assert "3.123456" not in str(error.value)


def test_a_private_number_is_never_quoted(tmp_path: Path) -> None:
    for wrong in ("3.123456x", "3.123456,7", "inf"):
        folder = write(tmp_path / f"a{len(wrong)}", **{
            "agents/north.csv": NORTH.replace("3.123456", wrong)
        })  # fmt: skip
        with pytest.raises(ProblemError) as error:
            sv.Problem.load(folder)
        assert "3.123456" not in str(error.value)
        assert error.value.__cause__ is None
