"""A cloud or an agent that sends, accepts or keeps what it must not."""

from __future__ import annotations

from mutant import Mutant

RELEASE = "tests/network/test_release.py::"

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
        old="deployed_sampler(plan)\n            if self._seed is None",
        new="EngineSampler(noisy_sigma(plan), 1, done=done)\n            if self._seed is None",
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
        name="states kept in a larger domain than the certified one",
        file="certify/certificate.py",
        old="domain=tuple(domain),",
        new="domain=cloud.groups,",
        killed_by="tests/certify/test_certificate.py::"
        "test_gallery_sensitivities_are_within_one_percent_and_never_below_what_is_seen[paper]",
    ),
    Mutant(
        name="cloud's sampler made with less noise than planned",
        file="network/rounds.py",
        old="return SecureSampler(noisy_sigma(plan))",
        new="return SecureSampler(0.7 * noisy_sigma(plan))",
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
