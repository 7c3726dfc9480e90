"""A run that was, held against its plan: the noise in its store, from what agents said."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from sottovoce.errors import InputError
from sottovoce.network.config import RunConfig, algorithm_of
from sottovoce.network.observe.run_summary import Said, transcript
from sottovoce.network.parties import Parties
from sottovoce.network.protocol.codec import unpack, unpack_whole
from sottovoce.network.setup import make_config
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import STEPS, Integers, grid_of
from sottovoce.privacy.trust import SplitCloud
from sottovoce.problem.agents import Array
from sottovoce.study.noise import NoiseChecks, check_noise
from sottovoce.study.stated import own_states, stated_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAudit:
    """The noise of the rounds that a store holds.

    Attributes:
        committed: rounds in the store.
        rounds: rounds that the run is to have.
        noise: what their noise looks like.
    """

    committed: int
    rounds: int
    noise: NoiseChecks

    @property
    def finished(self) -> bool:
        """Whether the run has had all its rounds."""
        return self.committed == self.rounds

    @property
    def title(self) -> str:
        """What was looked at, in words."""
        if self.finished:
            return "The noise of the finished run"
        return f"The noise of a run that is not finished, {self.committed:,} of {self.rounds:,}"


def audit_store(plan: NoisePlan, path: str | os.PathLike[str]) -> StoreAudit:
    """Test the noise of every round in a store that kept what agents said.

    Nothing that they said is in what it returns: residuals are the noise alone.

    Args:
        plan: the plan that the run was made with.
        path: the store.

    Raises:
        InputError: the store belongs to another plan, did not keep what was said, or its noise was
            simulated.
        StoreError: it is not a store, or damaged.
    """
    run = transcript(path)
    config = run.config
    if config is None or run.said is None:
        raise InputError(
            f"{path} must hold what agents said in all its rounds, got a store without: only a "
            "cloud started with --keep-states keeps it"
        )
    if isinstance(plan.trust, SplitCloud) or config.promise.get("trust", "one") == "split":
        raise InputError(
            f"{path} must be a trusted cloud's store, got one of a split cloud: what agents said "
            "is masked, and no half can tell noise from contributions; audit with --view instead"
        )
    if config.noise != "secure":
        raise InputError(f"{path} must hold secure noise, got a simulated run: nothing is private")
    _require_plan(plan, config, path)
    noise = _of_sums if plan.method == "joint" else _of_values
    checks = check_noise(noise(plan, run.said, run.multiples))
    return StoreAudit(committed=len(run.said), rounds=config.rounds, noise=checks)


def _require_plan(plan: NoisePlan, config: RunConfig, path: str | os.PathLike[str]) -> None:
    mine = make_config(
        plan,
        algorithm_of(config.algorithm),
        rounds=config.rounds,
        noise=config.noise,
        run_id=config.run_id,
    )
    if (mine.problem, mine.plan) != (config.problem, config.plan):
        raise InputError(
            f"{path} must belong to this plan, got a run of another: give the options and the "
            "folder that its cloud was started with"
        )


def _of_sums(plan: NoisePlan, said: tuple[Said, ...], multiples: Integers) -> Array:
    """Whole numbers minus whole numbers: the very draws."""
    parties = Parties(plan)
    noisy = np.flatnonzero(plan.sigma > 0)
    sums: dict[tuple[int, ...], Integers] = {}
    drawn = multiples.copy()
    for row, parts in zip(drawn, said, strict=True):
        for agents, data in parts:
            if agents not in sums:
                sums[agents] = np.searchsorted(noisy, parties(agents).sums)
            row[sums[agents]] -= unpack_whole(data)
    return np.asarray(drawn / STEPS)


def _of_values(plan: NoisePlan, said: tuple[Said, ...], multiples: Integers) -> Array:
    """The paper's release: F is worked out from the states."""
    stated = stated_of(plan)
    states = np.empty((len(said), stated.lower.size))
    for x, parts in zip(states, said, strict=True):
        for agents, data in parts:
            columns = [np.r_[own_states(plan.cloud, agent)] for agent in agents]
            x[np.concatenate(columns)] = unpack(data)
    return stated.standardised(states, multiples * grid_of(stated.sigma))
