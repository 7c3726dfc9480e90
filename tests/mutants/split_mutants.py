"""A half of a split cloud, or an agent of one, that tells more than it should."""

from __future__ import annotations

from mutant import Mutant

VIEWS = "tests/study/test_views.py::test_every_party_finds_no_more_than_claimed"
MASKS = "tests/network/test_masks.py::"
MACHINE = "tests/network/test_helper_machine.py::"

SPLIT = (
    Mutant(
        name="helper adds no noise",
        file="network/answers.py",
        old="values = pack_whole(self._sampler.blind(total))",
        new="values = pack_whole(total)",
        killed_by=VIEWS + "[cloud]",
    ),
    Mutant(
        name="noise of one half only in what is released",
        file="privacy/sampler.py",
        old="noisy = np.clip(self.blind(residues), -FARTHEST, FARTHEST)",
        new="noisy = np.clip(residues, -FARTHEST, FARTHEST)",
        killed_by=VIEWS + "[outside]",
    ),
    Mutant(
        name="mask reused for two rounds",
        file="network/masks.py",
        old="start = ((first - 1) * self._blocks)",
        new="start = ((first // 2) * self._blocks)",
        killed_by=VIEWS + "[cloud]",
    ),
    Mutant(
        name="mask reused after a crash with another contribution",
        file="network/masks.py",
        old="return secrets.token_bytes(SESSION)",
        new="return bytes(SESSION)",
        killed_by=VIEWS + "[cloud]",
    ),
    Mutant(
        name="mask of a round given out twice in one process",
        file="network/masks.py",
        old="!= self._run or k <= self._last:",
        new="!= self._run:",
        killed_by=MASKS + "test_a_veil_never_covers_two_contributions_with_one_mask",
    ),
    Mutant(
        name="an agent counts twice in an answer",
        file="network/protocol/helper.py",
        old="return tuple(found) if len(agents) == everybody else None",
        new="return tuple(found)",
        killed_by=MACHINE + "test_no_agent_counts_twice_in_a_round",
    ),
    Mutant(
        name="masks do not depend on the agents that they cover",
        file="network/masks.py",
        old="info = _PURPOSE + self._names + session + covered",
        new="info = _PURPOSE + self._names + session",
        killed_by=MASKS + "test_masks_of_one_session_share_no_number_whomever_they_cover",
    ),
    Mutant(
        name="another question about an answered round gets an answer",
        file="network/protocol/helper.py",
        old="if question != self.last.question:",
        new="if not question:",
        killed_by=MACHINE + "test_another_question_about_an_answered_round_is_refused_and_recorded",
    ),
    Mutant(
        name="agent takes the cloud's word for grids and bounds",
        file="network/agent.py",
        old="        if not self._helper.pledged(",
        new="        if False and not self._helper.pledged(",
        killed_by="tests/network/test_split_hostile.py::"
        "test_an_agent_goes_by_what_both_halves_say[grid]",
    ),
)
