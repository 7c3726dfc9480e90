"""What a plan promises, in words that a non-expert can repeat."""

from __future__ import annotations

from decimal import ROUND_FLOOR, Context
from typing import TYPE_CHECKING

import numpy as np

from sottovoce.privacy.adjacency import diameters
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
        "any two behaviours of an agent look alike, so its state, its start, its objective and "
        "its data are hidden"
        if share >= 1.0
        else f"not any two behaviours: in each round up to {_down(share)} of the width of an "
        "agent's domain is hidden"
    )
    return {
        "trajectory": f"two state sequences of an agent that differ by at most {_span(whole)} "
        "in l2 over all rounds look alike",
        "per-round": f"a constant offset of {_span(each)} over {plan.rounds:,} rounds is hidden",
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
    lines += [f"  {name:<28} {sigma:.6g}" for name, sigma in rows[:_SHOWN]]
    if len(rows) > _SHOWN:
        lines.append(f"  ... and {len(rows) - _SHOWN} more, up to {plan.sigma.max():.6g}")
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
        f"  every agent is ({worst.epsilon:.6g}, {plan.delta[worst.agent - 1]:g})-differentially "
        f"private or better; worst: {worst.name} with Gaussian-DP mu = {worst.gdp_mu:.6g}.",
    ]
    if not plan.certified:
        lines.append("  THIS IS LESS THAN WAS ASKED FOR: the plan is for study only.")
    best = attacker(worst.gdp_mu)
    lines.append(
        f"  The best possible attacker, told everything but which of two adjacent behaviours it "
        f"was, errs at least {np.floor(1000 * best.equal_error_rate) / 10:g}% of the time (blind "
        f"guessing: 50%); advantage at most {np.ceil(1000 * best.advantage) / 1000:g}."
    )
    return lines


def _readings(plan: NoisePlan) -> list[str]:
    lines = [f"What is hidden (made for adjacency: {plan.adjacency}):"]
    lines += [f"  {name}: {text}." for name, text in readings(plan).items()]
    lines.append(
        "From whom: every other agent, all of them together, and an eavesdropper of all messages "
        "that the cloud sends."
    )
    return lines


def _limits() -> list[str]:
    return ["Not covered:", *(f"  - {item}" for item in NOT_COVERED)]


def _span(values: Array) -> str:
    low, high = _down(values.min()), _down(values.max())
    return low if low == high else f"{low} to {high}"


def _down(value: float) -> str:
    """Two digits, cut off: what is said to be hidden is never more than what is."""
    cut = Context(prec=2, rounding=ROUND_FLOOR).create_decimal(repr(float(value)))
    return f"{float(cut):,.6g}"
