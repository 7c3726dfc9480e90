"""What a plan promises, in words that a non-expert can repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sottovoce.privacy.adjacency import Adjacency, diameters
from sottovoce.privacy.figures import down, percent_down, up
from sottovoce.privacy.gaussian import attacker

if TYPE_CHECKING:
    from sottovoce.privacy.plan import NoisePlan
    from sottovoce.problem.agents import Array

_SHOWN = 12

NOT_COVERED = (
    "the cloud itself, which sees every state",
    "agents or a cloud that break the protocol",
    "a change of an agent's objective or data that moves its states further than the radius",
    "side channels: timing, power, memory, traffic patterns",
)


def statement(plan: NoisePlan) -> str:
    """Return the plan as text: every sigma, what is hidden, from whom, and what is not covered."""
    return "\n".join([*_noise(plan), "", *_promise(plan), "", *_readings(plan), "", *_limits()])


def hidden(adjacency: Adjacency, radius: float, rounds: int) -> str:
    """Return what is hidden of one agent, in its own terms.

    Args:
        adjacency: which behaviours look alike.
        radius: b_l.
        rounds: T.
    """
    if adjacency == "trajectory":
        return (
            f"a change of at most {down(radius, 2)} of the whole sequence of states, in l2: a "
            f"constant offset of only {down(radius / np.sqrt(rounds), 2)} over {rounds:,} rounds"
        )
    if adjacency == "per-round":
        return f"an offset of at most {down(radius, 2)} in every round"
    return "any behaviour at all within the public set"


def readings(plan: NoisePlan) -> dict[str, str]:
    """Return what the plan hides under each of the three adjacencies, whatever it was made for.

    The same noise hides a whole difference of ``R = mu / sqrt(sum_o S^2/sigma^2)`` in l2: spread
    evenly over T rounds that is ``R / sqrt(T)`` in each.
    """
    root = np.sqrt(plan.rounds)
    once = plan.adjacency == "trajectory"
    whole, each = (plan.radius, plan.radius / root) if once else (plan.radius * root, plan.radius)
    wide = np.concatenate([diameters(group) for group in plan.domain])
    share = np.min(np.divide(each, wide, out=np.ones_like(wide), where=wide > 0))
    everything = (
        "any behaviour at all of an agent within the public set, so that its state, its start, its "
        "objective and its data are hidden"
        if share >= 1.0
        else f"not any behaviour: of the width of an agent's domain only {down(share, 2)} is "
        "hidden in every round"
    )
    return {
        "trajectory": f"a change of at most {_span(whole)} of an agent's whole sequence of states, "
        f"in l2: a constant offset of only {_span(each)} over {plan.rounds:,} rounds",
        "per-round": f"an offset of at most {_span(each)} in every one of {plan.rounds:,} rounds",
        "everything": everything,
    }


def _noise(plan: NoisePlan) -> list[str]:
    lines = [f"Noise ({plan.method} method), standard deviation per released number:"]
    labels = plan.cloud.row_labels()
    rows = [(f"g: {label}", s) for label, s in zip(labels, plan.sigma_g, strict=True)]
    columns = _column_labels(plan)
    rows += [
        (f"d {labels[r]} / d {name}", s)
        for r, name, s in zip(plan.gradient_rows, columns, plan.gradient_sigma, strict=True)
    ]
    lines += [f"  {name:<28} {down(sigma)}" for name, sigma in rows[:_SHOWN]]
    if len(rows) > _SHOWN:
        lines.append(f"  ... and {len(rows) - _SHOWN} more, up to {down(plan.sigma.max())}")
    return lines


def _column_labels(plan: NoisePlan) -> list[str]:
    if plan.gradient_columns.size == 0:
        return []
    names = [s.name for group in plan.cloud.groups for s in group.symbols * group.count]
    return [names[c] for c in plan.gradient_columns]


def _promise(plan: NoisePlan) -> list[str]:
    worst = plan.guarantee(int(np.argmax(plan.gdp_mu)) + 1)
    lines = [
        f"Promise, for all {plan.rounds:,} rounds and all messages together:",
        f"  every agent is ({up(worst.epsilon)}, {up(plan.delta[worst.agent - 1])})-differentially "
        f"private or better; worst: {worst.name} with Gaussian-DP mu = {up(worst.gdp_mu)}.",
    ]
    if not plan.certified:
        lines.append("  THIS IS LESS THAN WAS ASKED FOR: the plan is for study only.")
    best = attacker(worst.gdp_mu)
    lines.append(
        f"  The best possible attacker, told everything but which of two adjacent behaviours it "
        f"was, errs at least {percent_down(best.equal_error_rate)} of the time (blind guessing: "
        f"50%); advantage at most {up(best.advantage, 3)}."
    )
    return lines


def _readings(plan: NoisePlan) -> list[str]:
    lines = [f"What is hidden (made for adjacency: {plan.adjacency}):"]
    lines += [f"  {name}: {text}." for name, text in readings(plan).items()]
    if plan.adjacency == "trajectory":
        lines.append(
            "  A state that stays where it is is not hidden: whoever averages many releases finds "
            "it. To hide it, plan for per-round or everything."
        )
    lines.append(
        "From whom: every other agent, all of them together, and an eavesdropper of all messages "
        "that the cloud sends."
    )
    return lines


def _limits() -> list[str]:
    return ["Not covered:", *(f"  - {item}" for item in NOT_COVERED)]


def _span(values: Array) -> str:
    """From the least to the most, cut off: what is said to be hidden is never more than what is."""
    low, high = down(values.min(), 2), down(values.max(), 2)
    return low if low == high else f"{low} to {high}"
