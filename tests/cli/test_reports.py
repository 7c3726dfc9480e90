"""What ``sottovoce check`` says of a certificate: every sum, where it must lie, and why."""

from __future__ import annotations

from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce.cli.reports import certificate_data, certificate_tables


def shown(problem: sv.Problem) -> str:
    return "\n".join(map(str, certificate_tables(sv.certify(problem.cloud))))


def rows(problem: sv.Problem) -> list[dict[str, Any]]:
    data: Any = certificate_data(sv.certify(problem.cloud))
    return list(data["sums"])


def test_the_sums_of_the_coupled_problem_are_shown_with_their_set_and_the_reason() -> None:
    problem = sv.gallery.coupled()
    found = rows(problem)
    assert [row["constraint"] for row in found] == ["range", "range", "joint", "joint", "load"]
    assert [row["sum"] for row in found] == ["range[1]", "range[2]", "joint[1]", "joint[2]", "load"]
    assert found[0]["must"] == "range[1]**2 + range[2]**2 - 8 <= 0"
    assert found[0]["why"] == "2 squares of sums, inside a root"
    assert found[4]["formula"] == "exp(h) + exp(p[2]) + exp(q[1])"
    assert found[4]["must"] == "<= 7.38906"
    assert found[4]["why"] == "one sum, inside a logarithm"
    text = shown(problem)
    for row in found:
        for cell in row.values():
            assert cell in text


def test_equalities_intervals_fleets_and_own_bounds_are_told_apart() -> None:
    x = sv.agents(["a", "b"], lower=-1, upper=1)
    ev = sv.agents(3, lower=0, upper=1, name="ev")
    problem = sv.Problem(
        agents=[x, ev],
        objectives=[*x, ev.x],
        constraints={
            "balance": sv.total(ev.x) + x[0] == 1,
            "between": (x[0] - x[1]) ** 2 <= 1,
            "weighted": sv.total(ev.x**2, weights=[[1.0, 2.0, 3.0]]) <= 4,
            "own": x[0] ** 2 <= 0.25,
        },
    )
    found = {row["constraint"]: row for row in rows(problem)}
    assert found["balance"]["must"] == "= 1"
    assert found["balance"]["formula"] == "sum over ev of ev + a"
    assert found["between"]["must"] == "between -1 and 1"
    assert found["weighted"]["formula"] == "sum over ev of weights of ev**2"
    assert found["own"]["sum"] is None
    assert "no release" in found["own"]["why"]
    assert "no multiplier" in shown(problem)


def test_many_sums_are_cut_short_and_say_so() -> None:
    ev = sv.agents(3, lower=0, upper=1, dim=30, name="ev")
    problem = sv.Problem(
        objectives=sum(ev.x), constraints=[sv.total(list(ev.x)) <= np.full(30, 2.0)]
    )
    assert "... 6 more" in shown(problem)
    assert len(rows(problem)) == 30


def test_long_fractions_are_shown_as_decimals() -> None:
    x = sv.agents(["a", "b"], lower=-1, upper=1)
    problem = sv.Problem(
        objectives=list(x), constraints=[0.1 * x[0] ** 2 + 0.3 * x[0] * x[1] + x[1] ** 2 <= 1]
    )
    assert all(len(row["formula"]) < 40 for row in rows(problem))
