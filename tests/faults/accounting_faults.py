"""Promises that are worked out, added up or printed too well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from fault import Fault, changed, returning

from sottovoce.privacy.adjacency import Everything
from sottovoce.privacy.sampler import DISCRETISATION, grid_of

ALLOCATE = "privacy/test_allocation.py::"
CAPS = "privacy/test_allocation.py::test_every_cap_holds_in_exact_arithmetic"
GROWS = "privacy/test_plan.py::test_noise_grows_with_rounds_radii_and_promises_of_agents"
FEASIBLE = "privacy/test_feasibility.py::"
WORSE = "privacy/test_gaussian.py::test_accounting_rounds_towards_the_worse_at_a_few_points"
PAPER = "paper/test_paper_plan.py::"
PLAN = "privacy/test_plan.py::"


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
            found = reach(hide, agents)
            return found / np.sqrt(hide.rounds) if isinstance(hide, only) else found

        return broken

    return breaks


def least_demanding(noise: Any) -> Any:
    def broken(cloud: Any, asked: Any, *others: Any) -> Any:
        most = {k: np.full(cloud.agents, getattr(asked, k).max()) for k in ("epsilon", "delta")}
        return noise(cloud, replace(asked, **most), *others)

    return broken


def smallest_radius(noise: Any) -> Any:
    return lambda cloud, asked, reach, *others: noise(
        cloud, asked, np.full(reach.shape, reach.min()), *others
    )


def one_bare(sigma: Any) -> Any:
    sigma = sigma.copy()
    sigma[-1] = 0.0
    return sigma


ACCOUNTING = (
    Fault(name="epsilon rounded down", seam="epsilon of mu",
          breaks=changed(lambda epsilon: epsilon * (1 - 2.0**-36)), killed_by=WORSE),
    Fault(name="delta rounded down", seam="delta of mu",
          breaks=changed(lambda delta: delta * (1 - 2.0**-30)), killed_by=WORSE),
    Fault(name="mu rounded up", seam="mu of a promise",
          breaks=changed(lambda mu: mu * (1 + 2.0**-36)), killed_by=WORSE),
    Fault(name="K_delta taken from the other tail", seam="the paper's kappa",
          breaks=lambda kappa: lambda epsilon, delta: kappa(epsilon, 1 - delta), killed_by=WORSE),
    Fault(name="rounding to the grid not paid for", seam="allowance for rounding",
          breaks=lambda sound: lambda sigma, error: sound(sigma, error) - 2 * grid_of(sigma),
          killed_by=PLAN + "test_the_claim_pays_for_rounding"),
    Fault(name="evaluation error not paid for", seam="allowance for rounding",
          breaks=lambda sound: lambda sigma, error: sound(sigma, 0.0 * error),
          killed_by=PLAN + "test_a_radius_below_the_rounding_error_of_the_outputs_is_refused"),
    Fault(name="rounding of one round paid once for all rounds", seam="share of rounding",
          breaks=lambda sound: lambda sigma, errors, rounds: sound(sigma, errors, 1),
          killed_by=ALLOCATE + "test_what_is_spent_is_the_shift_and_the_rounding"),
    Fault(name="discrete noise counted as continuous", seam="mu that is spent",
          breaks=changed(lambda mu: mu / DISCRETISATION),
          killed_by=ALLOCATE + "test_what_is_spent_is_the_shift_and_the_rounding"),
    Fault(name="sqrt(T) dropped where every round counts", seam="reach of a pair",
          breaks=without_root(object), killed_by=GROWS),
    Fault(name="everything costs no sqrt(T)", seam="reach of a pair",
          breaks=without_root(Everything), killed_by=GROWS),
    Fault(name="radius per agent ignored", seam="radii", breaks=changed(of_all(np.min)),
          killed_by=GROWS),
    Fault(name="epsilon per agent ignored", seam="mu of a promise",
          breaks=changed(of_all(np.max)), killed_by=GROWS),
    Fault(name="noise not scaled until every promise holds", seam="allocation",
          breaks=changed(lambda sigma: 0.999 * sigma), killed_by=CAPS),
    Fault(name="a sum left without noise", seam="allocation", breaks=changed(one_bare),
          killed_by=CAPS),
    Fault(name="the paper's noise for its least demanding agent", seam="the paper's noise",
          breaks=least_demanding, killed_by=PAPER + "test_the_most_demanding_agent_sets_the_noise"),
    Fault(name="the paper's noise for the smallest radius", seam="the paper's noise",
          breaks=smallest_radius, killed_by=PAPER + "test_the_most_demanding_agent_sets_the_noise"),
    Fault(name="an undernoised mechanism of the paper let through",
          seam="check of the paper's mechanisms", breaks=returning(True),
          killed_by=PAPER + "test_coupled_constraints_break_the_formula_and_are_refused"),
    Fault(name="every agent told the guarantee of the best protected one", seam="guarantee",
          breaks=lambda sound: lambda plan, agent=None: sound(plan, int(np.argmin(plan.gdp_mu))),
          killed_by=PLAN + "test_a_guarantee_is_that_agents_own"),
    Fault(name="epsilon, delta and mu printed to nearest", seam="figures rounded up",
          breaks=lambda _: lambda value, digits=6: f"{value:.{digits}g}",
          killed_by="privacy/test_statement.py::"
          "test_epsilon_delta_and_mu_are_printed_rounded_up_and_sigma_rounded_down"),
    Fault(name="final check of delta left out", seam="final check of a plan",
          breaks=lambda _: lambda noise: None,
          killed_by=PLAN + "test_the_final_check_of_delta_refuses_noise_that_was_calibrated_too_"
          "small"),
    Fault(name="a plan beyond what the sampler releases", seam="check of a plan's size",
          breaks=lambda _: lambda noise, sizes: None,
          killed_by=PLAN + "test_an_output_beyond_the_samplers_reach_is_refused"),
    Fault(name="margins halved", seam="margins",
          breaks=changed(lambda found: replace(found, margin=found.margin / 2)),
          killed_by=FEASIBLE + "test_confirmed_answers_violate_with_the_stated_probability_at_"
          "most[False]"),
    Fault(name="an answer confirmed without a test", seam="test of an answer",
          breaks=lambda _: lambda self, averaged, off=0.0: np.ones(len(averaged), dtype=bool),
          killed_by=FEASIBLE + "test_an_answer_that_is_no_number_is_not_confirmed"),
    Fault(name="boxes that reach beyond a pole", seam="box within ranges",
          breaks=lambda _: lambda y, away, ranges, falls: (y - away, y + away),
          killed_by=FEASIBLE + "test_poles_beyond_the_ranges_of_the_sums_confirm_nothing"),
    Fault(name="held agents widen an ellipsoid instead of adding a box", seam="region around a box",
          breaks=widened,
          killed_by=FEASIBLE + "test_a_ball_with_held_agents_holds_the_corners_of_what_they_may_"
          "be_off_by"),
    Fault(name="margins around a constraint that is not proven convex", seam="proof of convexity",
          breaks=returning(None),
          killed_by=FEASIBLE + "test_unproven_convexity_of_a_constraint_that_can_be_violated_"
          "is_refused"),
    Fault(name="words that counted again left out of the margin", seam="test of an answer",
          breaks=lambda sound: lambda self, averaged, off=0.0: sound(self, averaged),
          killed_by="network/test_feasible_run.py::"
          "test_words_that_counted_again_widen_the_margin_by_what_they_can_be_off"),
    Fault(name="a run confirmed at its end whatever was released", seam="verdict",
          breaks=lambda _: lambda self, k, *_: True if k == self._rounds else None,
          killed_by="network/test_feasible_run.py::"
          "test_without_a_confirmation_fallbacks_are_applied"),
)  # fmt: skip
