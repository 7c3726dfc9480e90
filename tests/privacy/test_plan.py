"""The noise plan: no agent ever gets less than was asked for, however the problem is stated."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sottovoce as sv
from plans import exact_delta
from sottovoce.certificate.certificate import Certificate, certify
from sottovoce.certificate.contributions import Contributions
from sottovoce.certificate.sensitivity import Block, Sensitivity
from sottovoce.errors import PrivacyError
from sottovoce.privacy.adjacency import Adjacency, Everything, Offset, Trajectory
from sottovoce.privacy.gaussian import delta_of, epsilon_of, gdp_mu_of
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import plan
from sottovoce.privacy.sampler import SecureSampler, max_release
from sottovoce.problem import gallery
from sottovoce.problem.constraints import total
from sottovoce.problem.groups import Array
from sottovoce.problem.problem import Problem
from sympy_oracle import function_of

ASKED: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "hide": Trajectory(radius=1.0)}


def linear(
    coefficients: Any, *, lower: Any = -1.0, upper: Any = 1.0, bound: float = 1.0
) -> Certificate:
    """One agent per column, one affine constraint per row."""
    rows = np.atleast_2d(np.asarray(coefficients, dtype=float))
    x = sv.agents(rows.shape[1], lower=lower, upper=upper)
    g = [sum(float(c) * s for c, s in zip(row, x, strict=True)) <= bound for row in rows]
    return certify(Problem(objectives=[s**2 for s in x], constraints=g).cloud)


@pytest.fixture(scope="module")
def three() -> Certificate:
    """Three agents under two constraints, one of which mixes two of them: three sums."""
    x = sv.agents(3, lower=-1, upper=2)
    return certify(
        Problem(
            objectives=[s**2 for s in x],
            constraints=[x[0] + x[1] + x[2] <= 3, (x[0] + 2 * x[1]) ** 2 + x[2] <= 20],
        ).cloud
    )


def reach_of_agents(made: NoisePlan) -> list[mpmath.mpf]:
    root = mpmath.mpf(1) if isinstance(made.hide, Trajectory) else mpmath.sqrt(made.rounds)
    b = [made.radius(agent) for agent in range(made.cloud.agents)]
    return [mpmath.mpf(1.0 if r is None else r) * root for r in b]


# --- every agent's promise is kept -------------------------------------------------------------


@st.composite
def requests(draw: st.DrawFn) -> tuple[Array, dict[str, Any]]:
    """A random S of three sums and what three agents ask for."""
    sizes = st.floats(-4, 4).map(lambda e: 10.0**e)
    entries = draw(st.lists(st.just(0.0) | sizes, min_size=9, max_size=9))
    S = np.array(entries).reshape(3, 3)
    S[S.max(axis=1) == 0, 0] = 1.0

    def each(strategy: st.SearchStrategy[float]) -> Any:
        return draw(strategy | st.lists(strategy, min_size=3, max_size=3))

    rounds = draw(st.integers(1, 3000))
    radius = each(st.floats(1e-3, 1e3))
    hide = draw(
        st.sampled_from(
            [
                Trajectory(radius=radius, rounds=rounds),
                Offset(radius=radius, rounds=rounds),
                Everything(rounds=rounds),
            ]
        )
    )
    asked: dict[str, Any] = {
        "epsilon": each(st.floats(0.05, 10)),
        "delta": each(st.floats(-12, -0.31).map(lambda e: 10.0**e)),
        "hide": hide,
    }
    return S, asked


@settings(max_examples=30, deadline=None)
@given(requests())
def test_every_agents_exact_delta_is_at_most_the_one_asked_for(
    three: Certificate, request_: tuple[Array, dict[str, Any]]
) -> None:
    S, asked = request_
    block = Block(rows=np.arange(3), first=0, upper=S, attained=S)
    known = Sensitivity(outputs=3, agents=3, blocks=(block,))
    certificate = replace(
        three,
        sensitivity=known,
        contributions=Contributions(spread=known, size=np.ones(3), error=np.full(3, 1e-16)),
    )
    made = plan(certificate, **asked)
    with mpmath.workdps(50):
        for agent, reach in enumerate(reach_of_agents(made)):
            load = mpmath.fsum(
                (mpmath.mpf(float(s)) / mpmath.mpf(float(sigma))) ** 2
                for s, sigma in zip(S[:, agent], made.sigma, strict=True)
            )
            mu = reach * mpmath.sqrt(load)
            assert mu <= mpmath.mpf(float(made.gdp_mu[agent]))
            claimed = mpmath.mpf(float(made.gdp_mu[agent]))
            delta = exact_delta(claimed, float(made.epsilon[agent]))
            assert delta <= mpmath.mpf(float(made.delta[agent]))
    assert np.max(made.gdp_mu / gdp_mu_of(made.epsilon, made.delta)) > 0.998


KINDS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "affine": lambda form, _: form,
    "square": lambda form, _: form**2,
    "separable": lambda _, x: sum((i + 1) * s**2 / 2 for i, s in enumerate(x)),
    "exp": lambda form, x: sv.exp(form / 8) + x[0],
}


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Two or three agents of one or two dimensions under affine, coupled and separable rows."""
    dims = draw(st.lists(st.integers(1, 2), min_size=2, max_size=3))
    x = sv.agents(len(dims), lower=-2, upper=[1.0 + i for i in range(len(dims))], dim=dims)
    flat = [s for group in x.groups for s in group.symbols]
    g = [sum(flat) <= 30]
    for kind in draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2)):
        tenths = draw(st.lists(st.integers(1, 20), min_size=len(flat), max_size=len(flat)))
        form = sum(Fraction(t, 10) * s for t, s in zip(tenths, flat, strict=True))
        g.append(KINDS[kind](form, flat) <= 50)
    objectives = [sum(s**2 for s in group.symbols) for group in x.groups]
    return Problem(agents=x, objectives=objectives, constraints=g)


def contributed(problem: Problem) -> Any:
    symbols = [s for group in problem.groups for s in group.symbols]
    sums = [row for family in problem.cloud.sums.families for row in family.formulas]
    return function_of(symbols, sums)


HIDDEN = [Trajectory(radius=0.7, rounds=50), Offset(radius=0.7, rounds=50), Everything(rounds=50)]


@settings(max_examples=5, deadline=None)
@given(problems(), st.sampled_from(HIDDEN), st.integers(0, 99))
@example(gallery.coupled(), HIDDEN[0], 0)  # with regions, which few drawn problems have
def test_no_adjacent_states_move_the_sums_further_than_the_claim(
    problem: Problem, hide: Adjacency, seed: int
) -> None:
    certificate = certify(problem.cloud, tolerance=0.1)
    made = plan(certificate, epsilon=1, delta=1e-5, hide=hide)
    sums = contributed(problem)
    lower = np.concatenate([group.lower.ravel() for group in made.domain])
    upper = np.concatenate([group.upper.ravel() for group in made.domain])
    rng = np.random.default_rng(seed)
    repeat = 1.0 if isinstance(hide, Trajectory) else math.sqrt(made.rounds)
    first = 0
    for agent, group in enumerate(made.domain):
        own = slice(first, first + group.dim)
        first += group.dim
        for _ in range(40):
            corners = rng.random(lower.size) < 0.5
            x = np.where(corners, np.where(rng.random(lower.size) < 0.5, lower, upper),
                         rng.uniform(lower, upper))  # fmt: skip
            moved = x.copy()
            if isinstance(hide, Everything):
                moved[own] = np.where(rng.random(group.dim) < 0.5, lower[own], upper[own])
            else:
                step = rng.standard_normal(group.dim)
                moved[own] += (made.radius(agent) or 0.0) * step / np.linalg.norm(step)
                moved = np.clip(moved, lower, upper)
            shift = (np.array(sums(moved)) - np.array(sums(x))) / made.sigma
            assert np.linalg.norm(shift) * repeat <= made.gdp_mu[agent]


def test_a_guarantee_is_that_agents_own() -> None:
    made = plan(linear([[1, 3, 9]]), **ASKED)
    assert np.all(np.diff(made.gdp_mu) > 0)
    for agent, mu in enumerate(made.gdp_mu.tolist()):
        promise = made.guarantee(agent)
        assert promise.gdp_mu == mu
        assert promise.epsilon == epsilon_of(mu, 1e-5)
        assert promise.delta == delta_of(mu, 1.0)


def test_everything_means_the_range_of_every_contribution() -> None:
    x = sv.agents(2, lower=[[-1, 0], [0, 0]], upper=[[1, 1], [0, 3]], dim=2)
    problem = Problem(
        objectives=[s[0] ** 2 + s[1] ** 2 for s in x],
        constraints=[x[0][0] + x[0][1] + x[1][0] + x[1][1] <= 30],
    )
    made = plan(certify(problem.cloud), epsilon=1, delta=1e-5, hide=Everything(rounds=10))
    # Contributions range over widths of 3 and 3; the diameters sqrt(5) and 3 times the slope
    # sqrt(2) would be 3.2 and 4.2.
    assert made.sigma == pytest.approx([3 * math.sqrt(10) / gdp_mu_of(1.0, 1e-5)], rel=1e-3)
    assert made.gdp_mu == pytest.approx(np.full(2, gdp_mu_of(1.0, 1e-5)), rel=1e-3)
    assert made.radius(0) is None


def test_sensitivities_are_never_below_what_is_seen_in_the_domain() -> None:
    x = sv.agents(2, lower=-1, upper=3)
    problem = Problem(
        objectives=[x[0] ** 2, x[1] ** 2],
        constraints=[x[0] ** 2 + 2 * x[1] <= 4, sv.exp(x[0]) + 5 * x[1] ** 2 <= 20],
    )
    certificate = certify(problem.cloud)
    low, high = (
        np.concatenate([getattr(group, end).ravel() for group in certificate.domain])
        for end in ("lower", "upper")
    )
    assert np.all(high < 3.0)  # what the constraints leave of the boxes
    seen = np.abs([[2 * at[0], 2.0] for at in (low, high)]).max(axis=0)
    seen = np.stack([seen, [np.exp(high[0]), 10 * np.abs([low[1], high[1]]).max()]])
    bound = certificate.sensitivity.dense()
    assert np.all(bound >= seen)
    assert np.all(bound <= 1.02 * seen)


def test_noise_grows_with_rounds_radii_and_promises_of_agents() -> None:
    certificate = linear([[1, 2, 0], [0, 1, -3], [1, 0, 1]])

    def noise(hide: Adjacency, epsilon: Any = 1.0) -> NoisePlan:
        return plan(certificate, epsilon=epsilon, delta=1e-3, hide=hide)

    kinds: list[Callable[[int], Adjacency]] = [
        lambda rounds: Offset(radius=1.0, rounds=rounds),
        lambda rounds: Everything(rounds=rounds),
    ]
    for hide in kinds:
        assert noise(hide(100)).sigma == pytest.approx(10 * noise(hide(1)).sigma, rel=1e-4)
    near = noise(Trajectory(radius=1.0))
    far = noise(Trajectory(radius=[1.0, 5.0, 1.0]))
    assert far.sigma[0] > 2 * near.sigma[0]  # what agent 2 moves
    strict = noise(Trajectory(radius=1.0), epsilon=[1.0, 0.1, 1.0])
    assert strict.gdp_mu[1] < 0.2 * near.gdp_mu[1]


def test_a_plan_never_changes(three: Certificate) -> None:
    made = plan(three, **ASKED)
    for values in (made.gdp_mu, made.epsilon, made.delta):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0.0
    with pytest.raises(AttributeError):
        made.outputs[0].sigma = 0.0  # type: ignore[misc]


# --- fleets ------------------------------------------------------------------------------------


def named_twin(weights: Array, slopes: Array, curved: bool) -> Certificate:
    n = slopes.size
    x = sv.agents(n, lower=-1, upper=2)
    h = [s**2 if curved else p * s for p, s in zip(slopes.tolist(), x, strict=True)]
    g = [sum(w * t for w, t in zip(row, h, strict=True)) <= 9 for row in weights.tolist()]
    return certify(Problem(objectives=[s**2 for s in x], constraints=g).cloud)


@pytest.mark.parametrize("kind", ["broadcast", "dense", "sparse"])
@pytest.mark.parametrize("curved", [False, True])
def test_a_fleet_gets_the_noise_of_the_same_agents_stated_by_name(kind: str, curved: bool) -> None:
    rng = np.random.default_rng(5)
    n = 6
    slopes = np.full(n, 1.5) if kind == "broadcast" else rng.uniform(0.5, 2.0, n)
    weights = np.ones((1, n)) if kind == "broadcast" else rng.uniform(0.0, 2.0, (3, n))
    weights[weights < 0.4] = 0.0
    weights[0] += 0.1
    ev = sv.agents(n, lower=-1, upper=2, name="ev", parameters={"p": slopes})
    term = ev.x**2 if curved else (1.5 if kind == "broadcast" else
                                       ev["p"]) * ev.x  # fmt: skip
    held = {"broadcast": None, "dense": weights, "sparse": sparse.csr_array(weights)}[kind]
    used = weights if held is not None else np.ones((1, n))
    problem = Problem(
        objectives=ev.x**2, constraints=[total(term, weights=held) <= np.full(len(used), 9.0)]
    )
    asked: dict[str, Any] = {
        "epsilon": np.linspace(0.5, 1.5, n),
        "delta": 1e-6,
        "hide": Trajectory(radius=np.linspace(1, 2, n)),
    }
    made = plan(certify(problem.cloud), **asked)
    twin = plan(named_twin(used, slopes, curved), **asked)
    assert made.sigma == pytest.approx(twin.sigma, rel=1e-5)
    assert made.gdp_mu == pytest.approx(twin.gdp_mu, rel=1e-5)


def test_a_hundred_thousand_chargers_are_planned_in_seconds() -> None:
    certificate = certify(gallery.chargers(100_000).cloud)
    begin = time.perf_counter()
    made = plan(certificate, epsilon=1.0, delta=1e-6, hide=Everything(rounds=100))
    assert time.perf_counter() - begin < 10.0
    assert made.gdp_mu.shape == (100_000,)
    assert np.max(made.gdp_mu) <= gdp_mu_of(1.0, 1e-6)
    # Noise does not grow with the fleet, only with its largest box.
    small = plan(certify(gallery.chargers(100).cloud), epsilon=1.0, delta=1e-6,
                 hide=Everything(rounds=100))  # fmt: skip
    assert made.sigma.max() < 2.0 * small.sigma.max()


def test_a_row_nobody_moves_gets_no_noise() -> None:
    ev = sv.agents(4, lower=0, upper=1, name="ev", parameters={"p": np.zeros(4)})
    problem = Problem(
        objectives=ev.x**2, constraints=[total([ev.x, ev["p"] * ev.x]) <= np.array([3.0, 1.0])]
    )
    made = plan(certify(problem.cloud), **ASKED)
    assert made.sigma[0] > 0
    assert made.sigma[1] == 0


def test_an_agent_that_moves_nothing_spends_only_what_rounding_costs() -> None:
    ev = sv.agents(3, lower=0, upper=1, name="ev", parameters={"p": [0.0, 1.0, 2.0]})
    problem = Problem(objectives=ev.x**2, constraints=[total(ev["p"] * ev.x) <= 2.0])
    made = plan(certify(problem.cloud), **ASKED)
    assert made.gdp_mu[0] < 1e-3 * made.gdp_mu[2]


def test_an_agent_whose_box_is_a_point_has_nothing_to_hide() -> None:
    made = plan(linear([[1, 1]], lower=[-1, 0.5], upper=[1, 0.5]), epsilon=1, delta=1e-5,
                hide=Everything(rounds=10))  # fmt: skip
    assert made.gdp_mu[1] < 1e-6
    assert made.gdp_mu[0] == pytest.approx(gdp_mu_of(1.0, 1e-5), rel=1e-6)


# --- numbers at the edge of what a double holds ------------------------------------------------


@pytest.mark.parametrize("scale", [1e-200, 1e-170, 1e-120, 1e120, 1e170])
def test_influences_whose_squares_vanish_or_overflow_are_refused(scale: float) -> None:
    # S^2 = 0 once meant no noise at all, and a claim of perfect privacy.
    with pytest.raises(PrivacyError, match="state the problem in other units"):
        plan(linear([[scale, scale]], bound=scale), **ASKED)


@pytest.mark.parametrize("radius", [1e-300, 1e-200, 1e-61, 1e61, 1e300])
def test_radii_whose_squares_vanish_or_overflow_are_refused(radius: float) -> None:
    with pytest.raises(PrivacyError, match="state the problem in other units"):
        plan(linear([[1, 1]]), epsilon=1, delta=1e-5, hide=Trajectory(radius=radius))


@pytest.mark.parametrize("scale", [1e-50, 1e-20, 1e20, 1e50])
def test_the_units_of_a_constraint_do_not_matter(scale: float) -> None:
    plain = plan(linear([[1, 2]]), **ASKED)
    scaled = plan(linear([[scale, 2 * scale]], bound=scale), **ASKED)
    assert scaled.sigma / scale == pytest.approx(plain.sigma, rel=1e-6)
    assert scaled.gdp_mu == pytest.approx(plain.gdp_mu, rel=1e-9)


def test_rounds_whose_rounding_alone_reveals_too_much_are_refused() -> None:
    with pytest.raises(PrivacyError, match="rounding of numbers alone"):
        plan(linear([[1, 1]]), epsilon=1, delta=1e-5, hide=Offset(radius=1, rounds=10**15))


def test_a_radius_below_the_rounding_error_of_the_outputs_is_refused() -> None:
    with pytest.raises(PrivacyError, match="rounding of numbers alone"):
        plan(linear([[1.1, 1.3]]), epsilon=1, delta=1e-5, hide=Trajectory(radius=1e-16))


def test_the_claim_pays_for_rounding() -> None:
    certificate = linear([[1, 1]])
    made = plan(certificate, epsilon=1, delta=1e-5, hide=Trajectory(radius=1, rounds=10**9))
    bare = float(np.max(1.0 / made.sigma))
    assert made.gdp_mu.max() > bare + 2 * math.sqrt(10**9) * 2.0**-26


def test_an_output_beyond_the_samplers_reach_is_refused() -> None:
    # A state that cannot move far from a large number: sigma stays small, the sum does not.
    near: dict[str, Any] = {"lower": [1e12, -1], "upper": [1e12 + 1, 1], "bound": 2e12}
    once = Trajectory(radius=1.0, rounds=1)
    with pytest.raises(PrivacyError, match=r"g1 must stay below 2\^25 sigma"):
        plan(linear([[1, 1]], **near), epsilon=1, delta=1e-5, hide=once)
    far: dict[str, Any] = {"lower": [1e6, -1], "upper": [1e6 + 1, 1], "bound": 2e6}
    made = plan(linear([[1, 1]], **far), **ASKED)
    assert max_release(float(made.sigma[0])) > 1e6


@settings(max_examples=4, deadline=None)
@given(problems(), st.integers(0, 99))
def test_the_secure_sampler_releases_every_sum_of_the_domain(problem: Problem, seed: int) -> None:
    certificate = certify(problem.cloud, tolerance=0.1)
    made = plan(certificate, epsilon=1, delta=1e-5, hide=Trajectory(radius=1e-5))
    sums = contributed(problem)
    lower = np.concatenate([group.lower.ravel() for group in made.domain])
    upper = np.concatenate([group.upper.ravel() for group in made.domain])
    rng = np.random.default_rng(seed)
    sampler = SecureSampler(made.sigma)
    for _ in range(20):
        values = np.array(sums(np.where(rng.random(lower.size) < 0.5, lower, upper)))
        assert np.all(np.abs(values) <= certificate.contributions.size)
        sampler.release(values)


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("hide", [Trajectory(radius=1.0), Everything(rounds=9)], ids=repr)
@pytest.mark.parametrize("seam", ["gdp_mu_of", "allocate", "joint_scaling"])
def test_the_final_check_of_delta_refuses_noise_that_was_calibrated_too_small(
    three: Certificate, hide: Adjacency, seam: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["sottovoce.privacy.plan"]
    right, factor = getattr(module, seam), 1.001 if seam == "gdp_mu_of" else 0.999
    assert plan(three, **(ASKED | {"hide": hide})).certified
    monkeypatch.setattr(module, seam, lambda *given: factor * right(*given))
    with pytest.raises(PrivacyError, match="would promise less than was asked for"):
        plan(three, **(ASKED | {"hide": hide}))
