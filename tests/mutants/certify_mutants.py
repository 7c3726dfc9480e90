"""Bounds that do not bound."""

from __future__ import annotations

from mutant import Mutant

CONTRIBUTIONS = "tests/certify/test_contributions.py::"
SENSITIVITY = "tests/certify/test_sensitivity.py::"

CERTIFIED = (
    Mutant(
        name="a fleet's slope taken at the upper end only",
        file="certify/slopes.py",
        old="found = np.maximum(low, norm(group.upper, group.upper))",
        new="found = norm(group.upper, group.upper)",
        killed_by=SENSITIVITY + "test_a_fleets_slope_is_the_steepest_at_either_end",
    ),
    Mutant(
        name="numerical convexity used as proof",
        file="certify/assumptions.py",
        old='stated.get(a.row, True) and a.status == "proven"',
        new='stated.get(a.row, True) and a.status != "fails"',
        killed_by=SENSITIVITY + "test_convexity_that_is_not_proven_shortens_no_search",
    ),
    Mutant(
        name="only the first component of a vector state counts",
        file="certify/influence.py",
        old="    if terms.numbers.shape[1] > 1:\n",
        new="    if terms.numbers.shape[1] > 9:\n",
        killed_by=SENSITIVITY + "test_a_fleet_of_one_is_tied_together_by_totals_and_formulas_alike",
    ),
    Mutant(
        name="the largest slope found taken for a bound",
        file="certify/supremum.py",
        old="return Supremum(upper=float(upper), found=found, at=at)",
        new="return Supremum(upper=found, found=found, at=at)",
        killed_by="tests/certify/test_supremum.py::test_a_bound_holds_where_no_search_has_looked",
    ),
    Mutant(
        name="components that an output mixes count apart",
        file="certify/sensitivity.py",
        old="links[np.ix_(mixed, mixed)] = 1.0",
        new="links[mixed, mixed] = 1.0",
        killed_by=SENSITIVITY + "test_hours_that_nobody_mixes_cost_no_more_than_one",
    ),
    Mutant(
        name="cross terms of the paper's gradients dropped",
        file="certify/influence.py",
        old="            if not moving or not any(components):\n",
        new="            if not moving or not any(components) or agent != unit.agents[0]:\n",
        killed_by=SENSITIVITY + "test_outputs_that_are_not_sums_keep_their_cross_terms",
    ),
    Mutant(
        name="the norm of affine contributions without the curved ones",
        file="certify/sensitivity.py",
        old="both = (affine.loads(precision) + rest) * (1.0 + 4.0 * 2.0**-52)",
        new="both = affine.loads(precision)",
        killed_by="tests/certify/test_affine.py::"
        "test_curved_contributions_are_added_to_the_affine_ones",
    ),
    Mutant(
        name="slack as small as rounding taken for an interior",
        file="certify/slater.py",
        old="_ROOM = 1e-7",
        new="_ROOM = 0.0",
        killed_by="tests/certify/test_equalities.py::"
        "test_an_inequality_that_an_equality_presses_shut_fails",
    ),
    Mutant(
        name="negative weights of a fleet lower its slope",
        file="certify/sensitivity.py",
        old="product = np.abs(part.weights)[:, np.newaxis, :]",
        new="product = np.maximum(part.weights, 0.0)[:, np.newaxis, :]",
        killed_by=SENSITIVITY + "test_negative_weights_move_a_sum_as_far_as_positive_ones",
    ),
    Mutant(
        name="sums rounded to nearest",
        file="certify/arithmetic.py",
        old="return wrap(*_outward(lower, upper, below >= 0, above <= 0))",
        new="return wrap(lower, upper)",
        killed_by="tests/certify/test_arithmetic.py::"
        "test_a_sum_is_rounded_outward_to_the_nearest_float",
    ),
    Mutant(
        name="rounding of sums left out of the evaluation error",
        file="certify/evaluation.py",
        old="lost = len(inner) * (_UNIT * reach + _UNDERFLOW)",
        new="lost = 0.0 * reach",
        killed_by="tests/certify/test_evaluation.py::test_a_sum_of_exact_numbers_is_rounded",
    ),
    Mutant(
        name="underflow left out of the evaluation error",
        file="certify/evaluation.py",
        old="_UNDERFLOW = 2.0**-1022",
        new="_UNDERFLOW = 0.0",
        killed_by="tests/certify/test_evaluation.py::test_what_underflows_is_covered_by_the_bound",
    ),
    Mutant(
        name="domain without its margin",
        file="certify/domain.py",
        old="MARGIN = 0.01",
        new="MARGIN = 0.0",
        killed_by="tests/certify/test_domain.py::"
        "test_the_margin_stops_half_way_to_the_original_bound",
    ),
    Mutant(
        name="sensitivity of one sum halved",
        file="certify/influence.py",
        old="part=label[column], upper=above, found=met)",
        new="part=label[column], upper=above / (1 + (row == 0)), found=met)",
        killed_by=SENSITIVITY + "test_loads_bound_the_largest_singular_value_everywhere",
    ),
    Mutant(
        name="a sum larger than certified by one agent",
        file="certify/contributions.py",
        old="size[rows] += np.asarray(reach.sum(axis=1)).ravel() * _UP",
        new="size[rows] += np.asarray(reach[:, 1:].sum(axis=1)).ravel() * _UP",
        killed_by=CONTRIBUTIONS + "test_the_range_of_an_affine_contribution_is_exact",
    ),
    Mutant(
        name="one agent's contributions left out of the range",
        file="certify/contributions.py",
        old="blocks.append(Block(rows=rows, first=first, upper=width, found=width))",
        new="blocks.append(Block(rows=rows, first=first, upper=width * bool(first), found=width))",
        killed_by=CONTRIBUTIONS + "test_the_range_of_an_affine_contribution_is_exact",
    ),
    Mutant(
        name="spectral bound rounded down",
        file="certify/spectral.py",
        old="upper = (s[..., 0] * np.sqrt(grown) + missed) * (1 + 16 * _ROUNDING)",
        new="upper = s[..., 0] * (1 - 16 * _ROUNDING)",
        killed_by="tests/certify/test_spectral.py::"
        "test_the_spectral_norm_is_never_below_the_true_one_and_tight",
    ),
)
