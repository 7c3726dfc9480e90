"""Results: complete, versioned files that are refused when damaged; summaries, frames, figure."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import InputError
from sottovoce.simulation.result import FORMAT, QUANTITIES, Assessment, Result, Trace, Transcript


def made_result(*, known: bool = True, kept: bool = True, name: str = "g1") -> Result:
    """Two runs of three states under one constraint; the second failed in round 4."""
    rng = np.random.default_rng(0)
    k = np.array([0, 1, 10])
    traces = {name: rng.uniform(0.1, 1, (2, 3)) for name in QUANTITIES}
    return Result(
        x=rng.normal(size=(2, 3)),
        price=rng.uniform(size=(2, 1)),
        last_x=rng.normal(size=(2, 3)),
        last_price=rng.uniform(size=(2, 1)),
        rounds=10,
        requested=20,
        seed=2**80,
        algorithm="Tikhonov()",
        noise="none: nothing is private",
        failed=np.array([0, 4]),
        interrupted=True,
        seconds=0.5,
        saddle_x=np.zeros(3) if known else None,
        saddle_price=np.ones(1) if known else None,
        trace=Trace(k=k, **traces),
        transcript=Transcript(
            y=rng.normal(size=(2, 10, 1)),
            gradients=np.zeros((2, 10, 0)),
            rows=np.zeros(0, dtype=np.int64),
            columns=np.zeros(0, dtype=np.int64),
        )
        if kept
        else None,
        assessed=Assessment(
            groups=(("x1", 1, 1), ("u", 2, 1)),
            row_labels=(name,),
            equality=np.array([False]),
            scale=np.array([4.0]),
            rows=np.array([[0.5], [9.0]]),
            objective=np.array([11.0, 99.0]),
            best=10.0 if known else float("nan"),
            price_labels=(name,),
            sigma=np.array([2.0]),
            deviation=np.array([0.1, 0.2, np.nan]) if known else np.zeros(0),
            promise="x1: (1, 0.05)-differentially private",
            fingerprint="ab",
        ),
    )


@pytest.mark.parametrize("known", [True, False])
def test_a_saved_result_loads_with_every_field_the_same(known: bool, tmp_path: Path) -> None:
    before = made_result(known=known, kept=known)
    before.save(tmp_path / "r.npz")
    after = Result.load(tmp_path / "r.npz")
    for name in Result.__dataclass_fields__:
        one, other = getattr(before, name), getattr(after, name)
        if name in ("trace", "assessed") or (name == "transcript" and known):
            for part in type(one).__dataclass_fields__:
                np.testing.assert_array_equal(getattr(one, part), getattr(other, part))
        elif isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, other)
        else:
            assert one == other
            assert type(one) is type(other)
    assert str(after.summary()) == str(before.summary())
    with pytest.raises(ValueError, match="read-only"):
        after.x[0, 0] = 1.0


def test_errors_are_distances_to_the_saddle_point_or_unknown() -> None:
    known = made_result()
    assert known.error_x is not None
    np.testing.assert_allclose(known.error_x, np.sqrt((known.x**2).sum(axis=1)))
    assert made_result(known=False).error_price is None


def test_a_file_with_a_flipped_byte_is_refused_or_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "r.npz"
    before = made_result()
    before.save(file)
    whole = file.read_bytes()
    at = whole.index(before.x.tobytes()) + 5
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(InputError, match="damaged"):
        Result.load(file)


def rewritten(file: Path, **change: Any) -> None:
    with np.load(file) as data:
        arrays = {name: data[name] for name in data.files}
    meta = json.loads(str(arrays.pop("meta")))
    np.savez(file, meta=np.array(json.dumps(meta | change)), **arrays)


def test_a_newer_version_is_refused_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "r.npz"
    made_result().save(file)
    rewritten(file, format=FORMAT + 1)
    with pytest.raises(InputError, match="newer sottovoce; upgrade"):
        Result.load(file)


def test_saving_fails_whole_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "r.npz"
    made_result().save(file)
    old = file.read_bytes()

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(InputError, match="No space left"):
        made_result().save(file)
    assert file.read_bytes() == old
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("known", [True, False])
def test_the_figure_is_an_image_also_with_failed_runs(known: bool, tmp_path: Path) -> None:
    drawn = made_result(known=known)
    drawn.plot(tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="cannot draw"):
        drawn.plot(tmp_path / "c.unknown")


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


def test_html_is_escaped_and_short() -> None:
    evil = made_result(name="<script>alert(1)</script>")
    assert "<script" not in evil.summary()._repr_html_()
    assert "&lt;script&gt;" in evil.summary()._repr_html_()
    wide = replace(evil, x=np.zeros((1, 1_000_000)), noise="<script>" * 1000)
    assert len(wide._repr_html_()) < 2_000
    assert "<script" not in wide._repr_html_()
    assert len(repr(replace(wide, noise="none"))) < 2_000


def test_an_assessment_is_what_the_problem_and_the_plan_say() -> None:
    problem = sv.gallery.paper()
    hide = sv.Trajectory(radius=1.0, rounds=100)
    made = sv.plan(problem, epsilon=math.log(3), delta=0.05, hide=hide)
    x = np.stack([np.zeros(7), np.ones(7)])
    found = replace(sv.simulate(problem, made, rounds=100, record=[]), x=x).assessment()
    for r in range(2):
        at = problem.evaluate(x[r])
        np.testing.assert_array_equal(found.rows[r], at.rows)
        assert found.objective[r] == at.objective
    np.testing.assert_array_equal(found.sigma, made.released_sigma)
    least = sv.accuracy_limit(problem, made, 100)
    assert np.isnan(found.deviation[list(least.flat)]).all()
    assert np.nanmax(found.deviation) == pytest.approx(np.delete(least.x_each, least.flat).max())
    assert "(1.09862, 0.05)-differentially private" in found.promise
    assert list(found.state_labels()) == [f"x{i}" for i in range(1, 8)]


def test_a_scale_is_the_bound_or_else_the_width_of_the_range() -> None:
    x = sv.agents(2, lower=-1, upper=2)
    problem = sv.Problem(
        agents=x,
        objectives=[s**2 for s in x],
        constraints=[x[0] + x[1] <= -0.5, x[0] - x[1] <= 0, (x[0] + x[1]) ** 2 + x[0] <= 9],
    )
    found = replace(sv.simulate(problem, rounds=1, record=[]), x=np.zeros((1, 2))).assessment()
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


def test_without_pandas_the_frame_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"pip install 'sottovoce\[frame\]'"):
        made_result().to_frame()
