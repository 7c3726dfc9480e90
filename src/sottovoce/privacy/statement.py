"""What a plan promises, in words that a non-expert can repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sottovoce.privacy.feasibility_words import kept
from sottovoce.privacy.figures import down, percent_down, up
from sottovoce.privacy.gaussian import attacker
from sottovoce.privacy.hide import Everything, Hide, Offset, Trajectory
from sottovoce.privacy.trust import WORDS

if TYPE_CHECKING:
    from sottovoce.privacy.noise_plan import Guarantee, NoisePlan

_SHOWN = 12


def not_covered(plan: NoisePlan) -> tuple[str, ...]:
    """Return what the plan's promise does not speak of."""
    seen = "state" if plan.method == "paper" else "contribution"
    limits = [
        *_not_covered_of(plan, seen),
        "side channels: timing, power, memory, traffic patterns",
    ]
    if not isinstance(plan.hide, Everything):
        further = "that moves its states further than the radius"
        limits.insert(2, f"a change of an agent's objective or data {further}")
    return tuple(limits)


def _not_covered_of(plan: NoisePlan, seen: str) -> tuple[str, ...]:
    if plan.trust.halves == 1:
        return (
            f"the cloud itself, which sees every {seen}",
            "agents or a cloud that break the protocol",
        )
    return (
        f"cloud and helper together: if their operators collude, they see every {seen}",
        "an agent that breaks the protocol, which then hides less of itself and makes the sums "
        f"wrong for all: nobody can check a single {seen} any more",
    )


def statement(plan: NoisePlan) -> str:
    """Return the plan as text: every sigma, what is hidden, from whom, and what is not covered."""
    return "\n".join([*_noise(plan), "", *_kept(plan), promise(plan)])


def promise(plan: NoisePlan) -> str:
    """Return what is promised as text: how much, what is hidden, from whom, what is not covered."""
    return "\n".join([*_promise(plan), "", *_hidden(plan), "", *_limits(plan)])


def hidden(hide: Hide) -> str:
    """Return what is hidden of one agent, in its own terms; ``hide`` has that agent's radius."""
    if isinstance(hide, Trajectory):
        return (
            f"a change of at most {down(hide.radius, 2)} of the whole sequence of states, in l2: a "
            f"constant offset of only {down(hide.radius / np.sqrt(hide.rounds), 2)} over "
            f"{hide.rounds:,} rounds"
        )
    if isinstance(hide, Offset):
        return f"an offset of at most {down(hide.radius, 2)} in every one of {hide.rounds:,} rounds"
    return (
        f"any behaviour at all within the public set, in all of {hide.rounds:,} rounds, so that "
        "state, start, objective and data are hidden"
    )


def _kept(plan: NoisePlan) -> list[str]:
    return [] if plan.method == "paper" else [*kept(plan), ""]


def plan_facts(plan: NoisePlan) -> dict[str, str]:
    """Return a plan in a few words and figures, whatever its size."""
    noisy = plan.sigma[plan.sigma > 0]
    return {
        "method": plan.method,
        "hide": plan.hide.kind,
        "rounds": f"{plan.rounds:,}",
        "agents": f"{plan.cloud.agents:,}",
        "outputs": f"{len(plan.outputs):,}",
        "sigma": f"{down(noisy.min())} to {down(noisy.max())}" if noisy.size else "0",
        "epsilon": up(float(plan.epsilon.max())),
        "delta": up(float(plan.delta.max())),
        "gdp_mu": up(float(plan.gdp_mu.max())),
        "feasible": "-" if plan.feasible is None else f"{plan.feasible.asked.probability:g}",
        "certified": str(plan.certified),
        "trust": plan.trust.kind,
        "fingerprint": plan.fingerprint[:16],
    }


def guarantee_facts(promised: Guarantee) -> dict[str, str]:
    """Return what one agent is promised, likewise."""
    pair = f"({up(promised.epsilon)}, {up(promised.asked[1])})"
    return {
        "promise": f"{pair}-differentially private",
        "Gaussian_DP_mu": up(promised.gdp_mu),
        "rounds": f"{promised.hide.rounds:,}, all together",
        "hidden": promised.hidden,
        "trust": WORDS[promised.trust.kind],
    }


def _noise(plan: NoisePlan) -> list[str]:
    split = plan.trust.halves > 1
    added = "added by each half" if split else "per released number"
    lines = [f"Noise ({plan.method} method), standard deviation {added}:"]
    for output in plan.outputs[:_SHOWN]:
        lines.append(f"  {output.kind + ' ' + output.name:<28} {down(output.sigma)}")
    if len(plan.outputs) > _SHOWN:
        more = len(plan.outputs) - _SHOWN
        lines.append(f"  ... and {more} more, up to {down(plan.sigma.max())}")
    if split:
        lines.append("  Cloud and helper both add it: what is released has sqrt(2) times as much.")
    return lines


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


def _hidden(plan: NoisePlan) -> list[str]:
    worst = plan.guarantee(int(np.argmax(plan.gdp_mu)) + 1)
    lines = [f"What is hidden of an agent (of {worst.name}, the worst off):"]
    lines.append(f"  {hidden(worst.hide)}.")
    if isinstance(plan.hide, Trajectory):
        lines.append(
            "  A state that stays where it is is not hidden: whoever averages many releases finds "
            "it. To hide it, hide an offset or everything."
        )
    if plan.trust.halves == 1:
        lines.append(f"From whom: {plan.trust.views[0].who}.")
    else:
        lines.append("From whom, and with which Gaussian-DP mu at most:")
        mu = float(plan.gdp_mu[worst.agent - 1])
        lines += [f"  - {view.who}: {up(mu * view.share)}" for view in plan.trust.views]
    lines.append(f"Trust: {WORDS[plan.trust.kind]}.")
    return lines


def _limits(plan: NoisePlan) -> list[str]:
    return ["Not covered:", *(f"  - {item}" for item in not_covered(plan))]
