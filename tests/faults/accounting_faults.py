"""Promises that are worked out, added up or printed too well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from fault import Fault, changed, returning

from sottovoce.privacy.adjacency import Everything
from sottovoce.privacy.sampler import DISCRETISATION, grid_of

CAPS = "test_every_cap_holds_in_exact_arithmetic"
GROWS = "test_noise_grows_with_rounds_radii_and_promises_of_agents"
WORSE = "test_accounting_rounds_towards_the_worse_at_a_few_points"


def widened(within: Any) -> Any:
    def broken(region: Any, around: Any, ranges: Any, falls: Any) -> Any:
        y, noise, box = around
        return within(region, (y, noise + box, 0.0 * box), ranges, falls)

    return broken


def of_all(most: Any) -> Any:
    """One number for all agents."""
    return lambda values: np.full(values.shape, most(values)) if np.ndim(values) else values


def without_root(only: Any) -> Any:
    def breaks(reach: Any) -> Any:
        def broken(hide: Any, agents: int) -> Any:
            bound = reach(hide, agents)
            return bound / np.sqrt(hide.rounds) if isinstance(hide, only) else bound

        return broken

    return breaks


def least_demanding(noise: Any) -> Any:
    def broken(cloud: Any, request: Any, *others: Any) -> Any:
        most = {k: np.full(cloud.agents, getattr(request, k).max()) for k in ("epsilon", "delta")}
        return noise(cloud, replace(request, **most), *others)

    return broken


def smallest_radius(noise: Any) -> Any:
    return lambda cloud, request, reach, *others: noise(
        cloud, request, np.full(reach.shape, reach.min()), *others
    )


def one_bare(sigma: Any) -> Any:
    sigma = sigma.copy()
    sigma[-1] = 0.0
    return sigma


ACCOUNTING = (
    Fault("epsilon rounded down", "epsilon of mu",
          changed(lambda epsilon: epsilon * (1 - 2.0**-36)), WORSE),
    Fault("delta rounded down", "delta of mu", changed(lambda delta: delta * (1 - 2.0**-30)),
          WORSE),
    Fault("mu rounded up", "mu of a promise", changed(lambda mu: mu * (1 + 2.0**-36)), WORSE),
    Fault("K_delta taken from the other tail", "the paper's kappa",
          lambda kappa: lambda epsilon, delta: kappa(epsilon, 1 - delta), WORSE),
    Fault("rounding to the grid not paid for", "allowance for rounding",
          lambda sound: lambda sigma, error: sound(sigma, error) - 2 * grid_of(sigma),
          "test_the_claim_pays_for_rounding"),
    Fault("evaluation error not paid for", "allowance for rounding",
          lambda sound: lambda sigma, error: sound(sigma, 0.0 * error),
          "test_a_radius_below_the_rounding_error_of_the_outputs_is_refused"),
    Fault("rounding of one round paid once for all rounds", "share of rounding",
          lambda sound: lambda sigma, errors, rounds: sound(sigma, errors, 1),
          "test_what_is_spent_is_the_shift_and_the_rounding"),
    Fault("discrete noise counted as continuous", "mu that is spent",
          changed(lambda mu: mu / DISCRETISATION),
          "test_what_is_spent_is_the_shift_and_the_rounding"),
    Fault("sqrt(T) dropped where every round counts", "reach of a pair", without_root(object),
          GROWS),
    Fault("everything costs no sqrt(T)", "reach of a pair", without_root(Everything), GROWS),
    Fault("radius per agent ignored", "radii", changed(of_all(np.min)), GROWS),
    Fault("epsilon per agent ignored", "mu of a promise", changed(of_all(np.max)), GROWS),
    Fault("noise not scaled until every promise holds", "allocation",
          changed(lambda sigma: 0.999 * sigma), CAPS),
    Fault("a sum left without noise", "allocation", changed(one_bare), CAPS),
    Fault("the paper's noise for its least demanding agent", "the paper's noise", least_demanding,
          "test_the_most_demanding_agent_sets_the_noise"),
    Fault("the paper's noise for the smallest radius", "the paper's noise", smallest_radius,
          "test_the_most_demanding_agent_sets_the_noise"),
    Fault("an undernoised mechanism of the paper let through", "check of the paper's mechanisms",
          returning(True), "test_coupled_constraints_break_the_formula_and_are_refused"),
    Fault("every agent told the guarantee of the best protected one", "guarantee",
          lambda sound: lambda plan, agent=None: sound(plan, int(np.argmin(plan.gdp_mu))),
          "test_a_guarantee_is_that_agents_own"),
    Fault("epsilon, delta and mu printed to nearest", "figures rounded up",
          lambda _: lambda value, digits=6: f"{value:.{digits}g}",
          "test_promises_are_printed_rounded_up_and_sigma_down"),
    Fault("final check of delta left out", "final check of a plan", lambda _: lambda noise: None,
          "test_the_final_check_of_delta_refuses_noise_that_was_calibrated_too_small"),
    Fault("a plan beyond what the sampler releases", "check of a plan's size",
          lambda _: lambda noise, sizes: None,
          "test_an_output_beyond_the_samplers_reach_is_refused"),
    Fault("margins halved", "margins",
          changed(lambda feasible: replace(feasible, margin=feasible.margin / 2)),
          "test_confirmed_answers_violate_with_the_stated_probability_at_most[False]"),
    Fault("an answer confirmed without a test", "test of an answer",
          lambda _: lambda self, averaged, off=0.0: np.ones(len(averaged), dtype=bool),
          "test_an_answer_that_is_no_number_is_not_confirmed"),
    Fault("boxes that reach beyond a pole", "box within ranges",
          lambda _: lambda y, away, ranges, falls: (y - away, y + away),
          "test_poles_beyond_the_ranges_of_the_sums_confirm_nothing"),
    Fault("held agents widen an ellipsoid instead of adding a box", "region around a box", widened,
          "test_a_ball_with_held_agents_holds_the_corners_of_what_they_may_be_off_by"),
    Fault("margins around a constraint that is not proven convex", "proof of convexity",
          returning(None),
          "test_unproven_convexity_of_a_constraint_that_can_be_violated_is_refused"),
    Fault("words that counted again left out of the margin", "test of an answer",
          lambda sound: lambda self, averaged, off=0.0: sound(self, averaged),
          "test_words_that_counted_again_widen_the_margin_by_what_they_can_be_off"),
    Fault("a run confirmed at its end whatever was released", "test at the end",
          lambda _: lambda self, k, *_: True if k == self._rounds else None,
          "test_without_confirmation_fallbacks_apply"),
)  # fmt: skip
