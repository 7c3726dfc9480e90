"""What a value looks like at a prompt and in a notebook: short whatever its size, and escaped."""

from __future__ import annotations

import re
from typing import Any

import pytest

import sottovoce as sv

MOST = 2_000


def values_of(problem: sv.Problem) -> dict[str, Any]:
    certificate = sv.certify(problem)
    hide = sv.Everything(rounds=10)
    plan = sv.plan(certificate, epsilon=1, delta=1e-6, hide=hide)
    return {
        "Problem": problem,
        "Certificate": certificate,
        "NoisePlan": plan,
        "Guarantee": plan.guarantee(0),
    }


@pytest.fixture(scope="module")
def million() -> dict[str, Any]:
    u = sv.agents(1_000_000, lower=0, upper=1, name="u")
    return values_of(
        sv.Problem(objectives=(u.x - 1) ** 2, constraints=[sv.total(u.x) <= 400_000.0])
    )


@pytest.mark.parametrize("name", ["Problem", "Certificate", "NoisePlan", "Guarantee"])
def test_the_repr_of_a_million_agents_is_short(million: dict[str, Any], name: str) -> None:
    value = million[name]
    assert repr(value).startswith(f"{name}(")
    assert len(repr(value)) < MOST
    assert len(value._repr_html_()) < MOST


def test_the_repr_of_many_long_names_is_short() -> None:
    names = ["".join(chr(97 + int(d)) for d in str(i)) * 30 for i in range(40)]
    x = sv.agents(names, lower=0, upper=1)
    rows = {f"row {'y' * 300} {i}": x[i] + x[i + 1] <= 1 for i in range(39)}
    problem = sv.Problem(objectives=[s**2 for s in x], constraints=rows)
    for value in values_of(problem).values():
        assert len(repr(value)) < MOST
        assert len(value._repr_html_()) < MOST


def test_html_is_escaped() -> None:
    x = sv.agents(2, lower=0, upper=1)
    evil = "<script>alert(1)</script>"
    problem = sv.Problem(objectives=[(s - 1) ** 2 for s in x], constraints={evil: x[0] + x[1] <= 1})
    shown = [value._repr_html_() for value in values_of(problem).values()]
    shown.append(problem.evaluate([0.0, 0.0])._repr_html_())
    assert not any("<script" in text for text in shown)
    assert any("&lt;script&gt;" in text for text in shown)
    # Every tag that is opened is one of a table's.
    assert {tag for text in shown for tag in re.findall(r"<(\w+)", text)} <= {
        "caption", "p", "table", "tbody", "td", "th", "thead", "tr",
    }  # fmt: skip


def test_a_repr_says_what_counts() -> None:
    x = sv.agents(2, lower=0, upper=1)
    problem = sv.Problem(objectives=[s**2 for s in x], constraints=[x[0] + x[1] <= 1])
    text = " ".join(repr(value) for value in values_of(problem).values())
    for word in ("agents=2", "holds=True", "hide=everything", "epsilon=1,", "trust='one'"):
        assert word in text
