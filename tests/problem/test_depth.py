"""Deep expressions get a refusal that says what to do, never the end of Python's stack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy as sp

import sottovoce as sv
from sottovoce.certify.certificate import certify
from sottovoce.problem.printer import write_expression
from sottovoce.problem.text import parse_expression

DEPTH = 2_000
# SymPy would walk the tree at every step if it evaluated: these only stack nodes.
LAYERS: dict[str, Callable[[Any], Any]] = {
    "exp": lambda e: sp.exp(e, evaluate=False),
    "log": lambda e: sp.log(e, evaluate=False),
    "sum": lambda e: sp.Add(sp.Mul(2, e, evaluate=False), 1, evaluate=False),
    "product": lambda e: sp.Mul(3, e, evaluate=False),
    "power": lambda e: sp.Pow(e, 2, evaluate=False),
}


def _deep(symbol: Any, kind: str, depth: int = DEPTH) -> Any:
    rng = np.random.default_rng(depth)
    tree = symbol
    for layer in rng.choice(list(LAYERS), depth) if kind == "mixed" else [kind] * depth:
        tree = LAYERS[str(layer)](tree)
    return tree


@pytest.mark.parametrize("kind", [*LAYERS, "mixed"])
def test_a_problem_of_deep_expressions_is_refused_with_a_remedy(kind: str) -> None:
    x = sv.states(1, lower=1, upper=2)
    deep = _deep(x[0], kind)
    for objective, constraint in (
        (deep, x[0] <= 1.5),
        (x[0], sp.Le(deep, 3, evaluate=False)),
    ):
        with pytest.raises(sv.ProblemError, match="nested"):
            sv.Problem(states=x, objectives=[objective], constraints=[constraint])
    ev = sv.fleet(2, lower=1, upper=2)
    with pytest.raises(sv.ProblemError, match="nested"):
        sv.Problem(
            states=ev,
            objectives=ev.state,
            constraints=[sv.total(ev, _deep(ev.state, kind)) <= 3],
        )


@pytest.mark.parametrize("kind", [*LAYERS, "mixed"])
def test_functions_printing_and_bounds_refuse_deep_expressions(kind: str) -> None:
    deep = _deep(sp.Symbol("x"), kind)
    for use in (sv.exp, sv.log, sv.sqrt, sv.logsumexp, write_expression):
        with pytest.raises(sv.ProblemError, match="nested"):
            use(deep)


@pytest.mark.parametrize(
    "text",
    [
        "exp(" * DEPTH + "x1" + ")" * DEPTH,
        "log(2 + " * 1_000 + "x1" + ")" * 1_000,
        "(1 + " * 1_400 + "x1" + ")" * 1_400,
        "-(" * DEPTH + "x1" + ")" * DEPTH,
        "x1" + "**2" * DEPTH,
        "1/(" * 1_500 + "x1" + ")" * 1_500,
    ],
)
def test_a_file_with_deep_expressions_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(sv.ProblemError):
        parse_expression(text, {"x1": sp.Symbol("x1")})
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "1.toml").write_text('objective = "x1"\n')
    for constraint, objective in ((f"{text} <= 3", "x1"), ("x1 <= 1.5", text)):
        (tmp_path / "problem.toml").write_text(
            f'[[agents]]\nlower = 1\nupper = 2\n[[constraints]]\nexpression = "{constraint}"\n'
        )
        (tmp_path / "agents" / "1.toml").write_text(f'objective = "{objective}"\n')
        with pytest.raises(sv.ProblemError, match=r"toml, line"):
            sv.load_problem(tmp_path)


def test_certify_refuses_where_pythons_stack_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    # What SymPy makes of an allowed expression may be deeper than the expression itself.
    def endless(*_: object) -> None:
        endless()

    x = sv.states(2, lower=1, upper=2)
    problem = sv.Problem(states=x, objectives=[x[0], x[1]], constraints=[x[0] + x[1] <= 3])
    monkeypatch.setattr("sottovoce.certify.certificate.contribution_ranges", endless)
    with pytest.raises(sv.ProblemError, match=r"nested deeply, got .*: write it with fewer levels"):
        certify(problem)
