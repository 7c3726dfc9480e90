"""The proposition for every convex problem, on a linear program and a curved problem in NumPy.

Agents have proximal terms as they run, prices a fixed metric D from the ranges of the sums:

    lambda := [lambda + D (h(x) + w - b)]_+,   z += (x - z)/2,
    x := argmin over the box of c'x + q/2 |x|^2 + lambda'h(x) + rho |x - z|^2 / 2

with ``h(x) = A x + B x^2``, and plain averages; U is the indicator of ``s <= b``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import linprog

from sottovoce.problem.groups import Array

RUNS = 24
SIGMA = np.array([1.0, 2.0])


@dataclass(frozen=True)
class Example:
    """Six agents in boxes from 0 under two rows; flat where q and B are 0."""

    c: Array
    q: Array
    A: Array
    B: Array
    most: Array
    upper: Array

    def sums(self, x: Array) -> Array:
        return np.asarray(x @ self.A.T + x**2 @ self.B.T)

    def objective(self, x: Array) -> Array:
        return np.asarray(x @ self.c + x**2 @ self.q / 2)

    @property
    def middle(self) -> Array:
        """Of the sums' ranges, which half their largest values reach: nothing is negative."""
        return np.asarray(self.sums(self.upper) / 2)

    def metric(self, rounds: int) -> Array:
        """D: any number without a unit of its own may stand here, 10 is of this objective."""
        return np.asarray(10.0 / (self.middle**2 + SIGMA**2) / np.sqrt(rounds))


def example(*, flat: bool) -> Example:
    rng = np.random.default_rng(3)
    A, c = rng.uniform(0.2, 2.0, (2, 6)), -rng.uniform(0.5, 3.0, 6)
    q, B = rng.uniform(0.0, 0.5, 6), rng.uniform(0.0, 0.5, (2, 6))
    upper = rng.uniform(1.0, 5.0, 6)
    most = 0.4 * (A @ upper)
    return Example(c, q * (not flat), A, B * (not flat), most, upper)


@dataclass
class Rounds:
    """What the proposition speaks of, of every run: averages, and both sides of its inequality."""

    x: Array
    last: Array
    price: Array
    slack: Array  # of ``sum_k L(x(k+1), l) - L(x, l(k+1)) <= ...`` at the points asked for


def run(e: Example, rounds: int, *, center: float = 0.5, at: tuple[Array, Array]) -> Rounds:
    """All rounds; the centre moves by a share of ``x - z``, and x and l are ``at``."""
    rng, d, rho = np.random.default_rng([7, rounds]), e.metric(rounds), 0.5
    x, price = np.zeros((RUNS, 6)), np.zeros((RUNS, 2))
    z, start = x.copy(), x.copy()
    mean_x, mean_price, right = 0.0 * x, 0.0 * price, np.zeros(RUNS)
    x_at, price_at = at
    left = np.zeros(RUNS)
    for _ in range(rounds):
        s, w = e.sums(x), SIGMA * rng.standard_normal((RUNS, 2))
        right += np.sum(d * (s - e.middle + w) ** 2, axis=1) / 2
        right += np.sum(w * (price - price_at), axis=1)
        price = np.maximum(price + d * (s + w - e.most), 0.0)
        z = z + center * (x - z)
        force, curve = e.c + price @ e.A, e.q + 2 * price @ e.B + rho
        x = np.clip((rho * z - force) / curve, 0.0, e.upper)
        left += e.objective(x) + (e.sums(x) - e.most) @ price_at
        left -= e.objective(x_at) + (e.sums(x_at) - e.most) @ price.T
        mean_x, mean_price = mean_x + x / rounds, mean_price + price / rounds
    right += np.sum(price_at**2 / d) + rho * np.sum((x_at - start) ** 2, axis=1)
    right += np.sum(d * e.middle**2)
    return Rounds(mean_x, x, mean_price, right - left)


def optimum(e: Example) -> Array:
    return np.asarray(linprog(e.c, e.A, e.most, bounds=np.column_stack([0 * e.upper, e.upper])).x)


def errors(e: Example, x: Array) -> tuple[float, float]:
    """The root-mean-square violation, and the mean size of the objective's error."""
    over = np.maximum(e.sums(x) - e.most, 0.0)
    off = np.abs(e.objective(x) - e.objective(optimum(e)))
    return float(np.sqrt(np.mean(np.sum(over**2, axis=1)))), float(np.mean(off))


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("rounds", [10, 300])
def test_the_inequality_behind_the_proposition_holds_in_every_run(flat: bool, rounds: int) -> None:
    e, rng = example(flat=flat), np.random.default_rng(1)
    for _ in range(5):
        at = rng.uniform(0.0, e.upper), rng.uniform(0.0, 3.0, 2)
        assert np.all(run(e, rounds, at=at).slack >= -1e-9)


def test_flat_agents_come_to_the_optimum_as_the_root_of_the_rounds() -> None:
    """Sixteen times the rounds: a quarter of both errors, with a third of it to spare."""
    e, at = example(flat=True), (np.zeros(6), np.zeros(2))
    few, many = (errors(e, run(e, rounds, at=at).x) for rounds in (1_000, 16_000))
    assert many[0] < few[0] / 3
    assert many[1] < few[1] / 3


def test_the_bound_of_the_proposition_holds() -> None:
    e, rounds, rho = example(flat=True), 1_000, 0.5
    d, x_hat = e.metric(rounds), optimum(e)
    answer = run(e, rounds, at=(x_hat, np.zeros(2))).x
    noise, ranges = np.sum(d * SIGMA**2), np.sum(d * e.middle**2)
    bound = (rho * np.sum(x_hat**2) + ranges) / rounds + ranges / 2 + noise
    over = np.maximum(e.sums(answer) - e.most, 0.0)
    reached = e.objective(answer) - e.objective(x_hat) + rounds / 6 * np.sum(d * over**2, axis=1)
    assert np.mean(reached) <= bound


def test_broken_versions_are_noticed() -> None:
    e, at = example(flat=True), (np.zeros(6), np.zeros(2))
    few, many = (run(e, rounds, at=at) for rounds in (1_000, 16_000))
    last = errors(e, few.last), errors(e, many.last)
    assert last[1][0] > last[0][0] / 3  # no averaging
    few, many = (run(e, rounds, center=0.0, at=at) for rounds in (1_000, 16_000))
    kept = errors(e, few.x), errors(e, many.x)
    assert kept[1][1] > kept[0][1] / 3  # a centre that stays where it began
    far = run(e, 16_000, center=0.0, at=(optimum(e), np.zeros(2)))
    assert np.all(far.slack < 0.0)
