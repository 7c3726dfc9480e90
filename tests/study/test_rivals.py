"""Rivals: the noise that their theorems ask for, where they lead without noise, and who may run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import sottovoce as sv
from sottovoce.algorithm.public_sum import public_sums
from sottovoce.certificate.certificate import certify
from sottovoce.certificate.optimum import reference_optimum, saddle_prices
from sottovoce.errors import InputError
from sottovoce.kernels.cloud_kernel import CloudKernel
from sottovoce.privacy.gaussian import delta_of
from sottovoce.problem import gallery
from sottovoce.problem.problem import Problem
from sottovoce.study.compare import compare
from sottovoce.study.promise import Promise
from sottovoce.study.rivals import RIVALS, references
from sottovoce.study.rivals.dual_prices import (
    STEPS,
    EntropicAscent,
    composed_sigma,
    fixed_step,
    renyi_sigma,
)
from sottovoce.study.rivals.hale_egerstedt import laplace, laplace_scales
from sottovoce.study.rivals.han import broadcast_noise
from sottovoce.study.rivals.output_perturbation import diameter_sigma
from sottovoce.study.rivals.rival import (
    JOINT,
    OWN,
    PAPER,
    Answers,
    RefusedMethod,
    RivalRun,
    RivalTask,
    change_per_round,
    simulated,
    with_sigma,
)

PROMISES = [(0.1, 1e-6), (1.0, 1e-3), (math.log(3), 0.05), (5.0, 1e-9)]


def line() -> Problem:
    x = sv.agents(2, lower=-2, upper=2)
    return Problem(
        objectives=[(x[0] - 1) ** 2, (x[1] - 1) ** 2],
        constraints=[x[0] + 3 * x[1] <= 1],
        schedule={"gamma_bar": 0.2, "alpha_bar": 0.01},
    )


def mixed() -> Problem:
    """A disc of two sums, one of them ten times as large, and an interval, both active."""
    x = sv.agents(3, lower=-2, upper=2)
    return Problem(
        objectives=[(x[0] - 1.5) ** 2, (x[1] - 1) ** 2, (x[2] + 1) ** 2],
        constraints=[(x[0] + 10 * x[1]) ** 2 + x[2] ** 2 <= 9, abs(x[0] + x[2]) <= 0.25],
    )


def task_of(
    problem: Problem,
    rounds: int = 50,
    *,
    runs: int = 1,
    calm: bool = False,
    epsilon: float = 1.0,
    hide: str = "offset",
    radius: float | None = 0.1,
) -> RivalTask:
    """A promise for rivals; ``calm`` takes noise and what would ask for it away."""
    promise = Promise(epsilon=epsilon, delta=1e-3, hide=hide, radius=radius)
    certificate = certify(problem)

    def planner(method: str = "joint", **settings: Any) -> Any:
        plan = promise.plan(problem, certificate, rounds=rounds, method=method, **settings)
        if not calm:
            return plan
        quiet = with_sigma(plan, 1e-7 * plan.sigma)
        return replace(quiet, epsilon=np.full(plan.epsilon.shape, 1e9))

    return RivalTask(
        problem=problem, certificate=certificate, plan=planner(), planner=planner,
        saddle=reference_optimum(problem), rounds=rounds, runs=runs, seed=3, executor=None,
    )  # fmt: skip


def runs_of(name: str, task: RivalTask) -> dict[str, RivalRun]:
    items = RIVALS[name].runs(task)
    return {item.noise: item for item in items if isinstance(item, RivalRun)}


def carried_out(run: RivalRun) -> Answers:
    return run.answers(lambda *_: None)


# --- the noise of each theorem -------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta"), PROMISES)
@pytest.mark.parametrize("rounds", [1, 100, 10_000])
def test_composition_gives_the_noise_that_it_says_and_keeps_the_promise(
    epsilon: float, delta: float, rounds: int
) -> None:
    sigma = composed_sigma(epsilon, delta, rounds, 2.5)
    each = epsilon / math.sqrt(8 * rounds * math.log(2 / delta))
    assert sigma == pytest.approx(2.5 * math.sqrt(2 * math.log(2.5 * rounds / delta)) / each)
    assert delta_of(math.sqrt(rounds) * 2.5 / sigma, epsilon) < delta


@pytest.mark.parametrize(("epsilon", "delta"), PROMISES)
@pytest.mark.parametrize("rounds", [1, 100, 10_000])
def test_renyi_noise_is_the_least_that_any_order_allows_and_keeps_the_promise(
    epsilon: float, delta: float, rounds: int
) -> None:
    sigma = renyi_sigma(epsilon, delta, rounds, 2.5)

    def spent(log_order: float) -> float:
        order = 1.0 + math.exp(log_order)
        return order * rounds * 2.5**2 / (2 * sigma**2) - math.log(delta) / (order - 1.0)

    assert minimize_scalar(spent, bounds=(-10, 15)).fun == pytest.approx(epsilon, rel=1e-6)
    assert delta_of(math.sqrt(rounds) * 2.5 / sigma, epsilon) < delta


def test_changes_are_by_agent_and_round_whatever_the_trajectory() -> None:
    # Agent 2 moves the sum by 3 per unit: by 0.3 for a radius of 0.1.
    offset = change_per_round(task_of(line()))
    assert (offset.unit[0], offset.size) == pytest.approx((0.3, 1.0))
    widths = [float(g.upper[0, 0] - g.lower[0, 0]) for g in task_of(line()).plan.domain]
    assert offset.width[0] * 0.3 == pytest.approx(widths[0] + 3 * widths[1])
    trajectory = change_per_round(task_of(line(), hide="trajectory"))
    assert trajectory.unit[0] == pytest.approx(0.3)
    everything = change_per_round(task_of(line(), hide="everything", radius=None))
    assert everything.unit[0] == pytest.approx(3 * widths[1])


@pytest.mark.parametrize("name", ["hhrw", "ndmd"])
def test_a_rival_on_sums_runs_with_its_own_noise_and_with_ours_which_is_less(name: str) -> None:
    sigma = {"hhrw": composed_sigma, "ndmd": renyi_sigma}[name](1.0, 1e-3, 50, 1.0)
    task = task_of(line())
    runs = runs_of(name, task)
    own = runs[OWN].plan
    assert own is not None
    assert own.sigma == pytest.approx([0.3 * sigma])
    assert runs[JOINT].plan is task.plan
    assert task.plan.sigma[0] < own.sigma[0]
    # Where ours were more, there is nothing to gain by it.
    loud = replace(task, plan=with_sigma(task.plan, 10 * own.sigma))
    assert set(runs_of(name, loud)) == {OWN}


def test_laplace_numbers_have_their_quantiles() -> None:
    z = np.random.default_rng(0).normal(size=100_000)
    drawn = laplace(z)
    assert np.array_equal(np.sign(drawn), np.sign(z))
    for t in (0.1, 1.0, 3.0):  # within five standard deviations
        share, expected = np.mean(np.abs(drawn) < t), 1 - math.exp(-t)
        assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / drawn.size)


def test_laplace_scales_add_up_outputs_of_a_mechanism_for_the_worst_agent() -> None:
    # Agent 1 moves the first two outputs by 1 + 2, agent 2 by 0 + 4, over a reach of 1 and 0.5.
    S = np.array([[1.0, 0.0], [2.0, 4.0], [0.0, 8.0]])
    scales = laplace_scales(S, np.array([1.0, 0.5]), np.array([-1, -1, 0]), 25, 0.5)
    assert scales == pytest.approx([30.0, 30.0, 40.0])  # sqrt(25) (3 and 4) / 0.5
    few, many = (
        runs_of("laplace", task_of(line(), rounds, hide="trajectory"))[OWN].plan
        for rounds in (25, 100)
    )
    assert few is not None
    assert many is not None
    # One mechanism: constant gradients need none. sqrt(2) b K sqrt(T) / epsilon.
    assert few.sigma == pytest.approx([math.sqrt(2) * 0.1 * 3 * 5])
    assert many.sigma == pytest.approx(2 * few.sigma)


def test_a_broadcast_gradient_has_noise_of_the_stated_norm_and_of_any_direction() -> None:
    noise = broadcast_noise(np.random.default_rng(0).normal(size=(40_000, 4)), 48.0)
    length = np.linalg.norm(noise, axis=1)  # Gamma(3): mean 3, variance 3
    assert abs(length.mean() / 48.0 - 3.0) < 5 * math.sqrt(3.0 / length.size)
    assert length.var() / 48.0**2 == pytest.approx(3.0, rel=0.06)
    direction = (noise / length[:, np.newaxis]).mean(axis=0)
    assert np.abs(direction).max() < 5 * math.sqrt(1 / 3 / length.size)


def test_a_broadcast_gradient_splits_epsilon_over_the_rounds() -> None:
    # U = 2 (s + 3)^2, and an offset of 0.1 that one agent doubles: T L Delta / epsilon.
    x = sv.agents(2, lower=0, upper=1)
    problem = sv.Problem(objectives=list(x**2), cost=2 * (x[0] + 2 * x[1] + 3) ** 2)
    own, joint = runs_of("han", task_of(problem, 40)).values()
    assert isinstance(own.answers, partial)
    assert isinstance(joint.answers, partial)
    (Q, c), scale = own.answers.args[1:]
    assert (*Q[0], *c) == (4.0, 12.0)
    assert scale == pytest.approx(40 * 4 * 0.2 / 1.0)
    assert joint.answers.args[2] == 0.0


@pytest.mark.parametrize(("epsilon", "delta"), PROMISES)
def test_output_perturbation_hides_any_move_within_the_box(epsilon: float, delta: float) -> None:
    width = np.array([4.0, 0.0, 10.0])
    sigma = diameter_sigma(width, epsilon, delta)
    assert sigma[1] == 0.0
    mu = math.hypot(*(width[[0, 2]] / sigma[[0, 2]]))
    assert delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-6)


# --- without noise -------------------------------------------------------------------------------


def valley() -> Problem:
    return gallery.smart_charging(5, hours=4, network="valley")


@pytest.mark.parametrize(
    ("name", "make", "rounds", "power"),
    [
        ("hhrw", line, 500, 1 / 2), ("hhrw", mixed, 1_000, 1 / 2),
        ("hhrw", gallery.dispatch, 1_000, 1 / 2), ("ndmd", line, 3_000, 1 / 2),
        ("ndmd", mixed, 6_000, 1 / 2), ("laplace", line, 1_000, 1 / 4), ("han", valley, 100, 1 / 2),
    ],
)  # fmt: skip
def test_without_noise_a_rival_comes_to_the_optimum_by_its_rate(
    name: str, make: Callable[[], Problem], rounds: int, power: float
) -> None:
    # Steps of T^-1/2 leave averages errors of T^-1/2; regularisation of k^-1/4 leaves k^-1/4.
    short, long = (task_of(make(), count, calm=True) for count in (rounds, 4 * rounds))
    for noise, run in runs_of(name, long).items():
        hat = long.saddle.mu if run.multipliers else saddle_prices(long.problem, long.saddle)
        before, after = carried_out(runs_of(name, short)[noise]), carried_out(run)
        for true, first, second in (
            (long.saddle.x, before.x, after.x), (hat, before.price, after.price)
        ):  # fmt: skip
            error = np.linalg.norm(second - true)
            assert error < 1.2 * 4**-power * np.linalg.norm(first - true)
            assert error < 0.2 * np.linalg.norm(true)


def test_the_last_iterate_of_private_sets_is_the_optimum_itself() -> None:
    task = task_of(valley(), 500, calm=True)
    for run in runs_of("han", task).values():
        assert carried_out(run).last_x[0] == pytest.approx(task.saddle.x, abs=1e-6)


def test_the_laplace_variant_takes_the_steps_of_the_paper() -> None:
    task = task_of(gallery.get("hs22"), 200, calm=True, runs=2)
    theirs, papers = (
        carried_out(runs_of(name, task)[noise]) for name, noise in (("laplace", OWN),
                                                                    ("paper", PAPER))
    )  # fmt: skip
    np.testing.assert_allclose(theirs.x, papers.x, atol=1e-5)
    np.testing.assert_allclose(theirs.price, papers.price, atol=1e-5)


def test_entropic_prices_never_add_up_to_more_than_their_total() -> None:
    problem = mixed()
    public = public_sums(problem.cloud.sums, problem.groups, None)
    nearest = CloudKernel(public, sv.DualAveraging(), planned=False).nearest
    unit = np.array([1.0, 2.0, 0.5])
    ascent = EntropicAscent(unit=unit, rate=0.1, total=3.0)
    price, memory, rng = np.zeros(3), np.zeros(3), np.random.default_rng(0)
    for k in range(1, 50):
        y = 40.0 * rng.normal(size=3)
        price = ascent.cloud_round(k, y, price, memory, public, nearest)
        assert np.abs(price * unit).sum() < 3.0 + 1e-9
    assert np.abs(price).min() > 0.0


# --- the best fixed step -------------------------------------------------------------------------


def test_the_best_fixed_step_is_the_best_of_those_tried_on_the_same_seeds() -> None:
    task = task_of(line(), 100, runs=4)
    (run,) = runs_of("hindsight", task).values()
    best = carried_out(run)

    def error(answers: Answers) -> float:
        return float(np.sum((answers.x - task.saddle.x) ** 2))

    others = [
        error(simulated(task, task.plan, fixed_step(task, s), lambda *_: None)) for s in STEPS
    ]
    assert error(best) == min(others)
    assert max(others) > 2 * min(others)
    assert best.note == f"s = {STEPS[int(np.argmin(others))]:g}"


# --- in a comparison -----------------------------------------------------------------------------


def compared(problem: Problem, rivals: Sequence[str], **change: Any) -> Any:
    asked: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-3, "hide": "offset", "radius": 0.1}
    settings: dict[str, Any] = {"rounds": [20], "runs": 4, "seed": 3}
    return compare(problem, rivals=rivals, **(asked | settings | change))


def test_all_rivals_are_rows_or_say_why_not() -> None:
    found = compared(line(), list(RIVALS))
    assert [(row.plan, row.algorithm.partition(" (")[0]) for row in found.rows] == [
        (PAPER, "Tikhonov"), (OWN, "Laplace 2018"), (OWN, "HHRW 2016"), (OWN, "NDMD 2024"),
        (OWN, "output"), (JOINT, "DualAveraging"), (JOINT, "Tikhonov"),
        (JOINT, "HHRW 2016"), (JOINT, "NDMD 2024"), (JOINT, "best step"),
    ]  # fmt: skip
    (refusal,) = found.refusals
    assert refusal == RefusedMethod(
        "Han et al. 2017",
        "it minimises a public cost of the sums and no more, got constraints alone",
    )
    alone = compared(line(), ["ndmd"])
    assert [row for row in alone.rows if row.algorithm != "DualAveraging"] == [
        row for row in found.rows if row.algorithm == "NDMD 2024"
    ]


@pytest.mark.parametrize(
    ("name", "network", "why"),
    [
        ("hhrw", "valley", "it knows constraints alone, got a public cost"),
        ("ndmd", "soft", "it knows constraints alone, got a public cost"),
        ("han", "peak", "it needs a quadratic public cost"),
        ("han", "dispatch", "it minimises a public cost of the sums and no more"),
        ("laplace", "valley", "gradient steps keep agents in boxes"),
        ("paper", "valley", "the paper's plan knows no public cost"),
    ],
)
def test_a_rival_that_does_not_apply_says_why(name: str, network: str, why: str) -> None:
    if network == "dispatch":
        problem = gallery.dispatch()
    else:
        problem = gallery.smart_charging(5, hours=4, network=network)
    found = compared(problem, [name], runs=1)
    assert {row.algorithm for row in found.rows} == {"DualAveraging"}
    assert why in found.refusals[0].why
    assert why in str(found)


def test_prices_that_are_all_zero_leave_the_dual_rivals_no_room() -> None:
    x = sv.agents(2, lower=-2, upper=2)
    slack = Problem(objectives=[x[0] ** 2, x[1] ** 2], constraints=[x[0] + x[1] <= 3])
    found = compared(slack, ["hhrw", "ndmd"])
    assert len(found.refusals) == 2
    assert all("no constraint is active" in refusal.why for refusal in found.refusals)


def test_a_method_that_beats_the_default_is_named() -> None:
    found = compared(line(), ["hindsight"])
    default, rival = (
        next(row for row in found.rows if row.algorithm.startswith(name))
        for name in ("DualAveraging", "best step")
    )
    won, lost = (
        str(replace(found, rows=(replace(default, x=x), rival))) for x in (2 * rival.x, rival.x / 2)
    )
    assert "beats the default after 20 rounds with the noise 'joint': 0.50 of its error" in won
    assert ", which knows the optimum, beats" in won
    assert "beats" not in lost


@pytest.mark.parametrize("rivals", [["hhrw", "nmdm"], "hhrw", [None], 7])
def test_unknown_rivals_are_refused_with_the_names_of_all(rivals: Any) -> None:
    with pytest.raises(InputError, match="paper, laplace, hhrw, ndmd, han, output, hindsight"):
        compared(line(), rivals)


def test_the_references_are_those_of_the_methods_that_were_asked_for() -> None:
    text = references([RIVALS["ndmd"], RIVALS["hindsight"], RIVALS["paper"]])
    assert text.count("\n@") + text.startswith("@") == 2
    assert "@inproceedings{ChenChua2024," in text
    assert "{HaleEgerstedt2015," in text
    for rival in RIVALS.values():
        assert (f"{{{rival.cites}," in references([rival])) == bool(rival.cites)
