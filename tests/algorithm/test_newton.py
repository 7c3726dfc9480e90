"""Minimising a convex function on a box from its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.algorithm.newton import minimise_vector


def optimal(gradient: Any, x: Any, lower: Any, upper: Any) -> float:
    """How far a projected gradient step leads from x: 0 at the minimiser."""
    return float(np.max(np.abs(x - np.clip(x - gradient(x), lower, upper))))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 12), condition=st.floats(0, 4))
def test_quadratics_on_boxes_are_minimised(seed: int, size: int, condition: float) -> None:
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(size, size)))[0]
    hessian = turn * 10 ** rng.uniform(-condition, 0, size) @ turn.T
    target = rng.normal(size=size) * 2
    lower, upper = -rng.uniform(0, 2, size), rng.uniform(0, 2, size)
    upper[rng.uniform(size=size) < 0.2] = 0.0
    lower[upper == 0.0] = 0.0
    weight = rng.uniform(0, 1, size) * rng.integers(0, 2)
    anchor = rng.uniform(lower, upper)

    def gradient(x: Any) -> Any:
        return hessian @ (x - target)

    x = minimise_vector(lambda context, v: gradient(v), None, anchor, lower, upper, weight)
    assert np.all((x >= lower) & (x <= upper))
    assert optimal(lambda v: gradient(v) + weight * (v - anchor), x, lower, upper) < 1e-8


GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "charger": lambda x: 0.1 + 0.004 * x + 0.8 * (x.sum() - 9.0) + np.linspace(0, 0.05, x.size),
    "exponential": lambda x: np.exp(x) + x - 1.5 + x.mean(),
    "eighth": lambda x: 8 * (x - 1) ** 7 + 0.1 * x,
    "linear": lambda x: np.linspace(-1, 1, x.size),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("start", [-3.0, 0.0, 2.5])
def test_stiff_flat_and_linear_functions_are_minimised_too(name: str, start: float) -> None:
    lower, upper = np.full(24, -3.0), np.full(24, 7.4)
    lower[20:] = upper[20:] = 0.0
    asked = []

    def gradient(context: Any, x: Any) -> Any:
        asked.append(1)
        return GRADIENTS[name](x)

    anchor = np.clip(np.full(24, start), lower, upper)
    x = minimise_vector(gradient, None, anchor, lower, upper, np.zeros(24))
    assert optimal(GRADIENTS[name], x, lower, upper) < 1e-9
    assert len(asked) < 300


def test_an_agent_already_there_stays_to_the_bit() -> None:
    anchor = np.array([0.5, -0.5])
    x = minimise_vector(lambda c, v: v - anchor, None, anchor, -np.ones(2), np.ones(2), np.zeros(2))
    np.testing.assert_array_equal(x, anchor)


def test_a_gradient_that_is_no_number_gives_no_number() -> None:
    x = minimise_vector(
        lambda context, v: np.array([1.0, np.nan]), None, np.zeros(2), -np.ones(2), np.ones(2),
        np.zeros(2),
    )  # fmt: skip
    assert np.isnan(x).any()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_no_gradient_is_asked_for_outside_the_box(seed: int) -> None:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(3, 3))
    target, anchor = rng.normal(size=3), rng.choice([0.0, 0.5, 1.0], size=3)
    asked = []

    def gradient(context: Any, x: Any) -> Any:
        asked.append(x)
        return root.T @ root @ (x - target)

    minimise_vector(gradient, None, anchor, np.zeros(3), np.ones(3), np.zeros(3))
    assert np.min(asked) >= 0.0
    assert np.max(asked) <= 1.0
