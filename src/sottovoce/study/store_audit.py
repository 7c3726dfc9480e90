"""A finished run, held against its plan: the noise in its store, from states and releases."""

from __future__ import annotations

import os

import numpy as np

from sottovoce.errors import InputError
from sottovoce.network.config import algorithm_of
from sottovoce.network.setup import make_config
from sottovoce.network.store import transcript
from sottovoce.privacy.plan import NoisePlan
from sottovoce.privacy.sampler import grid_of
from sottovoce.study.noise import NoiseChecks, check_noise
from sottovoce.study.stated import Stated


def audit_store(plan: NoisePlan, path: str | os.PathLike[str]) -> NoiseChecks:
    """Test the noise of every round in a store that kept its states.

    Nothing of a state is in what it returns: residuals are the noise alone.

    Args:
        plan: the plan that the run was made with.
        path: the store.

    Raises:
        InputError: the store belongs to another plan, did not keep its states, or its noise was
            simulated.
        StoreError: it is not a store, or damaged.
    """
    run = transcript(path)
    config = run.config
    if config is None or run.states is None:
        raise InputError(
            f"{path} must hold the states of all its rounds, got a store without them: only a "
            "cloud started with --keep-states keeps them"
        )
    if config.noise != "secure":
        raise InputError(f"{path} must hold secure noise, got a simulated run: nothing is private")
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
    stated = Stated(plan)
    released = run.multiples * grid_of(stated.sigma)
    return check_noise(np.asarray(stated.standardised(run.states, released)))
