"""Certificates, noise plans, guarantees, margins and budgets, pinned to the printed digit."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import doors as d
import numpy as np
import problems as p
import pytest

import sottovoce as sv

pytestmark = pytest.mark.core
DIGITS = 2e-6
"""Relative: plans print six digits, and the allocation is solved to as many."""

SHORT = sv.Trajectory(radius=0.5, rounds=200)
SIGMAS: dict[str, tuple[Any, list[float]]] = {
    "readme": (p.readme, [1.82055756, 16.6092819]),
    "bakeries": (p.bakeries, [1.28732991]),
    "valves": (p.valves, [11.4471356]),
    "mixed": (p.mixed, [15.0677133, 2.13087500, 9.44106887, 2.47718579]),
    "nonsmooth": (p.nonsmooth, [1.82056023, 1.82056023]),
    "flows": (p.flows, [0.838057920, 0.888894661, 2.73626062]),
    "small fleet": (p.small_fleet, [1.28733093] * 3),
    "rates": (p.rates, [1.82056139] * 4),
    "ev-fleet": (p.ev_fleet, [1.28733131] * 4),
    "robots": (p.robots, [1.82056139] * 4),
    "regression": (p.regression, [1.28732991]),
    "load-shedding": (p.shedding, [1.28733131] * 4),
}
SENSITIVITIES: dict[str, tuple[Any, Any]] = {
    "readme": (p.readme, [[1, 1, 1], [0, 9.123157348, 9.123157348]]),
    "bakeries": (p.bakeries, [[1, 1, 1]]),
    "valves": (p.valves, [[8.892153845, 1]]),
    "mixed": (p.mixed, [[1, 10, 0], [0, 0, 1], [4.430517, 0, 4.430517], [1, 1, 1]]),
    "nonsmooth": (p.nonsmooth, [[1, 1], [1, 1]]),
    "flows": (p.flows, [[0.5, 0.2, 0.1], [0.3, 0.3, 0.6], [1, 1, 1]]),
    "dispatch": (p.dispatch, [[1] * 4, [0.4, 0.3, 0.1, 0.2], [0.1, 0.2, 0.5, 0.3]]),
    "robots": (p.robots, [[1, 1, 0], [1, 1, 0], [0, 1, 1], [0, 1, 1]]),
    "hs11": (lambda: d.gallery("hs11"), None),
}
GALLERY = {
    "paper": ([1.0, 9.1231573, 7.4218071, 4.5615787], [0.7471115, 2.348906, 2.035556, 1.316308]),
    "hs10": ([1.0, 1.0], [0.2574662, 0.2730841]),
    "hs11": ([6.4510464], [1.660925]),
    "hs21": ([10.0], [2.57466]),
    "hs22": ([1.0, 4.080525], [0.4156499, 1.338252]),
    "hs34": ([2.3218697, 10.1311106], [0.5978029, 2.890211]),
    "hs43": ([9.0728269, 12.4167013, 13.6529647], [3.300284, 3.960249, 4.877406]),
    "hs48": ([1.4142136, 2.8284271], [0.5731239, 0.9429831]),
    "hs52": ([2.0, 1.0], [0.630659, 0.4459471]),
    "hs66": ([2.3218697, 10.1311106], [0.5978029, 2.890211]),
    "hs72": ([0.0028561, 0.000635], [0.000864104, 0.0002240297]),
    "coupled": (
        [1.0, 1.0, 10.0, 1.0, 7.9102257], [0.3641198, 0.3641069, 2.574665, 0.3641054, 2.880258]
    ),
    "dispatch": ([1.0], [0.257466]),
}  # fmt: skip


@cache
def certified(make: Any) -> Any:
    return d.certify(make())


@cache
def paper() -> Any:
    return d.certify(d.gallery("paper"))


@cache
def bakeries() -> Any:
    return d.certify(p.bakeries())


def planned(certificate: Any, **changed: Any) -> Any:
    promise: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 0.01,
        "hide": sv.Trajectory(radius=2.0, rounds=500),
    }
    return d.plan(certificate, **(promise | changed))


# Certificates


@pytest.mark.parametrize("name", SIGMAS)
def test_everything_assumed_is_proven_or_checked(name: str) -> None:
    certificate = certified(SIGMAS[name][0])
    assert certificate.holds
    assert {a.status for a in certificate.assumptions} <= {"proven", "numerical", "note"}
    proven = [a.name for a in certificate.assumptions if a.status == "proven"]
    assert "compactness of X" in proven
    assert any(a.name == "Slater's condition" for a in certificate.assumptions)


@pytest.mark.parametrize("name", [name for name, (_, s) in SENSITIVITIES.items() if s])
def test_certified_sensitivities_keep_their_digits(name: str) -> None:
    make, expected = SENSITIVITIES[name]
    found = d.sensitivities(certified(make))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", GALLERY)
def test_the_gallery_keeps_its_sensitivities_and_its_noise(name: str) -> None:
    largest, sigma = GALLERY[name]
    certificate = paper() if name == "paper" else d.certify(d.gallery(name))
    bounds = d.sensitivities(certificate).max(axis=1)
    np.testing.assert_allclose(bounds, largest, rtol=1e-6, atol=1e-7)
    hide = sv.Trajectory(radius=0.1, rounds=300)
    noise = d.plan(certificate, epsilon=1.0, delta=1e-3, hide=hide)
    np.testing.assert_allclose(noise.sigma, sigma, rtol=DIGITS)


def test_no_slope_found_exceeds_a_certified_one() -> None:
    problem = p.mixed()
    bounds = d.sensitivities(certified(p.mixed))
    lower, upper = (
        np.concatenate([d.kept_box(certified(p.mixed), i)[side].ravel() for i in range(3)])
        for side in (0, 1)
    )
    rng, step = np.random.default_rng(0), 1e-5
    for x in rng.uniform(lower, upper, (40, 3)):
        for agent in range(3):
            moved = np.clip(x + step * np.eye(3)[agent], lower, upper)
            by = moved[agent] - x[agent]
            if by == 0:
                continue
            # The level is one sum exp(pump) + exp(tank): its slope is that of the stated row.
            slopes = [np.exp(moved[agent]) - np.exp(x[agent]) if agent != 1 else 0.0]
            assert abs(slopes[0] / by) <= bounds[2, agent] * (1 + 1e-4)
    assert problem.evaluate(lower).objective > 0


def test_constraints_shrink_the_domain() -> None:
    lower, upper = d.kept_box(certified(p.readme), 1)
    assert upper.item() == pytest.approx(4.5615786741, rel=1e-9)
    assert lower.item() == pytest.approx(-4.5615786741, rel=1e-9)
    whole = d.certify(p.readme(), tighten=False)
    assert d.kept_box(whole, 1)[1].item() == 10.0
    np.testing.assert_allclose(d.sensitivities(whole)[1], [0, 20, 20], rtol=1e-9)
    assert d.kept_box(certified(p.mixed), 0)[1].item() == pytest.approx(1.48851637587, rel=1e-9)
    assert d.kept_box(certified(p.flows), 0)[1].item() == pytest.approx(7.26, rel=1e-9)


def test_a_public_set_of_a_fleet_shrinks_its_noise() -> None:
    def cars(*, sized: bool) -> d.Problem:
        ev = d.fleet(
            200, dim=2, lower=0, upper=11, name="ev", parameters={"size": np.full(200, 8.0)}
        )
        r = d.state_of(ev)
        own = [sum(r) <= d.parameter(ev, "size")] if sized else []
        return d.state_problem(ev, sum(s**2 for s in r), [d.total(ev) <= [900.0, 900.0], *own])

    hide = sv.Everything(rounds=50)
    less, more = (planned(d.certify(cars(sized=s)), hide=hide).sigma[0] for s in (True, False))
    assert less < 0.8 * more


def test_the_cloud_certifies_and_plans_without_private_sets() -> None:
    whole, public = p.small_fleet(), d.public_view(p.small_fleet())
    hide = sv.Everything(rounds=50)
    sigma = [planned(d.certify(of), hide=hide).sigma for of in (whole, public)]
    np.testing.assert_array_equal(*sigma)
    others = p.small_fleet(seed=5)  # other needs and windows
    assert d.public_view(others).fingerprint == public.fingerprint
    assert others.fingerprint != whole.fingerprint


def test_a_failing_certificate_names_the_formula_and_a_witness() -> None:
    certificate = d.certify(p.two_valleys())
    assert not certificate.holds
    failing = {a.name: a for a in certificate.assumptions if a.status == "fails"}
    convexity = failing["convexity of the objective of valve"]
    assert "valve" in convexity.detail
    assert convexity.witness is not None
    assert abs(convexity.witness["valve"]) < 2 / math.sqrt(3)


def test_constraints_that_mix_agents_become_few_sums() -> None:
    assert d.sums_of(p.mixed()) == ["pressure[1]", "pressure[2]", "level", "balance"]
    assert len(d.sums_of(p.robots())) == 4
    assert d.sums_of(p.dispatch()) == ["balance", "west", "east"]
    x = d.agents(2, lower=-1, upper=1)
    both = d.state_problem(x, [x[0] ** 2, x[1] ** 2], [abs(x[0] + x[1]) <= 1])
    assert len(d.sums_of(both)) == 1


# Noise


@pytest.mark.parametrize("name", SIGMAS)
def test_noise_keeps_its_digits(name: str) -> None:
    make, sigma = SIGMAS[name]
    noise = d.plan(certified(make), epsilon=1.0, delta=1e-3, hide=SHORT)
    np.testing.assert_allclose(noise.sigma, sigma, rtol=DIGITS)
    assert noise.gdp_mu.max() == pytest.approx(0.3884012, rel=1e-6)
    assert noise.rounds == 200
    assert noise.certified


@pytest.mark.parametrize(
    ("hide", "sigma"),
    [
        (sv.Trajectory(radius=1.0), [3.64469079, 11.4588479, 9.93020811, 6.42144502]),
        (sv.Offset(radius=1.0, rounds=100), [36.4442041, 114.579978, 99.2947144, 64.2096865]),
        (sv.Everything(rounds=100), [251.184921, 261.332797, 186.249766, 69.1119434]),
    ],
)
def test_the_papers_problem_keeps_its_noise(hide: Any, sigma: list[float]) -> None:
    noise = d.plan(paper(), epsilon=math.log(3), delta=0.05, hide=hide)
    np.testing.assert_allclose(noise.sigma, sigma, rtol=DIGITS)
    assert np.all(noise.gdp_mu <= 0.7962267348)
    assert noise.gdp_mu.max() == pytest.approx(0.79622673, rel=1e-7)


def test_the_papers_method_gives_the_papers_noise() -> None:
    hide = sv.Trajectory(radius=1.0)
    noise = d.paper_plan(paper(), epsilon=math.log(3), delta=0.05, hide=hide)
    kappa = 1.7563398731
    by_name = {output.name: output.sigma for output in noise.outputs}
    assert by_name["g1"] == pytest.approx(kappa * 472.674613, rel=1e-8)
    assert by_name["d g1 / d x3"] == pytest.approx(2 * kappa, rel=1e-8)
    assert by_name["d g4 / d x7"] == pytest.approx(kappa * 100.019998, rel=1e-8)
    assert not any(output.column in (0, 1, 3) for output in noise.outputs)


def test_undernoised_constants_are_for_studies_alone() -> None:
    constants = d.papers_constants(k_g=5.0, k_prime=(200.0,) * 7)
    hide = sv.Trajectory(radius=1.0)
    noise = d.paper_plan(
        paper(), epsilon=math.log(3), delta=0.05, hide=hide, constants=constants,
        allow_undernoised=True,
    )  # fmt: skip
    assert not noise.certified
    assert d.guarantee(noise, 5).epsilon > math.log(3)


@pytest.mark.parametrize(
    ("changed", "sigma"),
    [
        ({}, 3.75575582),
        ({"epsilon": [1.0, 2.0, 3.0]}, 3.75575582),
        ({"epsilon": [2.0, 2.0, 3.0]}, None),
        ({"delta": [0.01, 0.02, 0.05]}, 3.75575582),
        ({"hide": sv.Offset(radius=0.5, rounds=500)}, 20.9953133),
        ({"hide": sv.Everything(rounds=500)}, 839.812533),
        ({"hide": sv.Trajectory(radius=[2.0, 1.0, 0.5], rounds=500)}, 3.75575582),
    ],
)
def test_the_bakeries_keep_their_noise(changed: dict[str, Any], sigma: float | None) -> None:
    noise = planned(bakeries(), **changed)
    if sigma is None:
        assert noise.sigma[0] < 3.75
    else:
        assert noise.sigma[0] == pytest.approx(sigma, rel=DIGITS)
    assert str(noise).count("connection") >= 1


def test_every_agent_has_its_own_promise() -> None:
    noise = planned(bakeries(), epsilon=[1.0, 2.0, 3.0], delta=[0.01, 0.02, 0.05])
    for agent, (epsilon, delta) in enumerate([(1, 0.01), (2, 0.02), (3, 0.05)]):
        promise = d.guarantee(noise, agent)
        assert promise.asked == (epsilon, delta)
        assert promise.epsilon <= epsilon * (1 + 1e-12)
        assert promise.delta <= delta * (1 + 1e-12)
        assert promise.gdp_mu <= 0.5325167


def test_weights_move_noise_between_sums() -> None:
    equal, weighted = (planned(certified(p.readme), weights=w) for w in (None, [1.0, 100.0]))
    np.testing.assert_allclose(equal.sigma, [5.31143578, 48.4572067], rtol=DIGITS)
    np.testing.assert_allclose(weighted.sigma, [36.0676028, 34.4516627], rtol=DIGITS)


def test_a_split_cloud_adds_the_noise_twice() -> None:
    noise = planned(bakeries(), trust=sv.SplitCloud())
    assert noise.sigma[0] == pytest.approx(3.75575582, rel=DIGITS)
    assert noise.released_sigma[0] == pytest.approx(math.sqrt(2) * 3.75575582, rel=DIGITS)
    assert "collude" in str(noise)
    for view in ("cloud", "helper"):
        assert np.all(noise.mu_seen_by(view) <= 0.5325167)
    assert noise.mu_seen_by("outside").max() == pytest.approx(0.5325166 / math.sqrt(2), rel=1e-5)


def test_noise_lies_on_a_public_grid() -> None:
    for output in planned(certified(p.readme)).outputs:
        assert output.grid > 0
        assert math.log2(output.sigma / output.grid) == pytest.approx(26, abs=1e-9)


def test_the_gaussian_tradeoff_behind_a_promise_is_exact() -> None:
    def phi(t: float) -> float:
        return 0.5 * (1 + math.erf(t / math.sqrt(2)))

    promise = d.guarantee(planned(bakeries()), 0)
    mu, epsilon = promise.gdp_mu, promise.epsilon
    delta = phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)
    assert delta <= 0.01 * (1 + 1e-9)
    assert delta == pytest.approx(0.01, rel=1e-4)


def test_a_promise_is_written_in_words() -> None:
    noise = d.plan(
        certified(p.readme), epsilon=math.log(3), delta=0.05,
        hide=sv.Trajectory(radius=1.0, rounds=2_000),
    )  # fmt: skip
    text = str(d.guarantee(noise, 1))
    for word in ("x2", "1.09862", "0.05", "0.796227", "2,000", "0.022", "trusted"):
        assert word in text
    output = str(noise)
    for word in ("1.77", "16.2", "Not covered", "the cloud itself", "side channels"):
        assert word in output


# Answers that keep the constraints


@pytest.mark.parametrize("each", [False, True])
def test_margins_keep_their_digits(each: bool) -> None:
    noise = planned(bakeries(), feasible=0.95, each_row=each)
    (margin,) = noise.feasible.margins
    assert margin.name == "connection"
    assert margin.tested == pytest.approx(0.300541168, rel=1e-6)
    assert margin.moved == pytest.approx(0.455100069, rel=1e-3)
    assert margin.scale == 30.0
    assert noise.sigma[0] == pytest.approx(3.75575582, rel=DIGITS)


def test_margins_for_all_rows_together_are_wider_than_for_each() -> None:
    hide = sv.Trajectory(radius=0.01, rounds=500)
    joint, each = (
        planned(certified(p.rates), hide=hide, feasible=0.95, each_row=each).feasible.margin
        for each in (False, True)
    )
    assert np.all(joint > each)


def test_a_hard_row_is_planned_with_a_margin() -> None:
    noise = planned(d.certify(p.bakeries(hard=True)), feasible=0.95)
    assert noise.feasible.margins[0].tested == pytest.approx(0.300541168, rel=1e-6)


def test_an_equality_is_kept_within_a_band() -> None:
    hide = sv.Trajectory(radius=0.5, rounds=500)
    noise = planned(certified(p.dispatch), hide=hide, feasible=0.9)
    assert 0 < noise.feasible.band[0] < 5
    assert "balance" in str(noise)


# Budgets


def test_what_runs_cost_adds_up_in_quadrature(tmp_path: Any) -> None:
    noise, book = planned(bakeries()), sv.Ledger(tmp_path / "budget.db")
    book.grant(["north", "south", "west"], 3.0, 0.01, hide="trajectory", radius=2.0)
    budget = book.account("north").budget
    for run in range(3):
        book.spend(f"run {run}", noise.charges(), note="night")
    account = book.account("south")
    cost = account.spent
    assert cost == pytest.approx(math.sqrt(3) * 0.53251665, rel=1e-5)
    assert book.spent("south") == cost
    assert book.remaining("west") == pytest.approx(math.sqrt(budget**2 - cost**2), rel=1e-6)
    assert [spend.run_id for spend in book.history()][:3] == ["run 0"] * 3
    assert len(book.accounts()) == 3


def test_a_run_is_charged_once_however_often_it_is_recorded(tmp_path: Any) -> None:
    noise, book = planned(bakeries()), sv.Ledger(tmp_path / "budget.db")
    book.grant(["north", "south", "west"], 3.0, 0.01, hide="trajectory", radius=2.0)
    for _ in range(3):
        book.spend("run", noise.charges())
    assert book.spent("north") == pytest.approx(0.5325173, rel=1e-5)
    again = sv.Ledger(tmp_path / "budget.db")
    assert again.spent("north") == book.spent("north")


def test_a_charge_for_one_radius_counts_in_an_account_for_another(tmp_path: Any) -> None:
    book = sv.Ledger(tmp_path / "budget.db")
    book.grant("x1", math.log(3), 0.05, hide="trajectory", radius=0.5)
    book.spend("run", [d.charge("x1", "trajectory", 1.0, 1 / 3)])
    account = book.account("x1")
    assert account.spent == pytest.approx(1 / 6)
    assert account.spent >= 1 / 6
    assert account.remaining == pytest.approx(0.778587, abs=1e-6)


def test_a_refused_run_costs_no_agent_anything(tmp_path: Any) -> None:
    noise, book = planned(bakeries()), sv.Ledger(tmp_path / "budget.db")
    book.grant(["north", "south"], 3.0, 0.01, hide="trajectory", radius=2.0)
    with pytest.raises(d.BudgetError):
        book.spend("run", noise.charges())
    assert book.spent("north") == 0.0
    assert book.history() == ()


# What is allowed at best


def test_the_statistical_limit_keeps_its_digits() -> None:
    least = d.accuracy_limit(p.bakeries(), planned(bakeries()), 500)
    assert least.x == pytest.approx(0.109957271548, rel=DIGITS)
    assert least.price == pytest.approx(0.191957150572, rel=DIGITS)
    np.testing.assert_allclose(least.x_each, [0.09597857, 0.04798929, 0.02399464], rtol=1e-5)
    more = d.accuracy_limit(p.bakeries(), planned(bakeries()), 125)
    assert more.x == pytest.approx(2 * least.x, rel=1e-9)


def test_secure_noise_has_the_planned_spread_and_no_seed() -> None:
    """4,000 draws: the spread is within 6% with probability above 1 - 1e-6."""
    sampler = d.secure_sampler([2.0, 5.0])
    draws = np.array([sampler.release([1.0, -3.0]).values for _ in range(4_000)])
    np.testing.assert_allclose(draws.std(axis=0), [2.0, 5.0], rtol=0.06)
    np.testing.assert_allclose(draws.mean(axis=0), [1.0, -3.0], atol=0.5)
    again = np.array(d.secure_sampler([2.0, 5.0]).release([1.0, -3.0]).values)
    assert not np.array_equal(draws[0], again)
