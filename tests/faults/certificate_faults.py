"""Bounds that do not bound."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import scipy.sparse as sparse
from fault import Fault, changed

from sottovoce.formula.intervals import wrap

CONTRIBUTIONS = "certificate/test_contributions.py::"
EVALUATION = "certificate/test_evaluation.py::"
SENSITIVITY = "certificate/test_sensitivity.py::"
SEEN = "privacy/test_plan.py::test_sensitivities_are_never_below_what_is_seen_in_the_domain"


def upper_end(slopes: Any) -> Any:
    return lambda h, group, **known: slopes(h, replace(group, lower=group.upper), **known)


def first_component(length: Any) -> Any:
    return lambda slopes, group: length(dict([*slopes.items()][:1]), group)


def of_first_agents(bounds: Any) -> Any:
    """Every output is moved by the first of its agents alone."""
    return lambda *mixture, **known: islice(bounds(*mixture, **known), 1)


def positive(weighted: Any) -> Any:
    return lambda weight, *slopes: weighted(np.maximum(weight, 0.0), *slopes)


def affine_alone(together: Any) -> Any:
    def broken(S: Any, precision: Any) -> Any:
        total = together(S, precision)
        for affine in S.affine:
            total[affine.agents] = affine.loads(precision)
        return total

    return broken


def block_times(change: Any) -> Any:
    """Multiply the bounds of every block by a matrix that depends on it."""

    def of(S: Any) -> Any:
        def changed_block(block: Any) -> Any:
            upper = block.upper
            factor = np.broadcast_to(change(block, upper), upper.shape)
            if not sparse.issparse(upper):
                return replace(block, upper=upper * factor)
            row = np.repeat(np.arange(upper.shape[0]), np.diff(upper.indptr))
            values = upper.data * factor[row, upper.indices]
            kept = sparse.csr_array((values, upper.indices, upper.indptr), shape=upper.shape)
            return replace(block, upper=kept)

        return replace(S, blocks=tuple(map(changed_block, S.blocks)))

    return of


def first_row_halved(block: Any, upper: Any) -> Any:
    return np.where(block.rows == 0, 0.5, 1.0)[:, np.newaxis]


def first_agent_left_out(block: Any, upper: Any) -> Any:
    return (np.arange(upper.shape[1]) + block.first > 0)[np.newaxis, :]


def spread(change: Any) -> Any:
    return changed(lambda found: replace(found, spread=block_times(change)(found.spread)))


def original(certificate: Any) -> Any:
    return replace(certificate, domain=certificate.cloud.groups)


def with_room(found: Any) -> Any:
    return replace(found, status="numerical")


CERTIFIED = (
    Fault(name="a fleet's slope taken at the upper end only", seam="slopes of a fleet",
          breaks=upper_end,
          killed_by=SENSITIVITY + "test_a_fleets_slope_is_the_steepest_at_either_end"),
    Fault(name="numerical convexity used as proof", seam="proven convexity",
          breaks=changed(lambda facts: dict.fromkeys(facts, True)),
          killed_by=SENSITIVITY + "test_convexity_that_is_not_proven_shortens_no_search"),
    Fault(name="only the first component of a vector state counts", seam="length of a slope",
          breaks=first_component,
          killed_by=SENSITIVITY
          + "test_a_fleet_of_one_is_tied_together_by_totals_and_formulas_alike"),
    Fault(name="the largest slope found taken for a bound", seam="supremum",
          breaks=changed(lambda found: replace(found, upper=found.found)),
          killed_by="certificate/test_supremum.py::test_a_bound_holds_where_no_search_has_looked"),
    Fault(name="components that an output mixes count apart", seam="parts of a state",
          breaks=lambda _: lambda fleet, _: {s: c for c, s in enumerate(fleet.group.symbols)},
          killed_by=SENSITIVITY + "test_hours_that_nobody_mixes_cost_no_more_than_one"),
    Fault(name="cross terms of the paper's gradients dropped", seam="influences",
          breaks=of_first_agents,
          killed_by=SENSITIVITY + "test_outputs_that_are_not_sums_keep_their_cross_terms"),
    Fault(name="the norm of affine contributions without the curved ones",
          seam="joint sensitivity", breaks=affine_alone,
          killed_by="certificate/test_sensitivity.py::"
          "test_curved_contributions_are_added_to_the_affine_ones"),
    Fault(name="mu from the norm of the largest sum alone", seam="joint sensitivity",
          breaks=lambda _: lambda S, precision: np.max(
              np.square(S.dense()) * precision[:, np.newaxis], axis=0),
          killed_by="certificate/test_sensitivity.py::"
          "test_curved_contributions_are_added_to_the_affine_ones"),
    Fault(name="negative weights of a fleet lower its slope", seam="weighted slopes",
          breaks=positive,
          killed_by=SENSITIVITY + "test_negative_weights_move_a_sum_as_far_as_positive_ones"),
    Fault(name="sensitivity of one sum halved", seam="sensitivity",
          breaks=changed(block_times(first_row_halved)), killed_by=SEEN),
    Fault(name="sensitivity from the wrong column", seam="sensitivity",
          breaks=changed(block_times(first_agent_left_out)), killed_by=SEEN),
    Fault(name="states kept in a larger domain than the certified one", seam="certificate",
          breaks=changed(original), killed_by=SEEN),
    Fault(name="domain not tightened", seam="tightened domain",
          breaks=lambda _: lambda cloud, **__: cloud.groups,
          killed_by="certificate/test_domain.py::test_the_margin_stops_half_way_to_the_original_bound"),
    Fault(name="domain without its margin", seam="tightened domain",
          breaks=lambda sound: lambda cloud, **__: sound(cloud, margin=0.0),
          killed_by="certificate/test_domain.py::test_the_margin_stops_half_way_to_the_original_bound"),
    Fault(name="slack as small as rounding taken for an interior", seam="Slater point",
          breaks=changed(with_room),
          killed_by="certificate/test_slater.py::"
          "test_an_inequality_that_an_equality_presses_shut_fails"),
    Fault(name="sums of intervals rounded inwards", seam="sum of intervals",
          breaks=lambda _: lambda a, b: wrap(a.lower + b.lower, a.upper + b.upper),
          killed_by="formula/test_intervals.py::"
          "test_a_sum_is_rounded_outward_to_the_nearest_float"),
    Fault(name="rounding of sums left out of the evaluation error", seam="evaluation error",
          breaks=changed(lambda error: 0.0 * error),
          killed_by=EVALUATION + "test_a_sum_of_exact_numbers_is_rounded"),
    Fault(name="underflow left out of the evaluation error", seam="evaluation error",
          breaks=changed(lambda error: np.where(error < 1e-30, 0.0, error)),
          killed_by=EVALUATION + "test_what_underflows_is_covered_by_the_bound"),
    Fault(name="a range counted as half of it to hide everything",
          seam="ranges of contributions", breaks=spread(lambda *_: 0.5),
          killed_by="privacy/test_plan.py::"
          "test_everything_means_the_range_of_every_contribution"),
    Fault(name="one agent's contributions left out of the range",
          seam="ranges of contributions", breaks=spread(first_agent_left_out),
          killed_by=CONTRIBUTIONS + "test_the_range_of_an_affine_contribution_is_exact"),
    Fault(name="a sum larger than certified", seam="ranges of contributions",
          breaks=changed(lambda found: replace(found, size=0.9 * found.size)),
          killed_by=CONTRIBUTIONS + "test_the_range_of_an_affine_contribution_is_exact"),
    Fault(name="spectral bound rounded down", seam="spectral bounds",
          breaks=changed(lambda ends: (ends[0], ends[1] * (1 - 2.0**-48))),
          killed_by="certificate/test_supremum.py::test_known_norms_are_reached_from_above"),
)  # fmt: skip
