"""A cloud or an agent that sends, accepts or keeps what it must not."""

from __future__ import annotations

from mutant import Mutant

RELEASE = "tests/network/test_release.py::"
ROUNDS = "tests/network/test_rounds.py::"

DEPENDS = RELEASE + "test_what_is_sent_depends_on_what_is_said_through_the_releases_alone"
OUTSIDE = RELEASE + "test_nothing_from_outside_the_certified_domain_enters_a_round"
MACHINE = "tests/network/test_cloud_machine.py::"
RELAY = "tests/network/test_relay.py::"

SENT = (
    Mutant(
        name="first gradient entry sent bare",
        file="network/rounds.py",
        old="        return sampler.release(np.concatenate([g[self._noisy], entries]))\n\n"
        "    def outputs(self, values: Array) -> tuple[Array, Array]:\n",
        new="        self._bare = entries[:1]\n"
        "        return sampler.release(np.concatenate([g[self._noisy], entries]))\n\n"
        "    def outputs(self, values: Array) -> tuple[Array, Array]:\n"
        "        values = np.array(values)\n"
        "        values[self._noisy.size :][:1] = self._bare\n",
        killed_by=DEPENDS,
    ),
    Mutant(
        name="sums without noise in the cloud's step",
        file="network/rounds.py",
        old="        record = self._stepped("
        "k, released.values, release_bytes(released), previous, held, missed)",
        new="        said = b''.join(part.data for part in parts)\n"
        "        bare = np.frombuffer(said, '<i8')[: released.values.size] * self._grid\n"
        "        record = self._stepped("
        "k, bare, release_bytes(released), previous, held, missed)",
        killed_by=DEPENDS + "[paper-joint]",
    ),
    Mutant(
        name="raw contributions hashed into receipts",
        file="network/rounds.py",
        old="        return replace(record, parts=parts), released",
        new="        told = next_digest(record.digest, k, b'', parts[0].data)\n"
        "        return replace(record, parts=parts, digest=told), released",
        killed_by=DEPENDS,
    ),
    Mutant(
        name="network sigma x 0.7 where there are several outputs",
        file="network/rounds.py",
        old="    sigma = plan.sigma[plan.sigma > 0]\n",
        new="    sigma = plan.sigma[plan.sigma > 0] * 1.0\n    sigma[1:] *= 0.7\n",
        killed_by=RELEASE
        + "test_what_is_sent_has_independent_gaussian_noise_of_the_planned_sigma[paper]",
    ),
    Mutant(
        name="simulated noise in a real run",
        file="network/cloud.py",
        old="deployed_sampler(plan)\n            if self._seed is None",
        new="EngineSampler(noisy_sigma(plan), 1, done=0)\n            if self._seed is None",
        killed_by="tests/network/test_cloud.py::"
        "test_secure_runs_differ_and_store_integers_whose_noise_has_the_right_size",
    ),
    Mutant(
        name="gradient entries of others sent too",
        file="network/protocol/cloud.py",
        old="party is None or not party.entries.size else pack(record.y[party.entries])",
        new="party is None else pack(record.y)",
        killed_by=MACHINE + "test_an_agent_is_sent_its_own_gradient_entries_only",
    ),
    Mutant(
        name="cloud checks X instead of the domain",
        file="network/parties.py",
        old="block_ranges(plan.cloud.sums, plan.domain)",
        new="block_ranges(plan.cloud.sums, plan.cloud.groups)",
        killed_by="tests/network/test_rounds.py::test_ranges_are_those_of_the_certified_domain",
    ),
    Mutant(
        name="what is said not clipped into its bounds",
        file="network/protocol/box.py",
        old="        if self.holds(data):\n            return data\n",
        new="        if len(data) == self._numbers.size:\n            return data\n",
        killed_by=OUTSIDE,
    ),
    Mutant(
        name="contributions clipped at the lower end only",
        file="network/protocol/box.py",
        old="np.where(v > self._upper, self._upper, v)",
        new="v",
        killed_by=OUTSIDE,
    ),
    Mutant(
        name="a clipped contribution is answered",
        file="network/protocol/cloud.py",
        old="            found.append(Incident(code=Code.CLIPPED, agents=moved, k=self.round))",
        new="            found += self._object(peer, session, Code.CLIPPED) if moved else []",
        killed_by=MACHINE
        + "test_a_contribution_outside_its_range_is_clipped_recorded_and_never_answered",
    ),
    Mutant(
        name="an agent counted twice in a round",
        file="network/protocol/collected.py",
        old="                    self._forget(other)",
        new="                    pass",
        killed_by=MACHINE + "test_agents_that_come_back_in_other_company_are_counted_once",
    ),
    Mutant(
        name="a relay that waits for one of its agents",
        file="network/protocol/relay.py",
        old="awaited=frozenset(self.agents)",
        new="awaited=frozenset(self.agents[:1])",
        killed_by=RELAY
        + "test_a_relay_describes_those_below_as_the_cloud_would_and_says_their_total",
    ),
    Mutant(
        name="a relay that believes every receipt",
        file="network/protocol/relay.py",
        old="return receipt[:DIGEST] if receipt == self.last else None",
        new="return self.last[:DIGEST]",
        killed_by=RELAY
        + "test_whoever_is_ahead_of_a_relay_comes_back_later_and_a_wrong_receipt_harms_nobody_else",
    ),
    Mutant(
        name="a gateway's total held for some of its agents",
        file="network/protocol/cloud.py",
        old="if sum(len(part.party.agents) for part in held) != len(missing):",
        new="if not held:",
        killed_by=MACHINE + "test_a_gateways_total_is_held_as_a_whole_or_waited_for",
    ),
    Mutant(
        name="prices in the store not held against its releases",
        file="network/setup.py",
        old="if pack(last.price) != row.price:",
        new="if False:",
        killed_by="tests/network/test_cloud.py::"
        "test_prices_that_do_not_follow_from_the_releases_are_refused",
    ),
    Mutant(
        name="a round sent whose prices ran away",
        file="network/turns.py",
        old="        if not self._turn(k, seen, price, self._memory, *self._public):\n"
        "            raise DivergedError(k)\n",
        new="        self._turn(k, seen, price, self._memory, *self._public)\n",
        killed_by="tests/network/test_rounds.py::"
        "test_prices_that_run_away_end_the_round_with_its_number",
    ),
    Mutant(
        name="a failing agent repeats itself where a trajectory is hidden",
        file="network/substitute.py",
        old="REPEATING: Final = frozenset({Offset.kind, Everything.kind})",
        new='REPEATING: Final = frozenset({"trajectory", Offset.kind, Everything.kind})',
        killed_by="tests/network/test_substitute.py::"
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
        name="a second contribution replaces the first",
        file="network/protocol/collected.py",
        old="            return before.data == part.data",
        new="            pass",
        killed_by=MACHINE + "test_a_second_different_contribution_is_refused_and_recorded",
    ),
    Mutant(
        name="round sent before it is committed",
        file="network/release.py",
        old="        self._store.commit(record, released)\n",
        new="        import asyncio\n"
        "        asyncio.get_running_loop().call_soon(self._store.commit, record, released)\n",
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
        name="erased contributions left on disk",
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
        name="a contribution sent before it is saved",
        file="network/protocol/agent.py",
        old="        return [Save(memory=self.memory), *self._say()]",
        new="        return [*self._say(), Save(memory=self.memory)]",
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
        name="what was said in earlier rounds kept",
        file="network/database.py",
        old="BEGIN UPDATE rounds SET said = NULL, said_seal = NULL WHERE k = NEW.k - 1; END",
        new="BEGIN UPDATE rounds SET said = said WHERE k = NEW.k - 1; END",
        killed_by="tests/network/test_store.py::"
        "test_what_was_said_is_erased_with_the_next_round_or_the_end_unless_asked_for",
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
        name="stragglers held where a trajectory is hidden",
        file="network/setup.py",
        old='if straggler == "hold" and isinstance(plan.hide, Trajectory):',
        new="if False:",
        killed_by="tests/network/test_hold.py::test_hold_is_refused_where_a_trajectory_is_hidden",
    ),
    Mutant(
        name="a run that held agents continued where a trajectory is hidden",
        file="network/setup.py",
        old="if isinstance(plan.hide, Trajectory) and store.has_held():",
        new="if False:",
        killed_by="tests/network/test_hold.py::"
        "test_a_store_with_held_rounds_is_not_continued_where_a_trajectory_is_hidden",
    ),
    Mutant(
        name="two agents of one name",
        file="problem/statement.py",
        old="    require_distinct_labels(groups)\n",
        new="",
        killed_by="tests/problem/test_problem.py::test_labels_of_agents_are_unique_in_a_problem",
    ),
    Mutant(
        name="a contribution without noise in the answer",
        file="network/rounds.py",
        old="return replace(record, parts=parts), released",
        new='said = np.frombuffer(parts[0].data, "<i8")[0] * 2.0**-40\n'
        "        record = replace(record, answer=record.answer + said)\n"
        "        return replace(record, parts=parts), released",
        killed_by=DEPENDS + "[paper-joint]",
    ),
    Mutant(
        name="sums without noise taken from messages",
        file="network/parties.py",
        old="sums = np.flatnonzero((count > 0) & (self._grid > 0))",
        new="sums = np.flatnonzero(count > 0)",
        killed_by=ROUNDS
        + "test_a_sum_that_nobody_can_move_is_a_public_constant_and_asked_of_nobody",
    ),
    Mutant(
        name="agents told half the grid",
        file="network/parties.py",
        old="self._grid = np.array([o.grid for o in plan.outputs])",
        new="self._grid = np.array([0.5 * o.grid for o in plan.outputs])",
        killed_by=ROUNDS + "test_ranges_are_those_of_the_certified_domain",
    ),
    Mutant(
        name="contributions not rounded to the grid",
        file="engine/agent_round.py",
        old="total[row] += round(steps) if isfinite(steps) else steps",
        new="total[row] += steps",
        killed_by="tests/network/test_local_round.py::"
        "test_contributions_are_whole_steps_of_the_grid_half_to_even_and_within_their_range",
    ),
    Mutant(
        name="fence raised by two clouds",
        file="privacy/fence.py",
        old="if risen != 1:",
        new="if False:",
        killed_by="tests/privacy/test_fence.py::test_of_two_clouds_on_two_copies_one_releases_a_round",
    ),
)
