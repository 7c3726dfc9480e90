"""A half of a split cloud, or an agent of one, that tells more than it should."""

from __future__ import annotations

from typing import Any

import numpy as np
from fault import Fault, returning

from sottovoce.network.masks import Stream
from sottovoce.network.protocol.actions import Participant
from sottovoce.network.protocol.codec import MaskName
from sottovoce.privacy.sampler import FARTHEST, Released

VIEWS = "study/test_views.py::test_every_party_finds_no_more_than_claimed"
HALVES = "privacy/test_sampler.py::test_both_halves_of_a_split_cloud_add_noise"
MACHINE = "network/test_helper_machine.py::"


def residues_as_they_are(_: Any) -> Any:
    def broken(sampler: Any, residues: Any) -> Released:
        bare = np.clip(residues, -FARTHEST, FARTHEST)
        return Released(values=bare * sampler.grid, multiples=bare, grid=sampler.grid)

    return broken


def in_pairs(rounds: Any) -> Any:
    return lambda self, first, count: np.vstack(
        [rounds(self, k // 2 + 1, 1) for k in range(first, first + count)]
    )


def again(cover: Any) -> Any:
    def broken(self: Any, config: bytes, k: int, values: Any) -> Any:
        self._last = 0
        return cover(self, config, k, values)

    return broken


def whomever(stream: Any) -> Any:
    return lambda self, config, session, agents, numbers: Stream(
        stream(self, config, session, (1,), 1)._cipher.key, numbers
    )


def unchecked(_: Any) -> Any:
    return lambda self, listed, k: tuple(
        Participant(
            agents=self._met[number][0],
            mask=MaskName(key=self._met[number][1], session=session, round=j),
        )
        for number, session, j in listed
    )


SPLIT = (
    Fault(name="helper adds no noise", seam="helper's noise",
          breaks=lambda _: lambda sampler, residues: residues, killed_by=HALVES),
    Fault(name="helper adds no noise, seen from the cloud", seam="helper's noise",
          breaks=lambda _: lambda sampler, residues: residues, killed_by=VIEWS + "[cloud]",
          slow=True),
    Fault(name="noise of one half only in what is released", seam="secure release of residues",
          breaks=residues_as_they_are, killed_by=HALVES),
    Fault(name="noise of one half only, seen from outside", seam="secure release of residues",
          breaks=residues_as_they_are, killed_by=VIEWS + "[outside]", slow=True),
    Fault(name="mask reused for two rounds", seam="masks", breaks=in_pairs,
          killed_by="network/test_masks.py::"
          "test_no_mask_returns_in_another_round_session_run_or_agent"),
    Fault(name="mask reused for two rounds, seen from the cloud", seam="masks", breaks=in_pairs,
          killed_by=VIEWS + "[cloud]", slow=True),
    Fault(name="mask reused after a crash with another contribution", seam="session",
          breaks=returning(bytes(16)),
          killed_by="network/test_masks.py::"
          "test_a_masker_never_covers_two_contributions_with_one_mask"),
    Fault(name="mask of a round given out twice in one process", seam="masked contribution",
          breaks=again,
          killed_by="network/test_masks.py::"
          "test_a_masker_never_covers_two_contributions_with_one_mask"),
    Fault(name="an agent counts twice in an answer", seam="who takes part", breaks=unchecked,
          killed_by=MACHINE + "test_no_agent_counts_twice_in_a_round"),
    Fault(name="masks do not depend on the agents that they cover", seam="key of masks",
          breaks=whomever,
          killed_by="network/test_masks.py::"
          "test_masks_of_one_session_share_no_number_whomever_they_cover"),
    Fault(name="another question about an answered round gets an answer", seam="question",
          breaks=returning(bytes(32)),
          killed_by=MACHINE
          + "test_another_question_about_an_answered_round_is_refused_and_recorded"),
    Fault(name="agent takes the cloud's word for grids and bounds", seam="pledge",
          breaks=returning(True), hangs=True,
          killed_by="network/test_split_hostile.py::"
          "test_an_agent_goes_by_what_both_halves_say[grid]"),
)  # fmt: skip
