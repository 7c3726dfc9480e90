from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.errors import InputError, ProblemError
from sottovoce.formula.canonical import add
from sottovoce.formula.expression import symbol
from sottovoce.formula.parse import check_expression, parse_expression
from sottovoce.problem.fingerprint import fingerprint
from sottovoce.problem.groups import fleet_group, require_distinct_labels


def small(**changes: Any) -> sv.Problem:
    x = sv.agents(2, lower=-1, upper=1)
    parts: dict[str, Any] = {
        "agents": x,
        "objectives": [x[0] ** 2, (x[1] - 1) ** 2],
        "constraints": [x[0] + x[1] <= 1],
    }
    return sv.Problem(**(parts | changes))


@pytest.mark.parametrize("function", [sv.pos, lambda u: sv.maximum(u, -1, 0)])
def test_constant_pieces_of_a_maximum_are_no_rows(function: Callable[[Any], Any]) -> None:
    x = sv.agents(2, lower=-3, upper=3)
    problem = sv.Problem(
        objectives=[(s - 2) ** 2 for s in x], constraints=[function(x[0] + x[1]) <= 2]
    )
    assert problem.rows == 1
    assert sv.reference_optimum(problem).x == pytest.approx([1, 1])
    with pytest.raises(ProblemError, match=r"g1 must hold .* 1 too large: relax"):
        sv.Problem(objectives=list(x), constraints=[sv.maximum(x[0] + x[1], 3) <= 2])


def test_a_problem_whose_states_are_all_fixed_is_certified() -> None:
    x = sv.agents(2, lower=[1, 2], upper=[1, 2])
    problem = sv.Problem(objectives=[s**2 for s in x], constraints=[x[0] + x[1] <= 4])
    assert sv.certify(problem).holds
    assert sv.reference_optimum(problem).x == pytest.approx([1, 2])


def test_the_cloud_sees_public_parameters_and_an_agent_its_own_numbers() -> None:
    parameters = {"need": [0.25, 0.5], "draw": [1.0, 2.0]}
    ev = sv.agents(2, lower=0, upper=[[1.0], [2.0]], parameters=parameters)
    problem = sv.Problem(
        objectives=(ev.x - ev["need"]) ** 2, constraints=[sv.total(ev["draw"] * ev.x) <= 2]
    )
    assert {s.name for group in problem.cloud.groups for s in group.parameters} == {"draw"}
    assert not hasattr(problem.cloud, "objectives")
    agent = problem.agent(1)
    assert str(agent.objective) == "(x - 0.5)**2"
    assert agent.upper[0] == 2.0
    assert agent.name == "x2"


def test_a_problem_never_changes() -> None:
    problem = small()
    with pytest.raises(ValueError, match="read-only"):
        problem.groups[0].lower[0, 0] = 5.0


def test_the_default_start_is_the_point_of_the_box_nearest_zero() -> None:
    x = sv.agents(3, lower=[-1, 2, -5], upper=[1, 3, -4])
    problem = sv.Problem(objectives=[x[0], x[1], x[2]], constraints=[x[0] + x[1] + x[2] <= 3])
    np.testing.assert_array_equal(np.concatenate(problem.start).ravel(), [0, 2, -4])


def test_labels_of_agents_are_unique_in_a_problem() -> None:
    def stated(name: str) -> sv.Problem:
        x, fleet = sv.agents(2, lower=-1, upper=1), sv.agents(3, lower=-1, upper=1, name=name)
        row = sv.total(fleet.x) + x[0] + x[1] <= 3
        return sv.Problem(agents=[x, fleet], objectives=[0, 0, 0], constraints=[row])

    with pytest.raises(ProblemError, match="got x1 twice: in the agent x1 and in the fleet x of 3"):
        stated("x")
    assert stated("ev").cloud.agent_labels() == ["x1", "x2", "ev1", "ev2", "ev3"]


@given(
    st.dictionaries(
        st.sampled_from(["x", "x1", "x10", "x01", "x1_", "y", "x12", "x" + "1" * 5000]),
        st.integers(1, 130),
        min_size=1,
    )
)
def test_labels_clash_exactly_where_two_agents_are_called_the_same(groups: dict[str, int]) -> None:
    fleets = [fleet_group(count, lower=0, upper=1, name=name) for name, count in groups.items()]
    labels = [fleet.label(i) for fleet in fleets for i in range(fleet.count)]
    if len(set(labels)) == len(labels):
        require_distinct_labels(fleets)
    else:
        with pytest.raises(ProblemError, match="labels of agents must differ"):
            require_distinct_labels(fleets)


ONE = sv.agents(1, lower=0, upper=1, name="one")


# Other statements that are refused: ``tests/behaviour/test_refused_statements.py``.
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: small(objectives=[ONE.x != 1, 0]), "a set with a hole is not convex, got !="),
        (
            lambda: small(agents=ONE, objectives=ONE.x, constraints=[sv.total(ONE.x) + ONE.x <= 1]),
            "must name one once",
        ),
        (lambda: small().agent(2), r"from 0 to 1, got agent=2"),
    ],
)
def test_bad_input_gets_its_own_message(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        make()


def test_a_formula_has_one_fingerprint_however_it_was_written() -> None:
    a, b = symbol("a"), symbol("b")
    written = [
        3.5 * a + sv.exp(b) * 2 + (a - b) ** 2 * a,
        a * (a - b) ** 2 + 2 * sv.exp(b) + a * 3.5,
        parse_expression("exp(b)*2 + (a - b)^2*a + 3.5*a", {"a": a, "b": b}),
    ]
    checked = [check_expression(formula, {a, b}, "") for formula in written]
    assert len({fingerprint(formula) for formula in checked}) == 1
    assert fingerprint(add(checked[0], a)) != fingerprint(checked[0])


def test_one_counted_agent_beside_named_ones_has_its_own_objective() -> None:
    named = sv.agents(["a", "b"], lower=-1, upper=2)
    one = sv.agents(1, lower=-1, upper=2, name="f", parameters={"p": [0.3]})
    problem = sv.Problem(
        agents=[one, named],
        objectives=[one["p"] * one.x**2, named[0] ** 2, named[1] ** 2],
        constraints=[sv.total(one.x**2) + named[0] + named[1] <= 3],
    )
    assert problem.evaluate([2.0, 0.0, 1.0]).objective == pytest.approx(0.3 * 4 + 1)


def test_complex_numbers_are_refused_wherever_numbers_are_read() -> None:
    x = sv.agents(2, lower=-1, upper=1)
    imaginary = np.array([[1.0 + 1.0j, 1.0]])
    for weights in (imaginary, sparse.csr_array(imaginary)):
        with pytest.raises(ProblemError, match=r"A in A @ x.* must be real, got complex numbers: "):
            weights @ x
    with pytest.raises(ProblemError, match="upper bound of a must be numbers"):
        sv.agents(["a"], lower=0, upper=imaginary[0, :1])
    problem = sv.Problem(objectives=list(x**2), constraints=[x[0] + x[1] <= 1])
    with pytest.raises(InputError, match=r"x must be one vector .* got ndarray complex128"):
        problem.evaluate(imaginary[0])


def test_integers_beyond_float64_are_refused() -> None:
    x, large = sv.agents(2, lower=0, upper=1), 10**400
    for state in (
        lambda: x[0] * Fraction(large, 3),
        lambda: x[0] ** Fraction(large, 3),
        lambda: sv.total(x) / large,
        lambda: sv.total(x) <= large,
        lambda: sv.agents(2, lower=0, upper=large),
    ):
        with pytest.raises(InputError):
            state()
