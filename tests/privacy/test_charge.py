"""What an account is charged: never less than the theorem says for the distance it protects."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sottovoce as sv
from plans import certified
from sottovoce.errors import BudgetError, InputError
from sottovoce.privacy.adjacency import Kind
from sottovoce.privacy.allocation import spent_gdp_mu
from sottovoce.privacy.charge import BITS, Charge, Protected, amount, ratio_up

DISTANCES = st.floats(1e-9, 1e9)
PARAMETERS = st.just(0.0) | st.floats(1e-30, 1e6)


def charged(charge: Charge, account: Protected) -> Fraction:
    return Fraction(amount(charge, account), 2**BITS)


def up(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


@given(slope=PARAMETERS, rounding=PARAMETERS, planned=DISTANCES, protected=DISTANCES)
def test_a_charge_is_never_below_the_promise_at_the_protected_distance(
    slope: float, rounding: float, planned: float, protected: float
) -> None:
    promise = Fraction(slope) * Fraction(planned) + Fraction(rounding)
    needed = Fraction(slope) * Fraction(protected) + Fraction(rounding)
    mu = up(promise)
    for allowance in (min(rounding, mu), mu):
        charge = Charge(
            agent="pump", protected=Protected("trajectory", planned), mu=mu, allowance=allowance
        )
        assert charged(charge, Protected("trajectory", protected)) >= needed


@given(mu=st.floats(1e-12, 10.0), planned=DISTANCES, protected=DISTANCES, share=st.floats(0, 1))
def test_charges_are_exact_up_to_the_last_of_a_hundred_bits(
    mu: float, planned: float, protected: float, share: float
) -> None:
    allowance = min(mu * share, mu)
    charge = Charge(
        agent="pump", protected=Protected("offset", planned), mu=mu, allowance=allowance
    )
    ratio = Fraction(protected) / Fraction(planned)
    exact = ratio * Fraction(mu) + max(Fraction(0), 1 - ratio) * Fraction(allowance)
    got = charged(charge, Protected("offset", protected))
    assert 0 <= got - exact < Fraction(1, 2**BITS)


@pytest.mark.parametrize("make", [sv.Trajectory, sv.Offset])
def test_a_plan_is_charged_what_its_noise_reveals_at_every_other_radius(make: Any) -> None:
    certificate = certified("paper")
    planned = np.linspace(0.5, 1.5, certificate.cloud.agents)
    T = 1000
    plan = sv.plan(certificate, epsilon=1.0, delta=1e-6, hide=make(radius=planned, rounds=T))
    charges = plan.charges()
    assert [c.agent for c in charges] == plan.cloud.agent_labels()
    assert [c.mu for c in charges] == plan.gdp_mu.tolist()
    for radius in (1e-6, 0.01, 0.5, 1.0, 20.0):
        reach = np.full(planned.size, radius * (1.0 if make is sv.Trajectory else T**0.5))
        errors = certificate.contributions.error
        there = spent_gdp_mu(certificate.sensitivity, plan.sigma, reach, errors, plan.rounds)
        for charge, needed, b in zip(charges, there.tolist(), planned, strict=True):
            got = charged(charge, Protected(plan.hide.kind, radius))
            assert got >= Fraction(needed) * Fraction(1 - 2.0**-45)  # spent() rounds up itself
            # Beyond b rounding is charged as if it grew too.
            slack = charge.allowance * max(0.0, radius / b - 1)
            assert float(got) <= needed * (1 + 1e-9) + slack * (1 + 1e-9)


KINDS: tuple[Kind, ...] = get_args(Kind)
SOUND = {("trajectory", "trajectory"), ("trajectory", "offset"), ("trajectory", "everything"),
         ("offset", "offset"), ("offset", "everything"),
         ("everything", "everything")}  # fmt: skip


def of(kind: Kind, radius: float) -> Protected:
    return Protected(kind, None if kind == "everything" else radius)


@pytest.mark.parametrize("run", KINDS)
@pytest.mark.parametrize("account", KINDS)
def test_only_runs_that_speak_of_all_protected_pairs_are_charged(account: Kind, run: Kind) -> None:
    charge = Charge(agent="pump", protected=of(run, 2.0), mu=0.5, allowance=0.0)
    if (account, run) in SOUND:
        scaled = "everything" not in (account, run)
        assert charged(charge, of(account, 1.0)) == (0.25 if scaled else 0.5)
        return
    with pytest.raises(
        BudgetError, match=f"account for {account}.*a run for {run}.*bounds nothing"
    ):
        amount(charge, of(account, 1.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Protected("offset", 0.0), "radius must lie in"),
        (lambda: Protected("offset", math.nan), "radius must lie in"),
        (lambda: of_pump(math.nan, 0.0), r"mu of agent 'pump' must lie in \[0, 1e\+100\]"),
        (lambda: of_pump(0.5, 0.6), r"allowance of agent 'pump' must lie in \[0, mu\]"),
        (lambda: of_pump(0.5, math.nan), "allowance of agent 'pump' must lie in"),
    ],
)
def test_bad_charges_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def of_pump(mu: float, allowance: float) -> Charge:
    return Charge(agent="pump", protected=Protected("everything"), mu=mu, allowance=allowance)


@given(mu=st.floats(0, 1e6), radius=DISTANCES)
def test_a_ratio_is_never_rounded_down(mu: float, radius: float) -> None:
    assert Fraction(ratio_up(mu, radius)) * Fraction(radius) >= Fraction(mu)
    assert ratio_up(mu, radius) <= math.nextafter(mu / radius, math.inf)
