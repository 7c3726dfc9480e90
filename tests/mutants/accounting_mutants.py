"""Promises that are worked out, added up or printed too well."""

from __future__ import annotations

from mutant import Mutant

GAUSSIAN = "tests/privacy/test_gaussian.py::"
PLAN = "tests/privacy/test_plan.py::"

ACCOUNTING = (
    Mutant(
        name="epsilon rounded down",
        file="privacy/gaussian.py",
        old="while np.any(short := _log_delta(*_tail(m, epsilon)) > target):",
        new="epsilon = epsilon * (1 - 2.0**-40)\n"
        "    while np.any(short := np.zeros(epsilon.shape, dtype=bool)):",
        killed_by=GAUSSIAN + "test_epsilon_is_an_upper_bound_within_the_stated_waste",
    ),
    Mutant(
        name="delta rounded down",
        file="privacy/gaussian.py",
        old="np.exp(_log_delta(*_tail(np.maximum(m, 1 / LARGEST), e))) * (1 + 4 * UNIT)",
        new="np.exp(_log_delta(*_tail(np.maximum(m, 1 / LARGEST), e))) * (1 - 2.0**-30)",
        killed_by=GAUSSIAN + "test_delta_is_an_upper_bound_within_the_stated_waste",
    ),
    Mutant(
        name="mu rounded up",
        file="privacy/gaussian.py",
        old='return cast("Real", _unwrapped(mu))',
        new='return cast("Real", _unwrapped(mu * (1 + 2.0**-36)))',
        killed_by=GAUSSIAN + "test_mu_never_achieves_more_than_the_asked_delta_and_wastes_nothing",
    ),
    Mutant(
        name="K_delta taken from the other tail",
        file="privacy/gaussian.py",
        old="k: Floats = -ndtri(delta)",
        new="k: Floats = ndtri(delta)",
        killed_by=GAUSSIAN + "test_kappa_and_exact_sigma_are_rounded_up_and_ordered",
    ),
    Mutant(
        name="composition rounded down",
        file="privacy/gaussian.py",
        old="return math.nextafter(root * (1 + 8 * UNIT), math.inf)",
        new="return math.nextafter(root, 0.0)",
        killed_by=GAUSSIAN + "test_composition_is_rounded_up_from_the_exact_root",
    ),
    Mutant(
        name="rounding to the grid not paid for",
        file="privacy/sampler.py",
        old="return 2 * grid_of(sigma) + 2 * evaluation_error * (1 + 2.0**-50)",
        new="return 0 * grid_of(sigma) + 2 * evaluation_error * (1 + 2.0**-50)",
        killed_by=PLAN + "test_the_claim_pays_for_rounding",
    ),
    Mutant(
        name="evaluation error not paid for",
        file="privacy/sampler.py",
        old="return 2 * grid_of(sigma) + 2 * evaluation_error * (1 + 2.0**-50)",
        new="return 2 * grid_of(sigma) + 0 * evaluation_error",
        killed_by=PLAN + "test_a_radius_below_the_rounding_error_of_the_outputs_is_refused",
    ),
    Mutant(
        name="evaluation error of one round paid once for all rounds",
        file="privacy/allocate.py",
        old="return float(np.sqrt(rounds * np.square(share).sum()) * (1.0 + 2.0**-40))",
        new="return float(np.sqrt(np.square(share).sum()) * (1.0 + 2.0**-40))",
        killed_by="tests/privacy/test_allocate.py::"
        "test_what_is_spent_is_the_shift_and_the_rounding",
    ),
    Mutant(
        name="sqrt(T) dropped where every round counts",
        file="privacy/plan.py",
        old="return np.asarray(b * np.sqrt(hide.rounds) * (1.0 + 2.0**-50))",
        new="return np.asarray(b)",
        killed_by=PLAN + "test_more_rounds_cost_the_root_of_their_number",
    ),
    Mutant(
        name="everything costs no sqrt(T)",
        file="privacy/plan.py",
        old="return np.asarray(b * np.sqrt(hide.rounds) * (1.0 + 2.0**-50))",
        new="free = isinstance(hide, Everything)\n"
        "    return np.asarray(b * np.sqrt(1 if free else hide.rounds) * (1.0 + 2.0**-50))",
        killed_by=PLAN + "test_more_rounds_cost_the_root_of_their_number",
    ),
    Mutant(
        name="radius per agent ignored",
        file="privacy/hide.py",
        old='got radius={values[wrong][0]:g}")\n    return values\n',
        new='got radius={values[wrong][0]:g}")\n    return np.full(agents, values.min())\n',
        killed_by="tests/privacy/test_hide.py::test_radii_are_one_for_all_or_one_each",
    ),
    Mutant(
        name="epsilon per agent ignored",
        file="privacy/plan.py",
        old="return np.asarray(mu_of(pairs[0], pairs[1])[inverse.ravel()])",
        new="return np.full(epsilon.shape, mu_of(pairs[0], pairs[1]).max())",
        killed_by=PLAN + "test_agents_may_ask_for_different_radii_epsilons_and_deltas",
    ),
    Mutant(
        name="a range counted as half of it to hide everything",
        file="certify/contributions.py",
        old="width = (upper - lower) * _UP",
        new="width = (upper - lower) / 2.0",
        killed_by=PLAN + "test_everything_means_the_range_of_every_contribution",
    ),
    Mutant(
        name="noise not scaled until every promise holds",
        file="privacy/allocate.py",
        old="sigma[outputs] = np.sqrt(ratio.max() / v) * (1.0 + 2.0**-48)",
        new="sigma[outputs] = np.sqrt(1.0 / v)",
        killed_by="tests/privacy/test_allocate.py::test_every_cap_holds_in_exact_arithmetic",
    ),
    Mutant(
        name="the paper's noise for its least demanding agent",
        file="privacy/paper_method.py",
        old="factor = max(kappa(e, d) for e, d in pairs) * float(reach.max())",
        new="factor = min(kappa(e, d) for e, d in pairs) * float(reach.max())",
        killed_by="tests/privacy/test_paper_method.py::"
        "test_the_most_demanding_agent_sets_the_noise",
    ),
    Mutant(
        name="the paper's noise for the smallest radius",
        file="privacy/paper_method.py",
        old="factor = max(kappa(e, d) for e, d in pairs) * float(reach.max())",
        new="factor = max(kappa(e, d) for e, d in pairs) * float(reach.min())",
        killed_by="tests/privacy/test_paper_method.py::"
        "test_the_most_demanding_agent_sets_the_noise",
    ),
    Mutant(
        name="an undernoised mechanism of the paper let through",
        file="privacy/paper_method.py",
        old="if excess[worst] > 1.0:",
        new="if excess[worst] > 1000.0:",
        killed_by="tests/privacy/test_paper_method.py::"
        "test_coupled_constraints_break_the_formula_and_are_refused",
    ),
    Mutant(
        name="discrete noise counted as continuous",
        file="privacy/allocate.py",
        old="return np.asarray((shift + extra) * DISCRETISATION * (1.0 + 2.0**-48))",
        new="return np.asarray((shift + extra) * (1.0 + 2.0**-48))",
        killed_by="tests/privacy/test_allocate.py::"
        "test_what_is_spent_is_the_shift_and_the_rounding",
    ),
    Mutant(
        name="final check of delta left out of the plan",
        file="privacy/plan.py",
        old="not np.all(delta_of(made.gdp_mu, made.epsilon) <= made.delta):",
        new="False:",
        killed_by=PLAN
        + "test_the_final_check_of_delta_refuses_noise_that_was_calibrated_too_small",
    ),
    Mutant(
        name="every agent told the guarantee of the best protected one",
        file="privacy/noise_plan.py",
        old="mu = float(self.gdp_mu[agent - 1])",
        new="mu = float(self.gdp_mu.min())",
        killed_by=PLAN + "test_a_guarantee_is_that_agents_own",
    ),
    Mutant(
        name="epsilon, delta and mu printed to nearest",
        file="privacy/figures.py",
        old="return _written(value, digits, ROUND_CEILING)",
        new='return _written(value, digits, "ROUND_HALF_EVEN")',
        killed_by="tests/privacy/test_statement.py::"
        "test_epsilon_delta_and_mu_are_printed_rounded_up_and_sigma_rounded_down",
    ),
    Mutant(
        name="sums of a region left without noise",
        file="privacy/plan.py",
        old="sigma = _joint(S, target, reach, hide.rounds, errors, w)\n",
        new="sigma = _joint(S, target, reach, hide.rounds, errors, w)\n"
        "            sigma[[row for region in cloud.sums.regions for row in region.rows]] = 0.0\n",
        killed_by=PLAN + "test_no_adjacent_states_move_the_sums_further_than_the_claim",
    ),
)
