"""Bounds that do not bound."""

from __future__ import annotations

from mutant import Mutant

SENSITIVITY = "tests/certify/test_sensitivity.py::"

CERTIFIED = (
    Mutant(
        name="a fleet's slope taken at the upper end only",
        file="certify/sensitivity.py",
        old="found = np.maximum(low, norm(group.upper, group.upper))",
        new="found = norm(group.upper, group.upper)",
        killed_by=SENSITIVITY + "test_a_fleets_slope_is_the_steepest_at_either_end",
    ),
    Mutant(
        name="numerical convexity used as proof",
        file="certify/certificate.py",
        old='and a.status == "proven"',
        new='and a.status != "fails"',
        killed_by=SENSITIVITY + "test_convexity_that_is_not_proven_shortens_no_search",
    ),
    Mutant(
        name="only the first component of a vector state counts",
        file="certify/sensitivity.py",
        old="components = [sp.diff(expr, s) for s in group.symbols]",
        new="components = [sp.diff(expr, s) for s in group.symbols[:1]]",
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
        name="cross terms of released gradients dropped",
        file="certify/sensitivity.py",
        old="            if any(components):\n",
        new="            entry = released[output - cloud.rows] if output >= cloud.rows else None\n"
        "            if any(components) and (entry is None or entry.agent == first):\n",
        killed_by=SENSITIVITY + "test_every_agent_moves_the_released_gradients_of_every_other",
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
)
