"""A half of a split cloud, or an agent of one, that tells more than it should."""

from __future__ import annotations

from typing import Any

import numpy as np
from fault import Fault, returning

from sottovoce.network.masks import Stream
from sottovoce.network.protocol.actions import Participant
from sottovoce.network.protocol.codec import MaskName
from sottovoce.privacy.sampler import MAX_RELEASED, Released

VIEWS = "test_every_party_finds_no_more_than_claimed"
HALVES = "test_both_halves_of_a_split_cloud_add_noise"


def residues_as_they_are(_: Any) -> Any:
    def broken(sampler: Any, residues: Any) -> Released:
        bare = np.clip(residues, -MAX_RELEASED, MAX_RELEASED)
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
    Fault("helper adds no noise", "helper's noise", lambda _: lambda sampler, residues: residues,
          HALVES),
    Fault("helper adds no noise, seen from the cloud", "helper's noise",
          lambda _: lambda sampler, residues: residues, VIEWS + "[cloud]", slow=True),
    Fault("noise of one half only in what is released", "secure release of residues",
          residues_as_they_are, HALVES),
    Fault("noise of one half only, seen from outside", "secure release of residues",
          residues_as_they_are, VIEWS + "[outside]", slow=True),
    Fault("mask reused for two rounds", "masks", in_pairs,
          "test_no_mask_returns_in_another_round_session_run_or_agent"),
    Fault("mask reused for two rounds, seen from the cloud", "masks", in_pairs, VIEWS + "[cloud]",
          slow=True),
    Fault("mask reused after a crash with another contribution", "session", returning(bytes(16)),
          "test_a_masker_never_covers_two_contributions_with_one_mask"),
    Fault("mask of a round given out twice in one process", "masked contribution", again,
          "test_a_masker_never_covers_two_contributions_with_one_mask"),
    Fault("an agent counts twice in an answer", "who takes part", unchecked,
          "test_no_agent_counts_twice_in_a_round"),
    Fault("masks do not depend on the agents that they cover", "key of masks", whomever,
          "test_masks_of_one_session_share_no_number_whomever_they_cover"),
    Fault("another question about an answered round gets an answer", "question",
          returning(bytes(32)),
          "test_another_question_about_an_answered_round_is_refused_and_recorded"),
    Fault("agent takes the cloud's word for grids and bounds", "pledge", returning(True),
          "test_an_agent_goes_by_what_both_halves_say[grid]", hangs=True),
)  # fmt: skip
