"""Noise that is clamped, correlated, used twice, or not noise at all."""

from __future__ import annotations

from mutant import Mutant

SAMPLER = "tests/privacy/test_sampler.py::"
RELEASE = "tests/network/test_release.py::"
ROUNDS = "tests/network/test_rounds.py::"

NOISE = (
    Mutant(
        name="noise clamped at 3 sigma",
        file="privacy/sampler.py",
        old="multiples = steps + noise",
        new="multiples = steps + np.clip(noise, -3 * 2**26, 3 * 2**26)",
        killed_by=SAMPLER + "test_the_tails_of_the_noise_are_there",
    ),
    Mutant(
        name="noise clamped at 5 sigma",
        file="privacy/sampler.py",
        old="multiples = steps + noise",
        new="multiples = steps + np.clip(noise, -5 * 2**26, 5 * 2**26)",
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
        old='integers = vector_domain(atom_domain(T="i64"))\n'
        '    return make_gaussian(integers, l2_distance(T="i64"), scale=STEPS)',
        new='integers = vector_domain(atom_domain(T="i32"))\n'
        '    return make_gaussian(integers, l2_distance(T="i32"), scale=STEPS)',
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
        old='return make_gaussian(integers, l2_distance(T="i64"), scale=STEPS)',
        new='draw = make_gaussian(integers, l2_distance(T="i64"), scale=STEPS)\n'
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
        old='l2_distance(T="i64"), scale=STEPS)',
        new='l2_distance(T="i64"), scale=0.9 * STEPS)',
        killed_by=SAMPLER + "test_noise_is_gaussian_with_the_stated_sigma_and_no_smaller",
    ),
    Mutant(
        name="noise from NumPy's generator",
        file="privacy/sampler.py",
        old="drawn: list[int] = _discrete_gaussian()([0] * max(count, BATCH))",
        new="z = np.random.default_rng().normal(0.0, STEPS, max(count, BATCH))\n"
        "    drawn: list[int] = np.rint(z).astype(np.int64).tolist()",
        killed_by=SAMPLER + "test_every_draw_is_released_once_as_it_came_however_large",
    ),
    Mutant(
        name="first output bare in every 16th release",
        file="privacy/sampler.py",
        old="multiples = steps + noise",
        new="self._count = getattr(self, '_count', 0) + 1\n"
        "        noise[0] *= self._count % 16 != 0\n"
        "        multiples = steps + noise",
        killed_by=SAMPLER + "test_first_outputs_are_never_bare_nor_any_other_in_any_release",
    ),
    Mutant(
        name="first output of a half bare in every 16th release",
        file="privacy/sampler.py",
        old="return _whole(residues, self._sigma.size) + noise  # wraps around",
        new="self._count = getattr(self, '_count', 0) + 1\n"
        "        noise[0] *= self._count % 16 != 0\n"
        "        return _whole(residues, self._sigma.size) + noise",
        killed_by=SAMPLER + "test_first_outputs_are_never_bare_nor_any_other_in_any_release",
    ),
    Mutant(
        name="float noise instead of integers",
        file="privacy/sampler.py",
        old="        return self._released(steps.astype(np.int64), noise)",
        new="        return Released(values=_finite(values, noise.size) + noise * self.grid)",
        killed_by=SAMPLER + "test_secure_noise_never_excludes_a_hypothesis",
    ),
    Mutant(
        name="values not rounded to the grid before the noise",
        file="privacy/sampler.py",
        old="steps = np.rint(_finite(values, self._sigma.size) / self.grid)",
        new="steps = np.floor(_finite(values, self._sigma.size) / self.grid / 1024) * 1024",
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
        name="noise drawn after what is said is known",
        file="network/rounds.py",
        old="self._sampler.refill(releases=1)",
        new="pass",
        killed_by="tests/network/test_rounds.py::"
        "test_noise_is_drawn_before_what_is_said_in_its_round_is_known",
    ),
    Mutant(
        name="noise added to the wrong sum",
        file="network/rounds.py",
        old="sampler.release_multiples(self._totals(parts)[self._noisy])",
        new="sampler.release_multiples(self._totals(parts)[np.roll(self._noisy, 1)])",
        killed_by=ROUNDS
        + "test_the_same_contributions_and_noise_give_the_same_release_as_solve_bit_for_bit[paper]",
    ),
)
