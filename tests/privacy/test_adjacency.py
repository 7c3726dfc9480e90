"""What is hidden, as typed values: their words, their radii and their rounds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import InputError
from sottovoce.privacy.adjacency import TRAJECTORY_ROUNDS, Adjacency, adjacency_of, radii
from sottovoce.privacy.statement import hidden


def test_given_arrays_are_copied() -> None:
    given_ = np.array([1.0, 2.0])
    b = radii(sv.Trajectory(radius=given_), 2)
    given_[0] = 9.0
    assert b[0] == 1.0


def test_a_trajectory_covers_a_million_rounds_if_not_said_and_a_million_said_are_named() -> None:
    unsaid, said = sv.Trajectory(radius=1), sv.Trajectory(radius=1, rounds=1_000_000)
    assert unsaid == said
    assert unsaid.rounds == TRAJECTORY_ROUNDS == 1_000_000
    assert unsaid.open_ended
    assert not said.open_ended
    assert not replace(said, radius=2).open_ended


@pytest.mark.parametrize("rounds", [0, -1, 2.5, math.nan, math.inf, True, "7", 10**400])
def test_bad_rounds_are_refused(rounds: Any) -> None:
    for make in (
        lambda: sv.Trajectory(radius=1, rounds=rounds),
        lambda: sv.Offset(radius=1, rounds=rounds),
        lambda: sv.Everything(rounds=rounds),
    ):
        with pytest.raises(InputError, match="rounds must be an integer"):
            make()


def test_rounds_must_be_said_where_each_costs() -> None:
    for make in (lambda: sv.Offset(radius=1), lambda: sv.Everything()):  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="rounds"):
            make()
    for kind in ("offset", "everything"):
        radius = 1.0 if kind == "offset" else None
        with pytest.raises(InputError, match=f"rounds must be given to hide {kind}"):
            adjacency_of(kind, radius=radius)


@pytest.mark.parametrize(
    ("hide", "words"),
    [
        (
            sv.Trajectory(radius=2.0, rounds=100),
            "a change of at most 2 of the whole sequence of states, in l2: a constant offset of "
            "only 0.2 over 100 rounds",
        ),
        (
            sv.Offset(radius=0.349, rounds=1_000),
            "an offset of at most 0.34 in every one of 1,000 rounds",
        ),
        (
            sv.Everything(rounds=25),
            "any behaviour at all within the public set, in all of 25 rounds, so that state, "
            "start, objective and data are hidden",
        ),
    ],
)
def test_each_kind_has_words_of_its_own_rounded_towards_the_worse(
    hide: Adjacency, words: str
) -> None:
    assert hidden(hide) == words
