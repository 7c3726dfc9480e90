"""Certificates, noise plans, guarantees, margins and budgets, pinned to the printed digit."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import problems as p
import pytest

import sottovoce as sv

pytestmark = pytest.mark.core
DIGITS = 2e-6
"""Relative: plans print six digits, and the allocation is solved to as many."""

STATED: dict[str, tuple[Any, Any, list[float]]] = {  # sensitivities, and the noise they need
    "readme": (p.readme, [[1, 1, 1], [0, 9.123157348, 9.123157348]], [1.82055756, 16.6092819]),
    "bakeries": (p.bakeries, [[1, 1, 1]], [1.28732991]),
    "valves": (p.valves, [[8.892153845, 1]], [11.4471356]),
    "mixed": (
        p.mixed, [[1, 10, 0], [0, 0, 1], [4.430517, 0, 4.430517], [1, 1, 1]],
        [15.0677133, 2.13087500, 9.44106887, 2.47718579],
    ),
    "nonsmooth": (p.nonsmooth, [[1, 1], [1, 1]], [1.82056023, 1.82056023]),
    "flows": (
        p.flows, [[0.5, 0.2, 0.1], [0.3, 0.3, 0.6], [1, 1, 1]],
        [0.838057920, 0.888894661, 2.73626062],
    ),
    "small fleet": (p.small_fleet, None, [1.28733093] * 3),
    "rates": (p.rates, None, [1.82056139] * 4),
    "dispatch": (
        p.dispatch, [[1] * 4, [0.4, 0.3, 0.1, 0.2], [0.1, 0.2, 0.5, 0.3]],
        [2.45265278, 0.616665000, 0.780026380],
    ),
    "ev-fleet": (p.ev_fleet, None, [1.28733131] * 4),
    "robots": (p.robots, [[1, 1, 0], [1, 1, 0], [0, 1, 1], [0, 1, 1]], [1.82056139] * 4),
    "regression": (p.regression, None, [1.28732991]),
    "load-shedding": (p.shedding, None, [1.28733131] * 4),
}  # fmt: skip
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


planned = partial(p.plan, rounds=500)
LN3: Any = {"epsilon": math.log(3), "delta": 0.05}


# Certificates


@pytest.mark.parametrize("name", STATED)
def test_assumptions_hold_and_sensitivities_and_noise_keep_their_digits(name: str) -> None:
    make, sensitivity, sigma = STATED[name]
    certificate = p.certify(make())
    assert certificate.holds
    status = {a.name: a.status for a in certificate.assumptions}
    assert set(status.values()) <= {"proven", "numerical", "note"}
    assert status["compactness of X"] == "proven"
    assert "Slater's condition" in status
    if sensitivity is not None:
        bounds = certificate.sensitivity.dense()
        np.testing.assert_allclose(bounds, sensitivity, rtol=1e-6, atol=1e-12)
    noise = p.plan(certificate, delta=1e-3, radius=0.5, rounds=200)
    np.testing.assert_allclose(noise.sigma, sigma, rtol=DIGITS)
    assert noise.gdp_mu.max() == pytest.approx(0.3884012, rel=1e-6)
    assert noise.rounds == 200
    assert noise.certified


@pytest.mark.parametrize("name", GALLERY)
def test_the_gallery_keeps_its_sensitivities_and_its_noise(name: str) -> None:
    largest, sigma = GALLERY[name]
    certificate = p.certify(sv.gallery.get(name))
    bounds = certificate.sensitivity.dense().max(axis=1)
    np.testing.assert_allclose(bounds, largest, rtol=1e-6, atol=1e-7)
    noise = p.plan(certificate, delta=1e-3, radius=0.1, rounds=300)
    np.testing.assert_allclose(noise.sigma, sigma, rtol=DIGITS)


def test_constraints_shrink_the_domain() -> None:
    def box(certificate: Any, agent: int) -> tuple[float, float]:
        group = certificate.domain[agent]
        return group.lower.item(), group.upper.item()

    whole = p.certify(p.readme(), tighten=False)
    np.testing.assert_allclose(whole.sensitivity.dense()[1], [0, 20, 20], rtol=1e-9)
    assert box(whole, 1) == (-10.0, 10.0)
    edge = 4.5615786741
    np.testing.assert_allclose(box(p.certify(p.readme()), 1), [-edge, edge], rtol=1e-9)
    assert box(p.certify(p.mixed()), 0)[1] == pytest.approx(1.48851637587, rel=1e-9)
    assert box(p.certify(p.flows()), 0)[1] == pytest.approx(7.26, rel=1e-9)


def test_a_public_set_of_a_fleet_shrinks_its_noise() -> None:
    def cars(*, sized: bool) -> sv.Problem:
        size = {"size": np.full(200, 8.0)}
        ev = sv.agents(200, dim=2, lower=0, upper=11, name="ev", parameters=size)
        r = ev.x
        own = [sum(r) <= ev["size"]] if sized else []
        return sv.Problem(
            objectives=sum(s**2 for s in r), constraints=[sv.total(ev) <= [900.0, 900.0], *own]
        )

    hide = sv.Everything(rounds=50)
    less, more = (planned(cars(sized=s), hide=hide).sigma[0] for s in (True, False))
    assert less < 0.8 * more


def test_the_cloud_certifies_and_plans_without_private_sets() -> None:
    whole, public = p.small_fleet(), p.small_fleet().cloud
    hide = sv.Everything(rounds=50)
    sigma = [planned(of, hide=hide).sigma for of in (whole, public)]
    np.testing.assert_array_equal(*sigma)
    others = p.small_fleet(seed=5)  # other needs and windows
    assert others.cloud.fingerprint == public.fingerprint
    assert others.fingerprint != whole.fingerprint


def test_constraints_that_mix_agents_become_few_sums() -> None:
    assert p.mixed().cloud.sums.labels == ("pressure[1]", "pressure[2]", "level", "balance")
    assert len(p.robots().cloud.sums.labels) == 4
    assert p.dispatch().cloud.sums.labels == ("balance", "west", "east")
    x = sv.agents(2, lower=-1, upper=1)
    both = sv.Problem(objectives=[x[0] ** 2, x[1] ** 2], constraints=[abs(x[0] + x[1]) <= 1])
    assert len(both.cloud.sums.labels) == 1


# Noise


@pytest.mark.parametrize(
    ("hide", "sigma"),
    [
        (sv.Trajectory(radius=1.0), [3.64469079, 11.4588479, 9.93020811, 6.42144502]),
        (sv.Offset(radius=1.0, rounds=100), [36.4442041, 114.579978, 99.2947144, 64.2096865]),
        (sv.Everything(rounds=100), [251.184921, 261.332797, 186.249766, 69.1119434]),
    ],
)
def test_the_papers_problem_keeps_its_noise(hide: Any, sigma: list[float]) -> None:
    noise = p.plan(sv.gallery.paper(), **LN3, hide=hide)
    np.testing.assert_allclose(noise.sigma, sigma, rtol=DIGITS)
    assert np.all(noise.gdp_mu <= 0.7962267348)
    assert noise.gdp_mu.max() == pytest.approx(0.79622673, rel=1e-7)


def test_the_papers_method_gives_the_papers_noise() -> None:
    noise = p.plan(sv.gallery.paper(), **LN3, hide=sv.Trajectory(radius=1.0), method="paper")
    kappa = 1.7563398731
    by_name = {output.name: output.sigma for output in noise.outputs}
    assert by_name["g1"] == pytest.approx(kappa * 472.674613, rel=1e-8)
    assert by_name["d g1 / d x3"] == pytest.approx(2 * kappa, rel=1e-8)
    assert by_name["d g4 / d x7"] == pytest.approx(kappa * 100.019998, rel=1e-8)
    assert not any(output.column in (0, 1, 3) for output in noise.outputs)


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
    noise = planned(p.bakeries(), **changed)
    if sigma is None:
        assert noise.sigma[0] < 3.75
    else:
        assert noise.sigma[0] == pytest.approx(sigma, rel=DIGITS)
    assert str(noise).count("connection") >= 1


def test_every_agent_has_its_own_promise() -> None:
    noise = planned(p.bakeries(), epsilon=[1.0, 2.0, 3.0], delta=[0.01, 0.02, 0.05])
    for agent, (epsilon, delta) in enumerate([(1, 0.01), (2, 0.02), (3, 0.05)]):
        promise = noise.guarantee(agent)
        assert promise.requested == (epsilon, delta)
        assert promise.epsilon <= epsilon * (1 + 1e-12)
        assert promise.delta <= delta * (1 + 1e-12)
        assert promise.gdp_mu <= 0.5325167


def test_weights_move_noise_between_sums() -> None:
    equal, weighted = (planned(p.readme(), weights=w) for w in (None, [1.0, 100.0]))
    np.testing.assert_allclose(equal.sigma, [5.31143578, 48.4572067], rtol=DIGITS)
    np.testing.assert_allclose(weighted.sigma, [36.0676028, 34.4516627], rtol=DIGITS)


def test_a_promise_is_written_in_words() -> None:
    noise = p.plan(p.readme(), epsilon=math.log(3), delta=0.05, radius=1.0, rounds=2_000)
    text = str(noise.guarantee(1))
    for word in ("x2", "1.09862", "0.05", "0.796227", "2,000", "0.022", "trusted"):
        assert word in text
    output = str(noise)
    for word in ("1.77", "16.2", "Not covered", "the cloud itself", "side channels"):
        assert word in output


# Answers that keep the constraints


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("each", [False, True])
def test_margins_keep_their_digits(each: bool, hard: bool) -> None:
    noise = planned(p.bakeries(hard=hard), feasible=0.95, each_row=each)
    (margin,) = noise.feasible.margins
    assert margin.name == "connection"
    assert margin.tested == pytest.approx(0.300541168, rel=1e-6)
    assert margin.tightening == pytest.approx(0.455100069, rel=1e-3)
    assert margin.scale == 30.0
    assert noise.sigma[0] == pytest.approx(3.75575582, rel=DIGITS)


def test_an_equality_is_kept_within_a_band() -> None:
    noise = planned(p.dispatch(), radius=0.5, feasible=0.9)
    assert 0 < noise.feasible.band[0] < 5
    assert "balance" in str(noise)


# Budgets


def test_runs_are_charged_once_in_quadrature_and_refused_runs_cost_nothing(tmp_path: Any) -> None:
    noise, book = planned(p.bakeries()), sv.Ledger(tmp_path / "budget.db")
    book.grant(["north", "south"], 3.0, 0.01, hide="trajectory", radius=2.0)
    with pytest.raises(sv.errors.BudgetError, match="west"):
        book.spend("run 0", noise.charges())
    assert (book.spent("north"), book.history()) == (0.0, ())
    book.grant("west", 3.0, 0.01, hide="trajectory", radius=2.0)
    for run in (0, 1, 1, 2, 0):  # the same run, restarted, is not charged again
        book.spend(f"run {run}", noise.charges(), note="night")
    account = sv.Ledger(tmp_path / "budget.db").account("south")
    cost, budget = account.spent, account.budget
    assert cost == book.spent("south") == pytest.approx(math.sqrt(3) * 0.53251665, rel=1e-5)
    assert book.remaining("west") == pytest.approx(math.sqrt(budget**2 - cost**2), rel=1e-6)
    assert [spend.run_id for spend in book.history()] == [f"run {i // 3}" for i in range(9)]
    assert len(book.accounts()) == 3


# What is allowed at best


def test_the_statistical_limit_keeps_its_digits() -> None:
    least = sv.accuracy_limit(p.bakeries(), planned(p.bakeries()), 500)
    assert least.x == pytest.approx(0.109957271548, rel=DIGITS)
    assert least.price == pytest.approx(0.191957150572, rel=DIGITS)
    np.testing.assert_allclose(least.x_each, [0.09597857, 0.04798929, 0.02399464], rtol=1e-5)
    more = sv.accuracy_limit(p.bakeries(), planned(p.bakeries()), 125)
    assert more.x == pytest.approx(2 * least.x, rel=1e-9)
