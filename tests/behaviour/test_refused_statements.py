"""Everything that Python refuses when a problem is stated, formula by formula."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import problems as p
import pytest
import scipy.sparse as sparse
from refusals import Refusal, check, listed

import sottovoce

pytestmark = pytest.mark.core
sv: Any = sottovoce  # wrong types are refused too

X = sv.agents(2, lower=0.1, upper=5)
V = sv.agents(["left", "right"], lower=-1, upper=1, dim=2)
EV = sv.agents(3, dim=2, lower=0, upper=1, name="ev", parameters={"cap": [[1, 2], [3, 4], [5, 6]]})
R = EV.x


def of_two(*rows: Any, objectives: Any = None, **more: Any) -> Any:
    wishes = [X[0] ** 2, X[1] ** 2] if objectives is None else objectives
    return sv.Problem(
        agents=X, objectives=wishes, constraints=list(rows) or [X[0] + X[1] <= 3], **more
    )


def of_fleet(*rows: Any, objective: Any = None, **more: Any) -> Any:
    wish = R[0] ** 2 + R[1] ** 2 if objective is None else objective
    return sv.Problem(
        agents=EV, objectives=wish, constraints=list(rows) or [sv.total(EV) <= [1.0, 1.0]], **more
    )


def deep(levels: int) -> Any:
    formula = X[0]
    for _ in range(levels):
        formula = sv.exp(formula / 100)
    return formula


PROBLEM, CONVEXITY = sv.errors.ProblemError, sv.errors.ConvexityError
TRUTH = (TypeError, PROBLEM)
"""What Python's own questions to a formula raise: its truth, its value as a number."""

AGENTS = [
    Refusal("no agents", lambda: sv.agents(0, lower=0, upper=1), PROBLEM, ("agent", "0")),
    Refusal("half an agent", lambda: sv.agents(1.5, lower=0, upper=1), sv.SottovoceError, ("integer", "1.5")),
    Refusal("bounds that cross", lambda: sv.agents(2, lower=3, upper=1), PROBLEM, ("lower", "upper", "3", "1", "x1", "swap")),
    Refusal("an infinite bound", lambda: sv.agents(2, lower=0, upper=math.inf), PROBLEM, ("upper", "finite", "inf")),
    Refusal("a bound that is NaN", lambda: sv.agents(2, lower=math.nan, upper=1), PROBLEM, ("lower", "finite", "nan")),
    Refusal("a bound that is text", lambda: sv.agents(2, lower="low", upper=1), PROBLEM, ("lower", "number", "low")),
    Refusal("too few bounds", lambda: sv.agents(3, lower=[0, 0], upper=1), PROBLEM, ("lower", "3", "2")),
    Refusal("a bound of another shape", lambda: sv.agents(2, lower=[[0, 0], [0, 0]], upper=1), PROBLEM, ("lower", "shape|(2,)")),
    Refusal("a name twice", lambda: sv.agents(["a", "a"], lower=0, upper=1), PROBLEM, ("name", "a", "twice", "rename")),
    Refusal("a name with a blank", lambda: sv.agents(["a b"], lower=0, upper=1), PROBLEM, ("name", "a b")),
    Refusal("a name that is a function", lambda: sv.agents(["exp"], lower=0, upper=1), PROBLEM, ("exp", "name")),
    Refusal("a name that is no text", lambda: sv.agents([3], lower=0, upper=1), sv.SottovoceError, ("text", "3")),
    Refusal("dimension 0", lambda: sv.agents(1, lower=0, upper=1, dim=0), sv.SottovoceError, ("dim", "0")),
    Refusal("too few dimensions", lambda: sv.agents(3, lower=0, upper=1, dim=[1, 2]), PROBLEM, ("dim", "3", "2")),
    Refusal("states of several dimensions as an array", lambda: sv.agents(2, lower=0, upper=1, dim=[1, 2]) + 1, PROBLEM, ("one dimension", "A @ x")),
    Refusal("an empty fleet", lambda: sv.agents(0, lower=0, upper=1), PROBLEM, ("agent", "0")),
    Refusal("bounds of a fleet that cross", lambda: sv.agents(2, lower=[[0], [3]], upper=1, name="ev"), PROBLEM, ("lower", "upper", "3", "ev")),
    Refusal("bounds of a fleet of another shape", lambda: sv.agents(2, lower=[0, 0, 0], upper=1), PROBLEM, ("lower", "(2, 1)", "(3,)")),
    Refusal("parameters that are a list", lambda: sv.agents(2, lower=0, upper=1, parameters=[1]), PROBLEM, ("parameters", "names")),
    Refusal("a parameter with too few rows", lambda: sv.agents(3, lower=0, upper=1, parameters={"need": [1, 2]}), PROBLEM, ("need", "3", "(2,)")),
    Refusal("a parameter that is NaN", lambda: sv.agents(2, lower=0, upper=1, parameters={"need": [1, math.nan]}), PROBLEM, ("need", "finite", "NaN|nan")),
    Refusal("a parameter that is text", lambda: sv.agents(2, lower=0, upper=1, parameters={"need": "much"}), PROBLEM, ("need", "number", "much")),
    Refusal("a parameter of no fleet", lambda: EV["need"], PROBLEM, ("need", "cap", "parameter")),
    Refusal("two agents with one label", lambda: sv.Problem(agents=[sv.agents(2, lower=0, upper=1), sv.agents(2, lower=0, upper=1, name="x")], objectives=[X[0], X[1], 0], constraints=[X[0] <= 1]), PROBLEM, ("x1", "twice", "name")),
    Refusal("agents that are numbers", lambda: sv.Problem(agents=[3], objectives=[0], constraints=[X[0] <= 1]), PROBLEM, ("states|agents", "3")),
    Refusal("no agents at all", lambda: sv.Problem(agents=[], objectives=[], constraints=[X[0] <= 1]), PROBLEM, ("agent", "no")),
]  # fmt: skip

FORMULAS = [
    Refusal("a chain", lambda: 1 <= X[0] <= 5, TRUTH, ("chain", "two")),
    Refusal("a chain of a matrix", lambda: 1 <= np.ones(2) @ X <= 5, TRUTH, ("chain", "two rows")),
    Refusal("a chain of a total", lambda: 1 <= sv.total(EV) <= 5, TRUTH, ("chain", "two rows")),
    Refusal("a truth value", lambda: bool(X[0] <= 1), TRUTH, ("truth", "x1")),
    Refusal("Python's max", lambda: max(X[0], 0), TRUTH, ("max", "sv.maximum")),
    Refusal("Python's min", lambda: min(X[0], X[1]), TRUTH, ("min", "sv.minimum")),
    Refusal("a strict comparison of arrays", lambda: R < 1, PROBLEM, ("strict", "<=")),
    Refusal("math.log", lambda: math.log(X[0]), TRUTH, ("x1", "sv.log")),
    Refusal("float of a state", lambda: float(X[0]), TRUTH, ("x1", "value")),
    Refusal("np.sin", lambda: np.sin(X[0]), PROBLEM, ("sin", "formula")),
    Refusal("np.log1p", lambda: np.log1p(X[0]), PROBLEM, ("log1p", "sv.log")),
    Refusal("A.dot(x)", lambda: np.eye(2).dot(X) <= 1, TRUTH, ("A @ x", "<=")),
    Refusal("a total times an array", lambda: sv.total(EV) * np.ones(2), PROBLEM, ("total", "one number", "ndarray")),
    Refusal("a total of no terms", lambda: sv.total([]), PROBLEM, ("total", "none")),
    Refusal("a total of text", lambda: sv.total("ev"), PROBLEM, ("number", "str")),
    Refusal("a total of something else", lambda: sv.total(3), sv.SottovoceError, ("agents", "3")),
    Refusal("a matrix with too many columns", lambda: np.ones((2, 3)) @ X <= 1, PROBLEM, ("A @ x", "2", "(2, 3)")),
    Refusal("a matrix with NaN", lambda: np.array([[1, math.nan]]) @ X <= 1, PROBLEM, ("A", "finite", "NaN|nan")),
    Refusal("a sparse matrix with infinity", lambda: sparse.csr_array(np.array([[1, math.inf]])) @ X <= 1, PROBLEM, ("A", "finite", "inf")),
    Refusal("weights with too many columns", lambda: sv.total(R, weights=np.ones((2, 4))), PROBLEM, ("weights", "ev", "3", "(2, 4)")),
    Refusal("weights with NaN", lambda: sv.total(R, weights=[[1, 2, math.nan]]), PROBLEM, ("weights", "ev", "finite")),
    Refusal("sides with different numbers of rows", lambda: sv.total(EV) <= [1.0, 2.0, 3.0], PROBLEM, ("2", "3", "rows")),
    Refusal("rows and bounds of different numbers", lambda: np.eye(2) @ X <= [1.0, 2.0, 3.0], PROBLEM, ("2", "3", "rows")),
    Refusal("a soft maximum of nothing", lambda: sv.logsumexp(), PROBLEM, ("logsumexp", "one argument")),
    Refusal("a maximum of nothing", lambda: sv.maximum(), PROBLEM, ("max", "one argument")),
    Refusal("a norm of nothing", lambda: sv.norm(), PROBLEM, ("norm", "one argument")),
    Refusal("huber with a negative width", lambda: sv.huber(X[0], -1), PROBLEM, ("huber", "positive", "-1")),
    Refusal("huber with a state as its width", lambda: sv.huber(X[0], X[1]), PROBLEM, ("huber", "positive", "x2")),
    Refusal("exp of text", lambda: of_two(sv.exp("x1") <= 1), sv.SottovoceError, ("str", "number|states")),
]  # fmt: skip

OBJECTIVES = [
    Refusal("too few objectives", lambda: of_two(objectives=[X[0]]), PROBLEM, ("objectives", "2", "1")),
    Refusal("an objective of another agent's state", lambda: of_two(objectives=[X[0] * X[1], X[1]]), PROBLEM, ("x1", "x2", "constraint")),
    Refusal("an objective that is a function", lambda: of_two(objectives=[lambda s: s, X[1]]), PROBLEM, ("objective", "function", "gradient")),
    Refusal("an objective that is a comparison", lambda: of_two(objectives=[X[0] <= 1, X[1]]), PROBLEM, ("objective", "comparison")),
    Refusal("an objective with a strange symbol", lambda: of_two(objectives=[sv.agents(3, lower=0, upper=1)[2], X[1]]), PROBLEM, ("x3", "x1")),
    Refusal("an infinite number", lambda: of_two(objectives=[math.inf * X[0], X[1]]), PROBLEM, ("finite", "inf")),
    Refusal("a complex number", lambda: of_two(objectives=[X[0] * 1j, X[1]]), PROBLEM, ("real", "1j")),
    Refusal("an exponent that is too large", lambda: of_two(objectives=[X[0] ** 5000, X[1]]), PROBLEM, ("exponent", "5000", "[")),
    Refusal("a power of two states", lambda: of_two(objectives=[X[0] ** X[0], X[1]]), PROBLEM, ("exponent", "x1", "constant")),
    Refusal("a number that overflows", lambda: of_two(objectives=[X[0] * 10**400, X[1]]), PROBLEM, ("finite", "double")),
    Refusal("code for a fleet", lambda: of_fleet(objective=sv.Objective(gradient=abs)), PROBLEM, ("ev", "3", "code")),
    Refusal("a gradient that is a number", lambda: sv.Objective(gradient=3), PROBLEM, ("gradient", "function", "int")),
    Refusal("a value that is text", lambda: sv.Objective(gradient=abs, value="v"), PROBLEM, ("value", "function", "str")),
]  # fmt: skip

CONSTRAINTS = [
    Refusal("no constraint", lambda: sv.Problem(objectives=[X[0], X[1]], constraints=[]), PROBLEM, ("constraint", "none|no")),
    Refusal("no constraint that couples agents", lambda: of_fleet(R[0] + R[1] <= 1), PROBLEM, ("constraint", "couple")),
    Refusal("a constraint that is a formula", lambda: of_two(X[0] + X[1]), PROBLEM, ("<=", ">=")),
    Refusal("a constraint that is a number", lambda: of_two(3.0), PROBLEM, ("<=", "3.0")),
    Refusal("a constraint that is always true", lambda: of_two(3 <= 5), PROBLEM, ("True", "agent")),
    Refusal("a constraint without agents", lambda: of_two(X[0] - X[0] <= 1), PROBLEM, ("agent", "remove")),
    Refusal("a strict constraint", lambda: of_two(X[0] < 1), PROBLEM, ("<=", "border")),
    Refusal("an equality that is not affine", lambda: of_two(X[0] ** 2 + X[1] == 1), PROBLEM, ("affine", "x1**2", "<=")),
    Refusal("an equality of a product", lambda: of_two(X[0] * X[1] == 1), PROBLEM, ("affine", "x1*x2", "<=")),
    Refusal("a constraint over a stranger", lambda: of_two(sv.agents(3, lower=0, upper=1)[2] <= 1), PROBLEM, ("x3", "g1")),
    Refusal("a constraint over a fleet of another problem", lambda: of_two(sv.total(EV) <= 1), PROBLEM, ("ev", "states|agents")),
    Refusal("a row of a matrix without an agent", lambda: of_two(np.array([[1.0, 1.0], [0.0, 0.0]]) @ X <= 1), PROBLEM, ("A @ x", "row 2|2")),
    Refusal("a fleet beside its total", lambda: of_fleet(sv.total(R[0]) + R[1] <= 1), PROBLEM, ("ev[2]", "g1")),
    Refusal("a fleet beside another agent", lambda: sv.Problem(agents=[X, EV], objectives=[X[0], X[1], R[0]], constraints=[X[0] + R[0] <= 1]), PROBLEM, ("ev", "total")),
    Refusal("two totals over one fleet", lambda: of_fleet(sv.total(R[0]) + sv.total(R[1], weights=[[1, 2, 3]]) <= 1), PROBLEM, ("once", "total")),
    Refusal("a total of a constant", lambda: of_fleet(sv.total([3.0]) <= 1), PROBLEM, ("3.0", "state")),
    Refusal("a total of a parameter", lambda: of_fleet(sv.total(EV["cap"][0]) <= 1), PROBLEM, ("ev", "cap", "state")),
    Refusal("a row of parameters alone", lambda: of_fleet(EV["cap"][0] <= 1, sv.total(EV) <= 1), PROBLEM, ("ev", "parameters", "remove")),
    Refusal("a norm that mixes agents beside other terms", lambda: of_two(sv.norm(X[0] - X[1], X[0] + X[1]) + sv.exp(X[0] * X[1]) <= 3), PROBLEM, ("norm", "g1")),
    Refusal("maxima that become too many rows", lambda: of_two(sum(sv.maximum(X[0] + k * X[1], X[0] - k * X[1]) for k in range(1, 12)) <= 3), PROBLEM, ("maxima|maximum", "rows")),
    Refusal("a formula that is too deep", lambda: of_two(deep(120) + X[1] <= 3), PROBLEM, ("nested", "levels")),
    Refusal("a formula that is far too deep", lambda: of_two(deep(3_000) + X[1] <= 3), PROBLEM, ("nested", "levels")),
]  # fmt: skip

LOCAL = [
    Refusal("a local row of two agents", lambda: of_two(local=[X[0] + X[1] <= 1]), PROBLEM, ("x1", "x2", "constraints")),
    Refusal("a local row with a total", lambda: of_fleet(local=[sv.total(EV) <= 1]), PROBLEM, ("one agent", "total", "constraints")),
    Refusal("a local row of parameters alone", lambda: of_fleet(local=[EV["cap"][0] <= 1]), PROBLEM, ("ev", "parameters", "remove")),
    Refusal("a local row that is not convex", lambda: of_two(local=[X[0] ** 2 >= 4]), CONVEXITY, ("convex", "x1**2")),
    Refusal("a local maximum that is not convex", lambda: of_two(local=[abs(X[0] - 2) >= 1]), CONVEXITY, ("convex", "x1")),
    Refusal("a local equality that is not affine", lambda: of_two(local=[(X[0] ** 2 == 4)]), CONVEXITY, ("affine", "<=")),
    Refusal("a local row that excludes the box", lambda: of_two(local=[X[0] >= 9]), PROBLEM, ("x1", "5", "widen|relax")),
    Refusal("local rows that exclude each other", lambda: sv.Problem(objectives=[V[0][0], V[1][0]], constraints=[V[0][0] + V[1][0] <= 1], local=[V[0][0] + V[0][1] >= 1.5, V[0][0] + V[0][1] <= -1.5]), PROBLEM, ("left", "local")),
    Refusal("local rows of a fleet that exclude each other", lambda: of_fleet(local=[sum(R) >= EV["cap"][0], sum(R) <= 0.5]), PROBLEM, ("ev", "local")),
]  # fmt: skip

POINTS = [
    Refusal("a start outside the box", lambda: of_two(start=[9.0, 1.0]), PROBLEM, ("start", "x1", "box|bounds")),
    Refusal("too few starts", lambda: of_two(start=[1.0]), PROBLEM, ("start", "2", "1")),
    Refusal("a start of another shape", lambda: of_two(start=[[1.0, 2.0], 1.0]), PROBLEM, ("start", "x1")),
    Refusal("a fallback outside the box", lambda: of_two(fallback=[9.0, 1.0]), PROBLEM, ("fallback", "x1")),
    Refusal("a fallback outside its own set", lambda: of_two(fallback=[4.0, 1.0], local=[X[0] <= 2]), PROBLEM, ("fallback", "x1", "local|own")),
    Refusal("too few fallbacks", lambda: of_two(fallback=[1.0]), PROBLEM, ("fallback", "2", "1")),
    Refusal("a truth for epsilon", lambda: of_two(privacy={"epsilon": True}), PROBLEM, ("epsilon", "[privacy]", "True")),
    Refusal("an unknown setting", lambda: of_two(privacy={"epsilons": 1.0}), PROBLEM, ("epsilon", "epsilons")),
    Refusal("a step in words", lambda: of_two(schedule={"c1": "one third"}), PROBLEM, ("schedule", "c1", "third")),
    Refusal("a schedule that is a list", lambda: of_two(schedule=["rounds"]), PROBLEM, ("[schedule]", "table", "rounds")),
    Refusal("a problem that is changed", lambda: setattr(p.readme(), "constraints", ()), AttributeError, ("constraints", "new")),
    Refusal("a point of another size", lambda: p.readme().evaluate([1.0, 2.0]), PROBLEM, ("x", "3", "(2,)")),
    Refusal("a problem that is not in the gallery", lambda: sv.gallery.get("hs1"), PROBLEM, ("hs1", "hs10", "paper")),
    Refusal("a number of the collection that is not there", lambda: sv.gallery.hock_schittkowski(1), PROBLEM, ("1", "10", "convex")),
]  # fmt: skip


@pytest.mark.parametrize(
    "row", listed(AGENTS + FORMULAS + OBJECTIVES + CONSTRAINTS + LOCAL + POINTS)
)
def test_what_cannot_be_stated_is_refused_by_name(row: Refusal) -> None:
    check(row)


def test_a_gradient_of_the_wrong_length_is_refused_when_it_is_called() -> None:
    x = sv.agents(["press", "kiln"], lower=0, upper=1)
    wrong = sv.Objective(gradient=lambda s: np.zeros(3))
    problem = sv.Problem(objectives=[wrong, x[1]], constraints=[x[0] + x[1] <= 1])
    check(
        Refusal(
            "a gradient of three numbers",
            lambda: sv.simulate(problem, rounds=2),
            sv.errors.InputError,
            ("gradient", "press", "3"),
        )
    )
