"""A plan and its keys, checked and turned into what a run starts from."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.errors import InputError, PrivacyError
from sottovoce.network.config import Noise, RunConfig, describe
from sottovoce.network.errors import IdentityError
from sottovoce.network.protocol.actions import Setup
from sottovoce.network.rounds import first_carried
from sottovoce.network.store import Store
from sottovoce.privacy.plan import NoisePlan
from sottovoce.problem.agents import lower_bounds, upper_bounds
from sottovoce.problem.fingerprint import fingerprint


def make_config(
    plan: NoisePlan, algorithm: Algorithm, *, rounds: int, noise: Noise, run_id: str
) -> RunConfig:
    """Return the configuration of a run under a plan."""
    worst = plan.guarantee(int(np.argmax(plan.gdp_mu)) + 1)
    parts = (plan.sigma_g, plan.gradient_rows, plan.gradient_columns, plan.gradient_sigma,
             plan.gradient_slope)  # fmt: skip
    return RunConfig(
        run_id=run_id,
        problem=plan.fingerprint,
        plan=fingerprint(*parts, plan.gdp_mu, plan.domain),
        algorithm=describe(algorithm),
        rounds=rounds,
        noise=noise,
        promise={
            "adjacency": plan.adjacency,
            "covered_rounds": plan.rounds,
            "agent": worst.name,
            "radius": worst.radius,
            "gdp_mu": worst.gdp_mu,
            "epsilon": worst.epsilon,
            "delta": float(plan.delta[worst.agent - 1]),
        },
    )


def setup_of(
    plan: NoisePlan, algorithm: Algorithm, config: str, config_hash: bytes, rounds: int
) -> Setup:
    """Return what the state machine needs to know of a plan and an algorithm."""
    dims = np.concatenate([np.full(g.count, g.dim) for g in plan.domain])
    return Setup(
        config=config,
        config_hash=config_hash,
        rounds=rounds,
        offsets=np.concatenate([[0], np.cumsum(dims)]),
        lower=lower_bounds(plan.domain),
        upper=upper_bounds(plan.domain),
        entry_rows=plan.gradient_rows,
        entry_columns=plan.gradient_columns,
        entry_slopes=plan.gradient_slope,
        rows=plan.cloud.rows,
        carried=first_carried(algorithm, plan.cloud.rows),
    )


def check_request(plan: NoisePlan, rounds: int, straggler: str, deadline: float | None) -> None:
    """Refuse a run that its plan does not cover, or a deadline without a use."""
    if not 1 <= rounds <= plan.rounds:
        raise InputError(
            f"rounds must lie in 1..{plan.rounds}, which the plan covers, got rounds={rounds}: "
            "plan for more rounds"
        )
    if straggler not in ("wait", "hold"):
        raise InputError(f"straggler must be 'wait' or 'hold', got {straggler!r}")
    if (straggler == "hold") != (deadline is not None):
        raise InputError("deadline must be given with straggler='hold', and only then")
    if deadline is not None and not (math.isfinite(deadline) and deadline > 0):
        raise InputError(f"deadline must be positive seconds, got deadline={deadline}")
    if straggler == "hold" and plan.adjacency == "trajectory":
        # A difference of b in one round, used in h more of them, is one of b sqrt(1 + h).
        raise PrivacyError(
            "straggler must be 'wait' with adjacency='trajectory', got 'hold': a held state "
            "counts again in every round, so that differences add up to more than the radius; wait "
            "for stragglers, or plan with adjacency='per-round' or 'everything'"
        )
    if not plan.certified:
        raise PrivacyError("plan must keep what it promises; an undernoised plan is for study only")


def check_store(plan: NoisePlan, store: Store) -> None:
    """Refuse to continue a run that held agents under a promise that does not cover it.

    Raises:
        PrivacyError: agents were held, and the plan is for trajectories.
    """
    if plan.adjacency == "trajectory" and store.has_held():
        raise PrivacyError(
            f"a run with adjacency='trajectory' must not have held agents, got {store.path}, where "
            "some were held at their last state: it released more than it promised and cannot go "
            "on; start anew with another store, and wait for stragglers or plan with "
            "adjacency='per-round' or 'everything'"
        )


def round_key(keys: Path) -> bytes:
    """Return the key that signs receipts."""
    try:
        key = (keys / "round.key").read_bytes()
    except OSError:
        key = b""
    if len(key) != 32:
        raise IdentityError(f"{keys / 'round.key'} must hold 32 bytes, as identity init wrote it")
    return key
