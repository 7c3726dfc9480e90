"""The test at the end of a run: what is confirmed keeps the constraints, whatever was done."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.certificate.certificate import Certificate
from sottovoce.certificate.contributions import sum_ranges
from sottovoce.privacy.averaging import answer_shares, answer_weights, weights_norm
from sottovoce.privacy.feasibility import (
    AveragedNoise,
    Feasibility,
    maximise_over_boxes,
    one_sided_sums,
    region_contains,
)
from sottovoce.privacy.margins import feasibility
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.groups import Array
from sottovoce.problem.sums import ball_of
from sympy_oracle import function_of

RUNS, ROUNDS = 20_000, 30


@cache
def two_rows() -> sv.Problem:
    x = sv.agents(2, lower=0, upper=5)
    return sv.Problem(
        objectives=[(x[0] - 3) ** 2, (x[1] - 2) ** 2],
        constraints={"sum": x[0] + x[1] <= 3, "squares": x[0] ** 2 + x[1] ** 2 <= 6},
    )


def kept(
    problem: sv.Problem, sigma: Any, rounds: int, probability: float, **more: Any
) -> Feasibility:
    """The margins for any noise on the sums, without a plan."""
    cloud = problem.cloud
    spread = np.broadcast_to(np.asarray(sigma, dtype=float), (cloud.sums.count,))
    noise = AveragedNoise(
        sigma=spread * weights_norm(rounds),
        rounding=np.zeros(cloud.sums.count),
        ranges=np.array(sum_ranges(cloud.sums, cloud.groups)),
        rounds=rounds,
    )
    return feasibility(cloud.sums, noise, probability, **more)


class Adversary:
    """An algorithm that knows the test and the noise so far, and aims at answers that just pass.

    Its states move both sums of ``two_rows`` as it likes: it steers the averaged release to where
    it is confirmed with nothing to spare, and lets the last rounds' noise decide.
    """

    def __init__(self, found: Feasibility, sigma: float, seed: int) -> None:
        self.found, self.sigma = found, sigma
        self.rng = np.random.default_rng(seed)
        self.edge = found.sums.upper - found.margin

    def runs(self) -> tuple[Array, Array]:
        """Averaged releases, and the sums at the answers, of all runs."""
        shares = answer_shares(np.arange(1, ROUNDS + 1), ROUNDS)
        averaged, x = np.zeros((RUNS, 2)), np.zeros((RUNS, 2))
        for share in shares:
            aim = np.clip(averaged + (self.edge - averaged) / share, [0.0, 0.0], [10.0, 20.0])
            state = np.stack([aim[:, 0] / 2.0, aim[:, 0] / 2.0], axis=1)
            s = np.stack([state.sum(axis=1), np.square(state).sum(axis=1)], axis=1)
            y = s + self.sigma * self.rng.normal(size=s.shape)
            averaged += share * (y - averaged)
            x += share * (state - x)
        return averaged, np.stack([x.sum(axis=1), np.square(x).sum(axis=1)], axis=1)


@pytest.mark.parametrize("each_row", [False, True])
def test_confirmed_answers_violate_with_the_stated_probability_at_most(each_row: bool) -> None:
    # One-sided, five standard deviations of RUNS coin tosses: false alarms once in 3 million.
    found = kept(two_rows(), 0.5, ROUNDS, 0.95, each_row=each_row)
    averaged, s = Adversary(found, 0.5, seed=1).runs()
    over = (s > found.sums.upper) & found.confirmed(averaged)[:, np.newaxis]
    rates = over.mean(axis=0) if each_row else over.any(axis=1).mean(keepdims=True)
    assert np.all(rates <= 0.05 + 5 * np.sqrt(0.05 * 0.95 / RUNS))
    assert found.confirmed(averaged).mean() > 0.5
    half = replace(found, margin=found.margin / 2)
    averaged, s = Adversary(half, 0.5, seed=1).runs()
    over = (s > found.sums.upper) & half.confirmed(averaged)[:, np.newaxis]
    assert over.any(axis=1).mean() > 0.05 + 5 * np.sqrt(0.05 * 0.95 / RUNS)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), rounds=st.integers(1, 60))
def test_sums_at_the_answer_are_the_averaged_release_less_its_noise(seed: int, rounds: int) -> None:
    rng = np.random.default_rng(seed)
    weights = answer_weights(rounds)
    noise, x = rng.normal(size=(rounds, 2)), np.cumsum(rng.normal(size=(rounds, 3)), axis=0)
    # Whatever the states are: here they even follow the noise.
    x[1:, 0] += np.cumsum(noise[:-1, 0]) ** 2
    affine, convex = x @ np.array([1.0, -2.0, 3.0]), np.square(x).sum(axis=1)
    averaged = weights @ (np.stack([affine, convex], axis=1) + noise)
    answer = weights @ x
    left = averaged - weights @ noise
    assert answer @ np.array([1.0, -2.0, 3.0]) == pytest.approx(left[0], rel=1e-9, abs=1e-9)
    assert np.square(answer).sum() <= left[1] * (1 + 1e-9) + 1e-9


def coupled_regions() -> sv.Problem:
    a, b, c, d = x = sv.agents(4, lower=-2, upper=2)
    return sv.Problem(
        agents=x,
        objectives=[a**2, b**2, c**2, d**2],
        constraints={
            "disc": (a - c) ** 2 + (b - d) ** 2 <= 4,
            "load": sv.exp(a + b) + c**2 <= 5,
            "balance": a + b + c == 1,
        },
    )


def test_a_region_is_confirmed_only_if_it_holds_everything_within_the_margin() -> None:
    problem = coupled_regions()
    sums, rng = problem.cloud.sums, np.random.default_rng(4)
    disc, load = sums.regions
    ball = ball_of(disc)
    assert ball is not None
    assert ball_of(load) is None
    y, away = rng.uniform(-2, 2, (300, 2)), rng.uniform(0.01, 0.8, (300, 2))
    zero, wide = np.zeros((300, 2)), np.array([[-9.0, 9.0]] * 2)
    held = np.array(
        [
            region_contains(disc, (p[None], m, zero[:1]), wide, [False] * 2)[0]
            for p, m in zip(y, away, strict=True)
        ]
    )
    angle = np.linspace(0, 2 * np.pi, 400)
    round_ = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    for point, axes, inside in zip(y, away, held, strict=True):
        far = np.linalg.norm(point - ball[0] + axes * round_, axis=1).max()
        assert inside == (far <= ball[1]) or abs(far - ball[1]) < 1e-3
    falls = one_sided_sums(load, sums)
    assert falls == [False, True]
    held = region_contains(load, (y, np.zeros(2), away), wide, falls)
    for point, axes, inside in zip(y, away, held, strict=True):
        # exp(a + b) is affine inside, so looked at from both sides; c^2 may fall.
        top = np.exp(point[0] + axes[0]) + point[1] + axes[1] - 5.0
        assert inside == (top <= 0.0)


Formula = Callable[..., Any]

POLES: list[tuple[Formula, tuple[float, float], float]] = [
    (lambda a, b, c, d: 1 / (1 - a - b) + 1 / (1 - c - d), (0.0, 0.45), 6.0),
    (lambda a, b, c, d: a**2 / b, (0.1, 3.0), 6.0),
    (lambda a, b, c, d: (a + b) ** 2 / (c + d) + a**2, (0.1, 2.0), 5.0),
    (lambda a, b, c, d: 1 / (4 - a**2 - b**2) + c + d, (-1.3, 1.3), 2.0),
    (lambda a, b, c, d: -sv.log(a + b) - sv.log(c + d) + d**2, (0.05, 2.0), 3.0),
    (lambda a, b, c, d: 1 / (a + b) ** 3 + 1 / (c + d), (0.2, 2.0), 6.0),
]


def over_one(formula: Formula, ends: tuple[float, float], most: float) -> sv.Problem:
    """Four agents under one constraint."""
    x = sv.agents(4, lower=ends[0], upper=ends[1])
    return sv.Problem(objectives=[s**2 for s in x], constraints={"curved": formula(*x) <= most})


@pytest.mark.parametrize("corners", [12, 1], ids=["corners", "intervals"])
@pytest.mark.parametrize("case", range(len(POLES)))
def test_poles_beyond_the_ranges_of_the_sums_confirm_nothing(
    case: int, corners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is confirmed is right at 1,000 points of the box where the sums can be."""
    monkeypatch.setattr("sottovoce.privacy.feasibility._MOST_CORNER_SUMS", corners)
    problem = over_one(*POLES[case])
    made = plan_of(problem, feasible=0.9, hide=sv.Trajectory(radius=1e-4, rounds=400))
    found, sums, rng = made.feasible, problem.cloud.sums, np.random.default_rng(case)
    assert found is not None
    (region,) = sums.regions
    assert list(region.rows) == list(range(sums.count))
    phi = function_of(region.symbols, region.phi)
    low, high = np.array(sum_ranges(sums, made.domain)).T
    width = high - low
    y = low - width + 3.0 * width * rng.random((1000, sums.count))
    off = width * np.exp(rng.uniform(-7.0, 1.0, (1000, 1)))
    held = found.confirmed(y, off)
    assert held.any()
    falls = one_sided_sums(region, sums)
    for point, away in zip(y[held], off[held] + found.margin, strict=True):
        least = np.where(falls, low, np.maximum(point - away, low))
        most = np.minimum(point + away, high)
        assert np.all(least <= most)
        inside = least + rng.random((1000, sums.count)) * (most - least)
        assert np.all(phi(inside.T) <= 0.0)
    # All of the range but a corner: nothing could be known of the sums.
    assert not found.confirmed(low - width, 1.9 * width).any()


@pytest.mark.parametrize(
    ("case", "hide"), [(0, sv.Everything(rounds=400)), (1, sv.Offset(radius=0.2, rounds=400))]
)
def test_poles_within_the_margin_leave_no_room(case: int, hide: Any) -> None:
    with pytest.raises(sv.errors.PrivacyError, match="feasible must leave room"):
        plan_of(over_one(*POLES[case]), feasible=0.95, hide=hide)


def test_poles_far_from_the_margin_change_nothing() -> None:
    problem = over_one(*POLES[0])
    made = plan_of(problem, feasible=0.95, hide=sv.Trajectory(radius=2e-3, rounds=400))
    found = made.feasible
    assert found is not None
    # phi is steepest where it ends: 1/u there is 6 - 1/(1 - 0) = 5, so that u is 0.2.
    away = float(found.margin[0]) + 4.0 * 400**-0.25 * float(made.sigma[0]) * weights_norm(400)
    assert found.target.tightening[0] == pytest.approx(
        1 / (0.2 - away) + 1 / (1 - away) - 6.0, rel=0.05
    )


def disc() -> sv.Problem:
    a, b, c, d = x = sv.agents(4, lower=-2, upper=2)
    return sv.Problem(
        agents=x,
        objectives=[a**2, b**2, c**2, d**2],
        constraints={"disc": (a - c) ** 2 + (b - d) ** 2 <= 4},
    )


def test_a_ball_with_held_agents_holds_the_corners_of_what_they_may_be_off_by() -> None:
    found = plan_of(disc(), feasible=0.9, hide=sv.Trajectory(radius=1e-6, rounds=400)).feasible
    assert found is not None
    diagonal = np.array([[0.85, 0.85]])
    assert found.confirmed(diagonal).all()
    assert np.linalg.norm(diagonal) + 0.79 < 2 < np.linalg.norm(diagonal + 0.79)
    assert not found.confirmed(diagonal, 0.79).any()
    # Rounding is no ellipsoid either.
    rounding = np.full(2, 0.79)
    wide = replace(found, margin=rounding, noise=replace(found.noise, rounding=rounding))
    assert not wide.confirmed(diagonal).any()


def test_a_ball_with_held_agents_holds_noise_and_box_together_and_no_more() -> None:
    found, rng = kept(disc(), [0.6, 0.1], 400, 0.9), np.random.default_rng(5)
    y, off = rng.uniform(-2, 2, (2000, 2)), np.exp(rng.uniform(-6, 0, (2000, 2)))
    held = found.confirmed(y, off)
    angle = np.linspace(0, 2 * np.pi, 400)
    noise = found.margin * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    for point, box, fine in zip(y, off, held, strict=True):
        far = np.linalg.norm(np.abs(point) + box + np.abs(noise), axis=1).max()
        assert not fine or far <= 2.0
        apart = np.linalg.norm(np.abs(point) + np.abs(noise), axis=1).max()
        assert fine or apart + np.linalg.norm(box) >= 1.999
    assert 0 < held.sum() < 2000


def unproven(kind: str) -> sv.Problem:
    """Constraints of which no counterexample is found, but no proof either."""
    if kind == "mixed":
        a, b, c = x = sv.agents(3, lower=-0.5, upper=1)
        quartic = a**4 + 3 * a**2 * b**2 + b**4 + c <= 2
        return sv.Problem(agents=x, objectives=[a**2, b**2, c**2], constraints={"load": quartic})
    ev = sv.agents(3, lower=-0.5, upper=1, dim=2)
    a, b = ev.x
    most = {"one": 2, "the second row": [99, 2], "never violated": 99}[kind]
    weights = np.ones((2, 3)) if kind == "the second row" else None
    total = sv.total(a**4 + 3 * a**2 * b**2 + b**4, weights=weights)
    return sv.Problem(agents=ev, objectives=a**2 + b**2, constraints={"load": total <= most})


@pytest.mark.parametrize("kind", ["one", "the second row", "mixed"])
def test_unproven_convexity_of_a_constraint_that_can_be_violated_is_refused(kind: str) -> None:
    words = r"feasible needs a proof for the convexity of .*load.*, got 'numerical': .*restate"
    problem = unproven(kind)
    with pytest.raises(sv.errors.PrivacyError, match=words):
        plan_of(problem, feasible=0.9, hide=sv.Trajectory(radius=1e-3, rounds=400))
    assert plan_of(problem).feasible is None


def test_unproven_convexity_of_a_constraint_that_nobody_can_violate_does_not_matter() -> None:
    made = plan_of(unproven("never violated"), feasible=0.9)
    assert made.feasible is not None
    assert not made.feasible.margins


def test_what_is_aimed_at_leaves_the_margin_and_the_lag() -> None:
    problem = coupled_regions()
    found = kept(problem, 0.2, 1000, 0.95)
    sums = found.sums
    equal = sums.lower == sums.upper
    assert np.array_equal(found.target.lower[equal], sums.lower[equal])
    assert np.all(found.band[equal] > found.margin[equal])
    disc, load = found.target.tightening
    ball = ball_of(sums.regions[0])
    assert ball is not None
    on_edge = np.array([[ball[1] - disc, 0.0]]) + np.array(ball[0])
    y = np.zeros((1, sums.count))
    y[:, list(sums.regions[0].rows)] = on_edge
    y[:, list(sums.regions[1].rows)] = [[-1.0, 0.5]]
    y[:, equal] = sums.lower[equal]
    assert found.confirmed(y).all()
    y[:, list(sums.regions[0].rows)] += 0.99 * disc
    assert not found.confirmed(y).any()
    region = sums.regions[1]
    edge = np.array([[np.log(4.0), 1.0]])
    away = found.margin[list(region.rows)]
    assert maximise_over_boxes(region, edge - away, edge + away, [False, True])[0] <= load


def test_a_constraint_that_no_state_can_violate_needs_no_margin() -> None:
    x = sv.agents(2, lower=0, upper=1)
    rows = {"idle": x[0] + x[1] <= 3, "busy": x[0] - x[1] <= 0.5}
    problem = sv.Problem(objectives=list(x**2), constraints=rows)
    found = kept(problem, 0.1, 100, 0.9)
    assert [margin.name for margin in found.margins] == ["busy"]
    assert found.target.upper[0] == 3.0


def test_an_answer_that_is_no_number_is_not_confirmed() -> None:
    found = kept(two_rows(), 0.1, 100, 0.9)
    assert not found.confirmed(np.full((1, 2), np.nan)).any()
    assert not found.confirmed(np.full((1, 2), -np.inf)).any()
    assert found.confirmed(np.zeros((1, 2))).all()


@cache
def certificate_of(problem: sv.Problem) -> Certificate:
    return sv.certify(problem)


def plan_of(problem: sv.Problem, **more: Any) -> NoisePlan:
    settings: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-3}
    settings["hide"] = sv.Trajectory(radius=0.1, rounds=400)
    return sv.plan(certificate_of(problem), **(settings | more))


def test_the_plan_says_margins_the_promise_and_the_cost() -> None:
    made = plan_of(two_rows(), feasible=0.95)
    text = str(made)
    assert "P(the answer is confirmed and violates one) <= 0.05, for all constraints" in text
    assert "sum: aimed at with a margin of" in text
    assert "% of its size" in text
    assert "Predicted cost: " in text
    assert made.feasible is not None
    assert made.feasible.cost is not None
    public = sv.plan(
        sv.certify(two_rows().cloud), epsilon=1.0, delta=1e-3, feasible=0.95,
        hide=sv.Trajectory(radius=0.1, rounds=400),
    )  # fmt: skip
    assert "each unit of margin its price" in str(public)
    assert np.array_equal(public.feasible.margin, made.feasible.margin)  # type: ignore[union-attr]
    assert "no margin was asked for" in str(plan_of(two_rows()))


def test_the_predicted_cost_is_about_price_times_margin() -> None:
    problem = two_rows()
    made = plan_of(problem, feasible=0.95, each_row=True,
                   hide=sv.Trajectory(radius=1e-3, rounds=400))  # fmt: skip
    found = made.feasible
    assert found is not None
    assert found.cost is not None
    mu = sv.reference_optimum(problem).mu
    first = sum(m * margin.tightening for m, margin in zip(mu, found.margins, strict=True))
    assert first < found.cost.more < 1.5 * first


def test_margins_for_each_row_are_smaller_and_a_split_cloud_has_larger_ones() -> None:
    changes: list[dict[str, Any]] = [{}, {"each_row": True}, {"trust": sv.SplitCloud()}]
    plans: list[Any] = [plan_of(two_rows(), feasible=0.95, **change) for change in changes]
    joint, single, split = (plan.feasible.margin for plan in plans)
    assert np.all(single < joint)
    np.testing.assert_allclose(split / joint, np.sqrt(2), rtol=1e-3)


def test_a_hard_constraint_is_not_planned_without() -> None:
    x = sv.agents(2, lower=0, upper=5)
    rows = {"fuse": sv.hard(x[0] + x[1] <= 3), "soft": x[0] - x[1] <= 2}
    problem = sv.Problem(objectives=list(x**2), constraints=rows)
    words = r"constraint fuse is hard, .*say feasible=0.95"
    with pytest.raises(sv.errors.PrivacyError, match=words):
        plan_of(problem)
    study = certificate_of(problem).for_study()  # of the noise, whose answers are never applied
    hide = sv.Trajectory(radius=0.1, rounds=400)
    assert sv.plan(study, epsilon=1.0, delta=1e-3, hide=hide).feasible is None


def test_a_plan_without_room_is_refused_with_what_would_do() -> None:
    problem = two_rows()
    narrow = sv.Trajectory(radius=20.0, rounds=400)
    with pytest.raises(sv.errors.PrivacyError, match="feasible must leave room") as refusal:
        plan_of(problem, feasible=0.95, hide=narrow)
    words = str(refusal.value)
    radius = float(words.split("a radius of ")[1].split(";")[0])
    epsilon = float(words.split("epsilon = ")[1].split(";")[0])
    rounds = int(words.split("; ")[-2].removesuffix(" rounds").replace(",", ""))
    for change in (
        {"hide": sv.Trajectory(radius=radius, rounds=400)},
        {"hide": narrow, "epsilon": epsilon},
        {"hide": sv.Trajectory(radius=20.0, rounds=rounds)},
    ):
        assert plan_of(problem, feasible=0.95, **change).feasible is not None
    with pytest.raises(
        sv.errors.PrivacyError, match=r"an offset of .* instead of everything"
    ) as refusal:
        plan_of(problem, feasible=0.95, hide=sv.Everything(rounds=400))
    offset = float(str(refusal.value).split("an offset of ")[1].split(" in every")[0])
    assert plan_of(problem, feasible=0.95, hide=sv.Offset(radius=offset, rounds=400)).feasible
    with pytest.raises(sv.errors.PrivacyError, match="to hide a trajectory of that radius instead"):
        plan_of(problem, feasible=0.95, hide=sv.Offset(radius=1.0, rounds=400))


# The answer's weights, of which the noise of averaged releases is made


@pytest.mark.parametrize("rounds", [1, 2, 10, 99, 1000, 99_999])
def test_weights_are_those_of_the_recursion_and_add_up_to_one(rounds: int) -> None:
    weights = answer_weights(rounds)
    assert weights.sum() == pytest.approx(1.0, rel=1e-12)
    values = np.random.default_rng(rounds).normal(size=rounds)
    answer = 0.0
    for share, value in zip(answer_shares(np.arange(1, rounds + 1), rounds), values, strict=True):
        answer += share * (value - answer)
    assert answer == pytest.approx(float(weights @ values), abs=1e-12)
    assert np.count_nonzero(weights) == rounds - int(0.1 * rounds + min(0.1 * rounds, 10.0))


@pytest.mark.parametrize("rounds", [100_001, 300_000])
def test_the_norm_of_many_weights_is_bounded_from_above_and_nearly_so(rounds: int) -> None:
    exact = float(np.linalg.norm(answer_weights(rounds)))
    assert exact <= weights_norm(rounds) <= exact * (1 + 1e-4)


def test_the_norm_of_few_weights_is_theirs_rounded_up() -> None:
    exact = float(np.linalg.norm(answer_weights(100)))
    assert exact < weights_norm(100) < exact * (1 + 1e-8)
    assert weights_norm(1) == pytest.approx(1.0)
