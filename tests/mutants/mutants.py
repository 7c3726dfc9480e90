"""Ways to break the promise, each a change of one place and the test that must fail for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A change of the source that breaks the promise.

    Attributes:
        name: what is broken.
        file: the file under src/sottovoce.
        old: text that occurs in it exactly once.
        new: what takes its place.
        killed_by: the test that must fail, ``file::function``.
    """

    name: str
    file: str
    old: str
    new: str
    killed_by: str


SAMPLER = "tests/privacy/test_sampler.py::"
RELEASE = "tests/network/test_release.py::"
GAUSSIAN = "tests/privacy/test_gaussian.py::"
PLAN = "tests/privacy/test_plan.py::"
SENSITIVITY = "tests/certify/test_sensitivity.py::"

NOISE = (
    Mutant(
        name="noise clamped at 3 sigma",
        file="privacy/sampler.py",
        old="multiples = steps.astype(np.int64) + noise",
        new="multiples = steps.astype(np.int64) + np.clip(noise, -3 * 2**26, 3 * 2**26)",
        killed_by=SAMPLER + "test_the_tails_of_the_noise_are_there",
    ),
    Mutant(
        name="noise clamped at 5 sigma",
        file="privacy/sampler.py",
        old="multiples = steps.astype(np.int64) + noise",
        new="multiples = steps.astype(np.int64) + np.clip(noise, -5 * 2**26, 5 * 2**26)",
        killed_by=SAMPLER + "test_every_draw_is_released_once_as_it_came_however_large",
    ),
    Mutant(
        name="draws clamped at 5 sigma in the pool",
        file="privacy/sampler.py",
        old="return np.array(taken, dtype=np.int64)",
        new="return np.clip(np.array(taken, dtype=np.int64), -5 * 2**26, 5 * 2**26)",
        killed_by=SAMPLER + "test_every_draw_is_released_once_as_it_came_however_large",
    ),
    Mutant(
        name="draws that saturate at 32 bits",
        file="privacy/sampler.py",
        old='integers = opendp.vector_domain(opendp.atom_domain(T="i64"))\n'
        '    return opendp.m.make_gaussian(integers, opendp.l2_distance(T="i64"), scale=STEPS)',
        new='integers = opendp.vector_domain(opendp.atom_domain(T="i32"))\n'
        '    return opendp.m.make_gaussian(integers, opendp.l2_distance(T="i32"), scale=STEPS)',
        killed_by=SAMPLER + "test_the_source_of_draws_does_not_saturate",
    ),
    Mutant(
        name="two outputs correlated 0.6",
        file="privacy/sampler.py",
        old="return np.array(taken, dtype=np.int64)",
        new="z = np.array(taken, dtype=np.int64)\n"
        "        if count > 1:\n"
        "            z[1] = round(0.6 * int(z[0]) + 0.8 * int(z[1]))\n"
        "        return z",
        killed_by=RELEASE + "test_what_is_sent_has_independent_gaussian_noise_of_the_planned_sigma",
    ),
    Mutant(
        name="correlation at lag 997",
        file="privacy/sampler.py",
        old='return opendp.m.make_gaussian(integers, opendp.l2_distance(T="i64"), scale=STEPS)',
        new='draw = opendp.m.make_gaussian(integers, opendp.l2_distance(T="i64"), scale=STEPS)\n'
        "    past: list[int] = draw([0] * 997)\n"
        "    def echo(zeros: list[int]) -> list[int]:\n"
        "        for z in draw(zeros):\n"
        "            past.append(round(0.8 * z + 0.6 * past[-997]))\n"
        "        return past[-len(zeros):]\n"
        "    return echo",
        killed_by=SAMPLER + "test_noise_is_uncorrelated_at_every_lag",
    ),
    Mutant(
        name="every 997th draw used again",
        file="privacy/sampler.py",
        old="del self._draws[-count:]",
        new="del self._draws[-count:]\n"
        "            if len(self._draws) % 997 == 0:\n"
        "                self._draws.append(taken[0])",
        killed_by=SAMPLER + "test_every_draw_is_released_once_as_it_came_however_large",
    ),
    Mutant(
        name="noise a tenth too small",
        file="privacy/sampler.py",
        old='opendp.l2_distance(T="i64"), scale=STEPS)',
        new='opendp.l2_distance(T="i64"), scale=0.9 * STEPS)',
        killed_by=SAMPLER + "test_noise_is_gaussian_with_the_stated_sigma_and_no_smaller",
    ),
    Mutant(
        name="noise from NumPy's generator",
        file="privacy/sampler.py",
        old="self._draws += _discrete_gaussian()([0] * max(missing, BATCH))",
        new="z = np.random.default_rng().normal(0.0, STEPS, max(missing, BATCH))\n"
        "            self._draws += np.rint(z).astype(np.int64).tolist()",
        killed_by=SAMPLER + "test_every_draw_is_released_once_as_it_came_however_large",
    ),
    Mutant(
        name="float noise instead of integers",
        file="privacy/sampler.py",
        old="return Released(values=multiples * grid, multiples=multiples, grid=grid)",
        new="return Released(values=_finite(values, grid.size) + noise * grid)",
        killed_by=SAMPLER + "test_secure_noise_never_excludes_a_hypothesis",
    ),
    Mutant(
        name="values not rounded to the grid before the noise",
        file="privacy/sampler.py",
        old="steps = np.rint(_finite(values, grid.size) / grid)",
        new="steps = np.floor(_finite(values, grid.size) / grid / 1024) * 1024",
        killed_by=SAMPLER + "test_every_draw_is_released_once_as_it_came_however_large",
    ),
    Mutant(
        name="draws reused after a fork",
        file="privacy/sampler.py",
        old="if self._pool.process != _process():",
        new="if False:",
        killed_by=SAMPLER + "test_parent_and_children_differ_after_a_fork",
    ),
    Mutant(
        name="pool not emptied",
        file="privacy/sampler.py",
        old="            del self._draws[-count:]\n",
        new="",
        killed_by=SAMPLER + "test_every_draw_is_released_once_as_it_came_however_large",
    ),
    Mutant(
        name="copies share the pool",
        file="privacy/sampler.py",
        old="    def __reduce__(self) -> tuple[type[SecureSampler], tuple[Floats]]:\n"
        "        return SecureSampler, (self._sigma,)\n",
        new="    def __copy__(self) -> SecureSampler:\n"
        "        twin = SecureSampler(self._sigma)\n"
        "        twin._pool._draws = list(self._pool._draws)\n"
        "        return twin\n",
        killed_by=SAMPLER + "test_copies_and_pickles_carry_no_noise",
    ),
    Mutant(
        name="noise drawn after the states are known",
        file="network/rounds.py",
        old="self._sampler.refill(releases=1)",
        new="pass",
        killed_by="tests/network/test_rounds.py::"
        "test_noise_is_drawn_before_the_states_of_its_round_are_known",
    ),
)

SENT = (
    Mutant(
        name="first gradient entry sent bare",
        file="network/rounds.py",
        old="y=released.values[self._noisy.size :],",
        new="y=np.concatenate([entries[:1], released.values[self._noisy.size + 1 :]]),",
        killed_by=RELEASE + "test_what_is_sent_depends_on_states_through_the_releases_alone",
    ),
    Mutant(
        name="g without noise in the answer",
        file="network/rounds.py",
        old="mu = after[: y_g.size] if self._algorithm.thinks",
        new="after = np.concatenate([after[: -y_g.size], np.maximum(g, 0.0)])\n"
        "        mu = after[: y_g.size] if self._algorithm.thinks",
        killed_by=RELEASE + "test_what_is_sent_depends_on_states_through_the_releases_alone",
    ),
    Mutant(
        name="g without noise in the cloud's step",
        file="network/rounds.py",
        old="y_g[self._noisy] = released.values[: self._noisy.size]",
        new="y_g[self._noisy] = g[self._noisy]",
        killed_by=RELEASE + "test_what_is_sent_depends_on_states_through_the_releases_alone",
    ),
    Mutant(
        name="raw states hashed into receipts",
        file="network/rounds.py",
        old="digest=next_digest(previous, k, pack(mu), release_bytes(released)),",
        new="digest=next_digest(previous, k, pack(mu), release_bytes(released) + pack(x)),",
        killed_by=RELEASE + "test_what_is_sent_depends_on_states_through_the_releases_alone",
    ),
    Mutant(
        name="network gradient sigma x 0.7",
        file="network/rounds.py",
        old="sigma = np.concatenate([plan.sigma_g[plan.sigma_g > 0], plan.gradient_sigma])",
        new="sigma = np.concatenate([plan.sigma_g[plan.sigma_g > 0], 0.7 * plan.gradient_sigma])",
        killed_by=RELEASE + "test_what_is_sent_has_independent_gaussian_noise_of_the_planned_sigma",
    ),
    Mutant(
        name="simulated noise in a real run",
        file="network/cloud.py",
        old="SecureSampler(sigma)\n            if self._seed is None",
        new="EngineSampler(sigma, 1, done=done)\n            if self._seed is None",
        killed_by="tests/network/test_cloud.py::"
        "test_secure_runs_differ_and_store_integers_whose_noise_has_the_right_size",
    ),
    Mutant(
        name="gradient entries of others sent too",
        file="network/protocol/cloud.py",
        old='y=pack(record.y[session.entries]) if session.entries.size else b"",',
        new="y=pack(record.y),",
        killed_by="tests/network/test_cloud_machine.py::"
        "test_an_agent_is_sent_its_own_gradient_entries_only",
    ),
    Mutant(
        name="a clipped state is answered",
        file="network/protocol/cloud.py",
        old="found.append(self._clipped(session, state.x, x))",
        new="found += self._object(peer, session, Code.CLIPPED)",
        killed_by="tests/network/test_cloud_machine.py::"
        "test_a_state_outside_the_domain_is_clipped_recorded_and_never_answered",
    ),
    Mutant(
        name="a failing agent repeats itself under trajectory adjacency",
        file="network/fallback.py",
        old='REPEATING: Final = frozenset({"per-round", "everything"})',
        new='REPEATING: Final = frozenset({"trajectory", "per-round", "everything"})',
        killed_by="tests/network/test_fallback.py::"
        "test_a_failed_step_is_repeated_where_rounds_count_by_themselves_and_else_public",
    ),
    Mutant(
        name="cloud checks X instead of the domain",
        file="network/setup.py",
        old="lower=lower_bounds(plan.domain),\n        upper=upper_bounds(plan.domain),",
        new="lower=lower_bounds(plan.cloud.groups),\n"
        "        upper=upper_bounds(plan.cloud.groups),",
        killed_by=RELEASE + "test_no_state_outside_the_certified_domain_enters_a_round",
    ),
    Mutant(
        name="states not clipped into the domain",
        file="network/protocol/box.py",
        old="        if self.holds(data):\n",
        new="        if len(data) == self._numbers.size:\n",
        killed_by=RELEASE + "test_no_state_outside_the_certified_domain_enters_a_round",
    ),
    Mutant(
        name="whoever is clipped hears of it",
        file="network/protocol/cloud.py",
        old="found.append(Incident(code=Code.CLIPPED, agents=session.agents, k=self.round))",
        new="found += self._object(peer, session, Code.CLIPPED)",
        killed_by=RELEASE + "test_what_is_sent_depends_on_states_through_the_releases_alone",
    ),
    Mutant(
        name="states kept in a larger domain than the certified one",
        file="certify/certificate.py",
        old="domain=tuple(domain),",
        new="domain=cloud.groups,",
        killed_by="tests/certify/test_certificate.py::"
        "test_gallery_sensitivities_are_within_one_percent_and_never_below_what_is_seen[paper]",
    ),
    Mutant(
        name="cloud's sampler made with less noise than planned",
        file="network/cloud.py",
        old="SecureSampler(sigma)\n            if self._seed is None",
        new="SecureSampler(0.7 * sigma)\n            if self._seed is None",
        killed_by=RELEASE + "test_the_cloud_adds_the_planned_sigma_to_every_kind_of_output",
    ),
    Mutant(
        name="a simulation that calls itself secure",
        file="network/cloud.py",
        old='"secure" if self._seed is None else "simulated"',
        new='"secure"',
        killed_by="tests/network/test_cloud.py::"
        "test_agents_refuse_simulated_noise_and_other_problems",
    ),
    Mutant(
        name="a second state replaces the first",
        file="network/protocol/collected.py",
        old="if (self._bits[columns] != bits)[known].any():",
        new="if False:",
        killed_by="tests/network/test_cloud_machine.py::"
        "test_a_second_different_state_is_refused_and_recorded",
    ),
    Mutant(
        name="round sent before it is committed",
        file="network/cloud.py",
        old="        self._store.commit(record, released)\n",
        new="        asyncio.get_running_loop().call_soon(self._store.commit, record, released)\n",
        killed_by=RELEASE + "test_a_round_is_on_disk_before_a_byte_of_it_is_sent",
    ),
    Mutant(
        name="commits not durable",
        file="network/database.py",
        old='"synchronous = FULL"',
        new='"synchronous = OFF"',
        killed_by="tests/network/test_store.py::test_every_commit_waits_for_the_disk",
    ),
    Mutant(
        name="deleted states left on disk",
        file="network/database.py",
        old='"secure_delete = ON"',
        new='"secure_delete = OFF"',
        killed_by="tests/network/test_store.py::test_every_commit_waits_for_the_disk",
    ),
    Mutant(
        name="a released round replaced by another",
        file="network/store.py",
        old='"INSERT INTO rounds VALUES',
        new='"INSERT OR REPLACE INTO rounds VALUES',
        killed_by="tests/network/test_store.py::"
        "test_releases_are_stored_as_integers_and_never_overwritten",
    ),
    Mutant(
        name="a state sent before it is saved",
        file="network/protocol/agent.py",
        old="return [Save(memory=self.memory), self._state()]",
        new="return [self._state(), Save(memory=self.memory)]",
        killed_by="tests/network/test_agent_machine.py::"
        "test_a_round_makes_it_think_save_and_send_in_this_order",
    ),
    Mutant(
        name="a rolled back store goes on",
        file="network/protocol/cloud.py",
        old="if hello.round and self._history(hello.round) != self._notary.digest(",
        new="if False and self._history(hello.round) != self._notary.digest(",
        killed_by="tests/network/test_cloud_machine.py::"
        "test_a_liar_cannot_halt_the_run_but_a_genuine_receipt_does",
    ),
    Mutant(
        name="states of earlier rounds kept",
        file="network/database.py",
        old="BEGIN UPDATE rounds SET x = NULL, x_seal = NULL WHERE k = NEW.k - 1; END",
        new="BEGIN UPDATE rounds SET x = x WHERE k = NEW.k - 1; END",
        killed_by="tests/network/test_store.py::"
        "test_states_of_earlier_rounds_are_erased_unless_asked_for",
    ),
    Mutant(
        name="more rounds than the plan covers",
        file="network/setup.py",
        old="if not 1 <= rounds <= plan.rounds:",
        new="if not 1 <= rounds:",
        killed_by="tests/network/test_cloud.py::test_requests_that_cannot_be_met_are_refused",
    ),
    Mutant(
        name="an undernoised plan is served",
        file="network/setup.py",
        old="if not plan.certified:",
        new="if False:",
        killed_by="tests/network/test_cloud.py::test_an_undernoised_plan_is_never_served",
    ),
    Mutant(
        name="stragglers held under trajectory adjacency",
        file="network/setup.py",
        old='if straggler == "hold" and plan.adjacency == "trajectory":',
        new="if False:",
        killed_by="tests/network/test_hold.py::test_hold_is_refused_under_trajectory_adjacency",
    ),
    Mutant(
        name="a run that held agents continued under trajectory adjacency",
        file="network/setup.py",
        old='if plan.adjacency == "trajectory" and store.has_held():',
        new="if False:",
        killed_by="tests/network/test_hold.py::"
        "test_a_store_with_held_rounds_is_not_continued_under_trajectory_adjacency",
    ),
    Mutant(
        name="two agents of one name",
        file="problem/problem.py",
        old="    require_distinct_labels(groups)\n",
        new="",
        killed_by="tests/problem/test_problem.py::test_labels_of_agents_are_unique_in_a_problem",
    ),
)

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
        old='reach = b if kind == "trajectory" else b * np.sqrt(covered) * (1.0 + 2.0**-50)',
        new="reach = b",
        killed_by=PLAN + "test_more_rounds_cost_the_root_of_their_number",
    ),
    Mutant(
        name="everything costs no sqrt(T)",
        file="privacy/plan.py",
        old='reach = b if kind == "trajectory" else b * np.sqrt(covered) * (1.0 + 2.0**-50)',
        new='reach = b * np.sqrt(covered) * (1.0 + 2.0**-50) if kind == "per-round" else b',
        killed_by=PLAN + "test_more_rounds_cost_the_root_of_their_number",
    ),
    Mutant(
        name="radius per agent ignored",
        file="privacy/adjacency.py",
        old="    return kind, values\n",
        new="    return kind, np.full(agents, values.min())\n",
        killed_by="tests/privacy/test_adjacency.py::test_radii_are_one_for_all_or_one_each",
    ),
    Mutant(
        name="epsilon per agent ignored",
        file="privacy/plan.py",
        old="return np.asarray(mu_of(pairs[0], pairs[1])[inverse.ravel()])",
        new="return np.full(epsilon.shape, mu_of(pairs[0], pairs[1]).max())",
        killed_by=PLAN + "test_agents_may_ask_for_different_radii_epsilons_and_deltas",
    ),
    Mutant(
        name="a fleet's diameter taken from its first agent",
        file="privacy/adjacency.py",
        old="width = np.asarray(group.upper - group.lower)",
        new="width = np.broadcast_to((group.upper - group.lower)[:1], group.lower.shape)",
        killed_by="tests/privacy/test_adjacency.py::"
        "test_every_agent_of_a_fleet_has_the_diameter_of_its_own_box",
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
        name="every agent told the guarantee of the best protected one",
        file="privacy/plan.py",
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
        name="ledger rounds what is spent down",
        file="privacy/ledger.py",
        old="return math.ceil(math.ldexp(mu, BITS)) ** 2",
        new="return math.floor(math.ldexp(mu, BITS)) ** 2",
        killed_by="tests/privacy/test_ledger.py::"
        "test_the_last_bit_of_a_budget_can_be_spent_and_no_more",
    ),
    Mutant(
        name="ledger does not wait for the disk",
        file="privacy/ledger.py",
        old='database.execute("PRAGMA synchronous = FULL")',
        new='database.execute("PRAGMA synchronous = OFF")',
        killed_by="tests/privacy/test_ledger.py::test_the_file_waits_for_the_disk_at_every_commit",
    ),
)

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

MUTANTS = NOISE + SENT + ACCOUNTING + CERTIFIED
