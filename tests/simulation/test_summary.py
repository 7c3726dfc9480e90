"""What a result says of itself: the figures are right, failed runs do not count, text is short."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_result import made_result
from matplotlib.figure import Figure

import sottovoce as sv
from sottovoce.certificate.certificate import certify
from sottovoce.errors import InputError
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.limit import accuracy_limit
from sottovoce.privacy.plan import plan
from sottovoce.problem import gallery
from sottovoce.problem.problem import Problem
from sottovoce.simulation.result import Result
from sottovoce.simulation.simulate import simulate


def test_the_summary_counts_the_runs_that_did_not_fail() -> None:
    text = str(made_result().summary())
    for words in (
        "10 rounds, 2 runs, 1 failed, interrupted",
        "above the optimum",
        "in percent           10%",
        "0.5         12.5%                  100%",
        "± 0.196",
        "x1: (1, 0.05)-differentially private",
    ):
        assert words in text
    assert "99" not in text  # the failed run's


def test_what_is_not_known_is_not_invented() -> None:
    text = str(made_result(known=False).summary())
    assert "optimum" not in text
    assert "No confidence intervals: the saddle point is not known." in text


def test_a_loaded_result_has_the_same_summary(tmp_path: Path) -> None:
    before = made_result()
    before.save(tmp_path / "r.npz")
    assert str(Result.load(tmp_path / "r.npz").summary()) == str(before.summary())


def test_html_is_escaped_and_short() -> None:
    evil = made_result(name="<script>alert(1)</script>")
    assert "<script" not in evil.summary()._repr_html_()
    assert "&lt;script&gt;" in evil.summary()._repr_html_()
    wide = replace(evil, x=np.zeros((1, 1_000_000)), noise="<script>" * 1000)
    assert len(wide._repr_html_()) < 2_000
    assert "<script" not in wide._repr_html_()
    assert len(repr(replace(wide, noise="none"))) < 2_000


def test_an_assessment_is_what_the_problem_and_the_plan_say() -> None:
    problem = gallery.paper()
    hide = Trajectory(radius=1.0, rounds=100)
    made = plan(certify(problem), epsilon=math.log(3), delta=0.05, hide=hide)
    x = np.stack([np.zeros(7), np.ones(7)])
    found = replace(simulate(problem, made, rounds=100, record=[]), x=x).assessment()
    for r in range(2):
        at = problem.evaluate(x[r])
        np.testing.assert_array_equal(found.rows[r], at.rows)
        assert found.objective[r] == at.objective
    np.testing.assert_array_equal(found.sigma, made.released_sigma)
    least = accuracy_limit(problem, made, 100)
    assert np.isnan(found.deviation[list(least.flat)]).all()
    assert np.nanmax(found.deviation) == pytest.approx(np.delete(least.x_each, least.flat).max())
    assert "(1.09862, 0.05)-differentially private" in found.promise
    assert list(found.state_labels()) == [f"x{i}" for i in range(1, 8)]


def test_a_scale_is_the_bound_or_else_the_width_of_the_range() -> None:
    x = sv.agents(2, lower=-1, upper=2)
    problem = Problem(
        agents=x,
        objectives=[s**2 for s in x],
        constraints=[x[0] + x[1] <= -0.5, x[0] - x[1] <= 0, (x[0] + x[1]) ** 2 + x[0] <= 9],
    )
    found = replace(simulate(problem, rounds=1, record=[]), x=np.zeros((1, 2))).assessment()
    np.testing.assert_allclose(found.scale, [0.5, 6.0, 9.0], rtol=1e-9)


def test_the_frame_has_a_row_per_run_or_per_record() -> None:
    made = made_result()
    answers = made.to_frame()
    assert list(answers.columns) == [
        "run", "failed", "objective", "x1", "u1", "u2", "g: g1", "price: g1",
    ]  # fmt: skip
    np.testing.assert_array_equal(answers["u2"], made.x[:, 2])
    trace = made.to_frame("trace")
    assert trace.shape[0] == 2 * made.trace.k.size
    np.testing.assert_array_equal(trace["error_x"], made.trace.error_x.ravel())
    with pytest.raises(InputError, match="what must be 'answers' or 'trace', got 'x'"):
        made.to_frame("x")


def test_without_pandas_the_frame_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"pip install 'sottovoce\[frame\]'"):
        made_result().to_frame()


def test_the_figure_is_matplotlib_s() -> None:
    drawn = made_result().figure()
    assert isinstance(drawn, Figure)
    assert drawn.axes[0].get_xlabel() == "rounds $k$"
