"""Bounds that do not bound."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import scipy.sparse as sparse
from fault import Fault, changed

from sottovoce.formula.intervals import unchecked

SEEN = "test_sensitivities_are_never_below_what_is_seen_in_the_domain"


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
    Fault("a fleet's slope taken at the upper end only", "slopes of a fleet", upper_end,
          "test_a_fleets_slope_is_the_steepest_at_either_end"),
    Fault("numerical convexity used as proof", "proven convexity",
          changed(lambda facts: dict.fromkeys(facts, True)),
          "test_convexity_that_is_not_proven_shortens_no_search"),
    Fault("only the first component of a vector state counts", "length of a slope", first_component,
          "test_a_fleet_of_one_is_tied_together_by_totals_and_formulas_alike"),
    Fault("the largest slope found taken for a bound", "supremum",
          changed(lambda found: replace(found, upper=found.attained)),
          "test_a_bound_holds_where_no_search_has_looked"),
    Fault("components that an output mixes count apart", "parts of a state",
          lambda _: lambda fleet, _: {s: c for c, s in enumerate(fleet.group.symbols)},
          "test_hours_that_nobody_mixes_cost_no_more_than_one"),
    Fault("cross terms of the paper's gradients dropped", "influences", of_first_agents,
          "test_outputs_that_are_not_sums_keep_their_cross_terms"),
    Fault("the norm of affine contributions without the curved ones", "joint sensitivity",
          affine_alone, "test_curved_contributions_are_added_to_the_affine_ones"),
    Fault("mu from the norm of the largest sum alone", "joint sensitivity",
          lambda _: lambda S, precision: np.max(
              np.square(S.dense()) * precision[:, np.newaxis], axis=0),
          "test_curved_contributions_are_added_to_the_affine_ones"),
    Fault("negative weights of a fleet lower its slope", "weighted slopes", positive,
          "test_negative_weights_move_a_sum_as_far_as_positive_ones"),
    Fault("sensitivity of one sum halved", "sensitivity", changed(block_times(first_row_halved)),
          SEEN),
    Fault("sensitivity from the wrong column", "sensitivity",
          changed(block_times(first_agent_left_out)), SEEN),
    Fault("states kept in a larger domain than the certified one", "certificate", changed(original),
          SEEN),
    Fault("domain not tightened", "tightened domain", lambda _: lambda cloud, **__: cloud.groups,
          "test_the_margin_stops_half_way_to_the_original_bound"),
    Fault("domain without its margin", "tightened domain",
          lambda sound: lambda cloud, **__: sound(cloud, margin=0.0),
          "test_the_margin_stops_half_way_to_the_original_bound"),
    Fault("slack as small as rounding taken for an interior", "Slater point", changed(with_room),
          "test_an_inequality_that_an_equality_presses_shut_fails"),
    Fault("sums of intervals rounded inwards", "sum of intervals",
          lambda _: lambda a, b: unchecked(a.lower + b.lower, a.upper + b.upper),
          "test_a_sum_is_rounded_outward_to_the_nearest_float"),
    Fault("rounding of sums left out of the evaluation error", "evaluation error",
          changed(lambda error: 0.0 * error), "test_a_sum_of_exact_numbers_is_rounded"),
    Fault("underflow left out of the evaluation error", "evaluation error",
          changed(lambda error: np.where(error < 1e-30, 0.0, error)),
          "test_what_underflows_is_covered_by_the_bound"),
    Fault("a range counted as half of it to hide everything", "ranges of contributions",
          spread(lambda *_: 0.5), "test_everything_means_the_range_of_every_contribution"),
    Fault("one agent's contributions left out of the range", "ranges of contributions",
          spread(first_agent_left_out), "test_the_range_of_an_affine_contribution_is_exact"),
    Fault("a sum larger than certified", "ranges of contributions",
          changed(lambda found: replace(found, size=0.9 * found.size)),
          "test_the_range_of_an_affine_contribution_is_exact"),
    Fault("spectral bound rounded down", "spectral bounds",
          changed(lambda ends: (ends[0], ends[1] * (1 - 2.0**-48))),
          "test_known_norms_are_reached_from_above"),
)  # fmt: skip
