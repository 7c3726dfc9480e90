"""A plan and its keys, checked and turned into what a run starts from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.errors import InputError, PrivacyError
from sottovoce.network.config import Noise, RunConfig, describe
from sottovoce.network.errors import IdentityError, StoreError
from sottovoce.network.parties import Parties
from sottovoce.network.protocol.actions import Record, Setup
from sottovoce.network.protocol.codec import pack
from sottovoce.network.protocol.messages import LONGEST_WAIT
from sottovoce.network.rounds import Rounds
from sottovoce.network.store import CloudStore, attendance_in
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.trust import SplitCloud
from sottovoce.problem.fingerprint import fingerprint


def make_config(
    plan: NoisePlan, algorithm: Algorithm, *, rounds: int, noise: Noise, run_id: str
) -> RunConfig:
    """Return the configuration of a run under a plan."""
    worst = plan.guarantee()
    outputs = [(o.kind, o.row, o.column, o.sigma) for o in plan.outputs]
    return RunConfig(
        run_id=run_id,
        problem=plan.fingerprint,
        plan=fingerprint(outputs, plan.gdp_mu, plan.domain, *_margins(plan)),
        algorithm=describe(algorithm),
        rounds=rounds,
        noise=noise,
        promise={
            "hide": plan.hide.kind,
            "radius": plan.radius(worst.agent),
            "rounds": plan.rounds,
            "agent": worst.name,
            "gdp_mu": worst.gdp_mu,
            "epsilon": worst.epsilon,
            "delta": worst.asked[1],
            "trust": plan.trust.kind,
            "feasible": None
            if plan.feasible is None
            else {"probability": plan.feasible.probability, "each_row": plan.feasible.each_row},
        },
    )


def _margins(plan: NoisePlan) -> tuple[Any, ...]:
    """What a plan aims at and tests, for its fingerprint; not what that costs, which is private."""
    kept = plan.feasible
    return () if kept is None else (kept.margin, kept.band, kept.target.lower, kept.target.upper)


def setup_of(plan: NoisePlan, parties: Parties, config: RunConfig) -> Setup:
    """Return what the state machine needs to know of a run."""
    states = plan.release is not None
    return Setup(
        config=config.text,
        config_hash=config.hash,
        rounds=config.rounds,
        agents=plan.cloud.agents,
        states=states,
        prices=plan.cloud.rows if states else plan.cloud.sums.count,
        entries=sum(output.kind == "gradient" for output in plan.outputs),
        party=parties,
        split=isinstance(plan.trust, SplitCloud),
    )


def resumed(store: CloudStore, rounds: Rounds, setup: Setup, *, secure: bool) -> Record | None:
    """Take all steps of a store's rounds again, and return the last of them.

    The store keeps releases and prices, not what the algorithm remembers: that is worked out anew,
    and every price must come out as it was sent.

    Raises:
        StoreError: a price comes out differently.
        DivergedError: likewise, beyond all bounds.
    """
    previous, last = setup.config_hash, None
    for row in store.rounds():
        held, missed = attendance_in(row)
        last = rounds.replay(
            row.k,
            row.release,
            secure=secure,
            previous=previous,
            held=frozenset(held),
            missed=missed,
        )
        if pack(last.price) != row.context:
            raise StoreError(
                f"{store.path} must hold the prices that follow from its releases, got others in "
                f"round {row.k:,}: it was written by another version of sottovoce or on another "
                "kind of machine; continue there, or begin a new run with a new store, which "
                "spends privacy anew"
            )
        previous = row.digest
    return None if last is None else replace(last, **store.said(setup.party))


def check_halves(plan: NoisePlan, *, helper: bool, simulated: bool) -> None:
    """Refuse a plan for two halves where there is one, and the other way round.

    Raises:
        PrivacyError: the plan promises what this cloud would not keep.
        InputError: there is nothing for a helper to do.
    """
    split = isinstance(plan.trust, SplitCloud)
    if split and not helper:
        raise PrivacyError(
            "plan must trust one cloud, got one for a split cloud: without a helper this cloud "
            "would see every contribution; name the helper, or plan without trust=sv.SplitCloud()"
        )
    if helper and not split:
        words = "its noise is for one cloud"
        if plan.release is not None:
            words = f"its cloud works with every {plan.release.sent}"
        raise InputError(
            f"plan must be for a split cloud with a helper, got one that is not: {words}; "
            "use sv.plan with trust=sv.SplitCloud()"
        )
    if helper and simulated:
        raise InputError("seed must be left out with a helper, got one: its noise has no seed")


def check_request(plan: NoisePlan, rounds: int, straggler: str, deadline: float | None) -> None:
    """Refuse a run that its plan does not cover, or a deadline without a use."""
    if not 1 <= rounds <= plan.rounds:
        raise InputError(
            f"rounds must lie in 1..{plan.rounds}, which the plan covers, got rounds={rounds}: "
            "plan for more rounds"
        )
    if plan.feasible is not None and rounds != plan.rounds:
        raise InputError(
            f"rounds must be what the plan covers ({plan.rounds:,}) with feasible, whose margins "
            f"are for an average of so many, got rounds={rounds}: plan for these rounds"
        )
    if straggler not in ("wait", "hold"):
        raise InputError(f"straggler must be 'wait' or 'hold', got {straggler!r}")
    if (straggler == "hold") != (deadline is not None):
        raise InputError("deadline must be given with straggler='hold', and only then")
    if deadline is not None and not (math.isfinite(deadline) and deadline > 0):
        raise InputError(f"deadline must be positive seconds, got deadline={deadline}")
    if straggler == "hold" and isinstance(plan.hide, Trajectory):
        # A difference of b in one round, used in h more of them, is one of b sqrt(1 + h).
        raise PrivacyError(
            "straggler must be 'wait' to hide a trajectory, got 'hold': what was said counts again "
            "in every round, so that differences add up to more than the radius; wait for "
            "stragglers, or plan with sv.Offset(...) or sv.Everything(...)"
        )
    if not plan.certified:
        raise PrivacyError("plan must keep what it promises; an undernoised plan is for study only")


def check_wait(wait: float) -> None:
    """Refuse a time between the end and the moment to apply answers that agents would not wait."""
    if not 0.0 <= wait <= LONGEST_WAIT:  # not a number is refused, too
        raise InputError(
            f"apply_after must be 0 to {LONGEST_WAIT:.0f} seconds, got apply_after={wait}"
        )


def check_store(plan: NoisePlan, store: CloudStore) -> None:
    """Refuse to continue a run that held agents under a promise that does not cover it.

    Raises:
        PrivacyError: agents were held, and the plan hides a trajectory.
    """
    if isinstance(plan.hide, Trajectory) and store.has_held():
        raise PrivacyError(
            f"a run that hides a trajectory must not have held agents, got {store.path}, where "
            "last words of some counted again: it released more than it promised and cannot go "
            "on; start anew with another store, and wait for stragglers or plan with "
            "sv.Offset(...) or sv.Everything(...)"
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
