"""Folders, tables and results: what is written reads back the same."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import problems as p
import pytest
from commands import run_cli
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv

pytestmark = pytest.mark.core

SAVED: dict[str, Callable[[], sv.Problem]] = {
    "readme": p.readme, "bakeries": p.bakeries, "hard": lambda: p.bakeries(hard=True),
    "valves": p.valves, "mixed": p.mixed, "nonsmooth": p.nonsmooth, "flows": p.flows,
    "small fleet": p.small_fleet, "fleets and agents": p.fleets_and_agents,
    "public sets": p.public_sets, **p.FIELD,
    **{f"{n} weights of {m}": partial(p.matrices, n, m) for n in (0.02, 0.9) for m in (1, 3)},
    **{n: partial(sv.gallery.get, n) for n in sv.gallery.names() if n != "chargers"},
    "chargers": lambda: sv.gallery.chargers(5, seed=1, hours=4),
}  # fmt: skip


@pytest.mark.parametrize("name", SAVED)
def test_a_problem_reads_back_as_it_was_stated(name: str, tmp_path: Path) -> None:
    problem = SAVED[name]()
    problem.save(tmp_path / "one")
    again = sv.Problem.load(tmp_path / "one")
    assert again.fingerprint == problem.fingerprint
    assert again.cloud.fingerprint == problem.cloud.fingerprint
    assert again.cloud.row_labels() == problem.cloud.row_labels()
    assert (again.privacy, again.schedule) == (problem.privacy, problem.schedule)
    for file in (tmp_path / "one" / "agents").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again.save(tmp_path / "two")
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    assert files
    for file in files:
        assert (tmp_path / "two" / file).read_bytes() == (tmp_path / "one" / file).read_bytes()


def test_a_constant_beside_a_total_and_single_states_is_kept(tmp_path: Path) -> None:
    ev = sv.agents(3, lower=0, upper=1, name="ev", parameters={"w": [1.0, 2.0, 3.0]})
    x = sv.agents(["a", "b"], lower=0, upper=1)
    weights = np.array([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]])
    rows = (
        sv.total(ev.x * ev["w"]) + x[0] + 3 <= 5,
        sv.total(ev.x) + (x[0] + 3) <= 5 - x[1],
        sv.total(ev.x, weights=weights) * 0.1 + (0.1 * x[0] + 0.3) >= 0.5,
        sv.total(ev.x) + (x[0] + x[1]) ** 2 + 0.3 <= 5,
    )
    for k, row in enumerate(rows):
        problem = sv.Problem(agents=[ev, x], objectives=[ev.x**2, *x**2], constraints=[row])
        problem.save(tmp_path / str(k))
        assert sv.Problem.load(tmp_path / str(k)).fingerprint == problem.fingerprint


@pytest.mark.parametrize("files", [p.BAKERIES, p.FLEET, p.MATRIX], ids=["named", "fleet", "matrix"])
def test_a_folder_by_hand_is_kept_with_its_comments(files: dict[str, str], tmp_path: Path) -> None:
    folder = p.write_folder(tmp_path / "one", files)
    sv.Problem.load(folder).save(tmp_path / "two")
    for name, text in files.items():
        assert (tmp_path / "two" / name).read_text() == text


def test_a_folder_of_the_tutorial_is_the_problem_of_the_tutorial(tmp_path: Path) -> None:
    problem = sv.Problem.load(p.write_folder(tmp_path, p.BAKERIES))
    np.testing.assert_allclose(
        sv.reference_optimum(problem).x, sv.reference_optimum(p.bakeries()).x, atol=1e-9
    )
    assert problem.cloud.sums.labels == ("connection",)


def test_a_matrix_in_a_table_is_its_rows(tmp_path: Path) -> None:
    wide = sv.Problem.load(p.write_folder(tmp_path / "wide", p.MATRIX))
    np.testing.assert_allclose(wide.evaluate([1.0, 2.0, 3.0]).rows, [-2.0, -7.0])
    long = "row,agent,component,weight\n1,1,1,1\n1,2,1,1\n2,1,1,0.5\n2,2,1,2\n2,2,2,-1\n"
    other = sv.Problem.load(p.write_folder(tmp_path / "long", p.MATRIX | {"lines.csv": long}))
    assert other.fingerprint == wide.fingerprint


def test_a_fleet_in_tables_is_what_its_numbers_say(tmp_path: Path) -> None:
    problem = sv.Problem.load(p.write_folder(tmp_path, p.FLEET))
    x = np.array([[1.0, 2.0], [2.0, 1.0], [3.0, 3.0], [1.5, 0.5]])
    loss, need, hurry = [1, 0.5, 2, 1], [6, 5, 8, 4], [1, 2, 1, 0.5]
    at = problem.evaluate(x.ravel())
    by_hand = sum(h * (r.sum() - n) ** 2 for h, r, n in zip(hurry, x, need, strict=True))
    assert at.objective == pytest.approx(by_hand + 0.1 * (x**2).sum())
    first = x[:, 0]
    expected = [
        first.sum() - 12, x[:, 1].sum() - 10, loss @ first**2 - 40,
        first[0] + first[1] - 9, first[2] + 0.5 * first[3] - 9,
    ]  # fmt: skip
    np.testing.assert_allclose(at.rows, expected)
    assert p.certify(problem).holds


def test_tables_may_be_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    files = dict(p.FLEET)
    files["problem.toml"] = files["problem.toml"].replace("ev.csv", "ev.parquet")
    files.pop("ev.csv")
    folder = p.write_folder(tmp_path / "parquet", files)
    columns = {"loss": [1, 0.5, 2, 1], "upper[1]": [4, 4, 6, 4], "upper[2]": [5, 5, 5, 3]}
    parquet.write_table(pa.table(columns), folder / "ev.parquet")
    same = sv.Problem.load(p.write_folder(tmp_path / "csv", p.FLEET))
    again = sv.Problem.load(folder)
    assert again.fingerprint == same.fingerprint
    again.save(tmp_path / "as CSV")
    assert sv.Problem.load(tmp_path / "as CSV").fingerprint == same.fingerprint
    (folder / "ev.parquet").write_text("words")
    with pytest.raises(sv.errors.ProblemError, match=r"ev\.parquet must be a Parquet file"):
        sv.Problem.load(folder)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        sv.errors.ProblemError, match=r"install sottovoce\[parquet\], or write .* as CSV"
    ):
        sv.Problem.load(folder)


def test_a_table_from_a_spreadsheet_is_read(tmp_path: Path) -> None:
    marked = {"ev.csv": "\ufeff" + p.FLEET["ev.csv"].replace("\n", "\r\n")}
    problems = [
        sv.Problem.load(p.write_folder(tmp_path / str(k), p.FLEET | more))
        for k, more in enumerate(({}, marked))
    ]
    assert problems[0].fingerprint == problems[1].fingerprint


def test_a_gateway_gets_its_own_agents_and_a_cloud_none(tmp_path: Path) -> None:
    problem = p.small_fleet(6)
    problem.save(tmp_path / "cloud", agents=[])
    problem.save(tmp_path / "gateway", agents=range(1, 3))
    for path in (tmp_path / "cloud").rglob("*.*"):
        assert path.parent.name == "cloud"
        assert "need" not in path.read_text()
    lines = (tmp_path / "gateway" / "agents" / "fleet-ev.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["agent", "1", "2"]
    p.bakeries().save(tmp_path / "named", agents=[2])
    assert [f.name for f in (tmp_path / "named" / "agents").iterdir()] == ["2.toml"]
    one, other = (
        sv.network.AgentGroup.of_folder(tmp_path / "gateway", [1, 2]),
        sv.network.AgentGroup.of_problem(problem, [0, 1]),
    )
    np.testing.assert_array_equal(one.start, other.start)
    assert one.cloud.fingerprint == other.cloud.fingerprint
    mine, whole = (group.groups[0].fleet.group.parameters for group in (one, other))
    assert mine.keys() == whole.keys()
    for symbol, values in mine.items():
        np.testing.assert_array_equal(values, whole[symbol])


def test_a_cloud_reads_public_files_and_a_gateway_its_agents_lines(tmp_path: Path) -> None:
    tables = {"agents/one.csv": "agent,need,hurry\n1,6,1\n2,5,2\n",
              "agents/two.csv": "agent,need,hurry\n4,4,0.5\n3,8,1\n"}  # fmt: skip
    text = p.FLEET["agents/fleet-ev.toml"].replace('"fleet-ev.csv"', '["one.csv", "two.csv"]')
    folder = p.write_folder(tmp_path, p.FLEET | tables | {"agents/fleet-ev.toml": text})
    whole = sv.Problem.load(folder)
    same = sv.Problem.load(p.write_folder(tmp_path / "one table", p.FLEET))
    assert whole.fingerprint == same.fingerprint
    (folder / "agents" / "two.csv").unlink()
    part = sv.Problem.load(folder, agents=[1, 2])
    assert part.cloud.fingerprint == whole.cloud.fingerprint
    for agent in (1, 2):
        one, other = part.agent(agent - 1), whole.agent(agent - 1)
        assert one.objective is other.objective
        assert one.local.inequalities == other.local.inequalities
        np.testing.assert_array_equal(one.start, other.start)
    with pytest.raises(sv.errors.ProblemError, match=r"fleet-ev.toml, line 4.* for agent 3, got 0"):
        sv.Problem.load(folder, agents=[2, 3])
    for file in (folder / "agents").iterdir():
        file.unlink()
    cloud = sv.Problem.load(folder, agents=[]).cloud
    assert cloud.fingerprint == whole.cloud.fingerprint
    assert [s.name for s in cloud.groups[0].parameters] == ["loss"]


# Every letter that UTF-8 can write, those that TOML and people trip over more often.
LETTERS = st.one_of(
    st.sampled_from("\"\\'\n\r\t\0\x7f[]#=\u2028é→𝛿"), st.characters(exclude_categories=["Cs"])
)


@settings(max_examples=100, deadline=None)
@given(name=st.text(LETTERS), epsilon=st.floats(0.01, 10) | st.just("ln(3)"), radius=st.lists(
    st.floats(0.1, 9), min_size=2, max_size=2))  # fmt: skip
def test_a_saved_problem_reads_back_whatever_its_constraints_are_called(
    name: str, epsilon: float | str, radius: list[float]
) -> None:
    x = sv.agents(2, lower=0, upper=1)
    privacy = {"epsilon": epsilon, "radius": tuple(map(np.float64, radius))}
    problem = sv.Problem(objectives=list(x), constraints={name: x[0] + x[1] <= 1}, privacy=privacy)
    with TemporaryDirectory() as folder:
        problem.save(folder)
        again = sv.Problem.load(folder)
        assert again.cloud.sums.labels == (name,)
        assert again.fingerprint == problem.fingerprint
        assert again.privacy == {"epsilon": epsilon, "radius": radius}
        again.save(folder)


def test_starts_and_fallbacks_are_kept(tmp_path: Path) -> None:
    x = sv.agents(2, lower=0, upper=5)
    own: dict[str, Any] = {"start": [1.0, 2.0], "fallback": [0.5, 0.25], "local": [x[0] <= 4]}
    problem = sv.Problem(objectives=list(x**2), constraints=[x[0] + x[1] <= 3], **own)
    problem.save(tmp_path / "p")
    text = (tmp_path / "p" / "agents" / "1.toml").read_text()
    for word in ("start", "1", "fallback", "0.5", "local", "4"):
        assert word in text
    again = sv.Problem.load(tmp_path / "p")
    first, second = (
        sv.simulate(q, rounds=1, record=[0, 1]).trace.objective for q in (problem, again)
    )
    np.testing.assert_array_equal(first, second)
    assert first[0, 0] == pytest.approx(5.0)


# Results


@pytest.fixture(scope="module")
def result() -> Any:
    problem = p.bakeries()
    noise, rounds = p.plan(problem, feasible=0.5), [0, 1, 30, 60]
    return sv.simulate(problem, noise, runs=5, seed=11, record=rounds, transcript=True)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_result_is_a_figure(result: Any, suffix: str, tmp_path: Path) -> None:
    result.save(tmp_path / "result.npz")
    done = run_cli("plot", tmp_path / "result.npz", "--out", tmp_path / f"figure.{suffix}")
    assert done.code == 0, done.err
    assert (tmp_path / f"figure.{suffix}").stat().st_size > 5_000
