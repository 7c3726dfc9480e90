"""A run that had to stop at some states would tell of them: refused before the first round."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sympy as sp

from sottovoce.certify.certificate import certify
from sottovoce.errors import SottovoceError
from sottovoce.network.outputs import Outputs
from sottovoce.network.reach import check_reach
from sottovoce.network.rounds import noisy_sigma
from sottovoce.privacy.plan import NoisePlan, plan
from sottovoce.privacy.sampler import reach_of
from sottovoce.problem.agents import lower_bounds, states, upper_bounds
from sottovoce.problem.problem import Problem

Left = Callable[[Any, Any], Any]


def planned(lower: float, upper: float, left: Left, right: float) -> NoisePlan:
    x = states(2, lower=lower, upper=upper)
    problem = Problem(
        states=x,
        objectives=[(x[0] - 1) ** 2, (x[1] - 1) ** 2],
        constraints=[left(x[0], x[1]) <= right],
    )
    made = plan(certify(problem.cloud), epsilon=math.log(3), delta=0.05, radius=1.0)
    check_reach(made)
    return made


@pytest.mark.parametrize(
    ("lower", "upper", "left", "right"),
    [
        (-1, 10, lambda x, y: -sp.log(x) - y, 2),
        (-1, 10, lambda x, y: x ** sp.Rational(5, 2) + y, 2),
        (-1, 10, lambda x, y: (x + y + 1) ** sp.Rational(7, 2), 20),
        (-1, 10, lambda x, y: x**4 * sp.log(x) + y, 2),
        (0, 10, lambda x, y: y - sp.sqrt(x), 2),
        (0, 10, lambda x, y: sp.exp(-1 / x) + y, 2),
    ],
)
def test_a_formula_undefined_somewhere_in_the_domain_is_refused_before_the_first_round(
    lower: float, upper: float, left: Left, right: float
) -> None:
    with pytest.raises(SottovoceError):
        planned(lower, upper, left, right)


@pytest.mark.parametrize(
    ("lower", "upper", "left", "right"),
    [
        (0, 10, lambda x, y: -sp.log(x) - y, 2),
        (0, 10, lambda x, y: x ** sp.Rational(5, 2) + y, 2),
        (0, 10, lambda x, y: 1 / x + y, 2),
        (-10, 10, lambda x, y: sp.exp(x + y), 3),
        (-10, 10, lambda x, y: sp.sqrt(1 + x**2 + y**2), 300),
    ],
)
def test_what_is_planned_can_be_released_from_every_state_of_the_domain(
    lower: float, upper: float, left: Left, right: float
) -> None:
    made = planned(lower, upper, left, right)
    low, high = lower_bounds(made.domain), upper_bounds(made.domain)
    corners = [np.array(c) for c in itertools.product(*zip(low, high, strict=True))]
    inside = list(np.random.default_rng(0).uniform(low, high, (100, 2)))
    outputs, reach = Outputs(made), reach_of(noisy_sigma(made))
    for x in [*corners, *inside, np.clip([-0.0, -0.0], low, high)]:
        g, entries = outputs(x)
        assert np.all(np.abs(np.concatenate([g[made.sigma_g > 0], entries])) < reach)
