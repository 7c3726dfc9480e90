"""What a plan promises, in words that a non-expert can repeat.

Figures are rounded towards the worse, never to nearest (``up`` and ``down``): reading the text back
never gives a better number than the one printed.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from sottovoce.privacy.adjacency import Adjacency, Everything, Offset, Trajectory
from sottovoce.privacy.charge import root_up, units_up
from sottovoce.privacy.feasibility import Feasibility, Margin
from sottovoce.privacy.gaussian import Attacker, epsilon_of
from sottovoce.privacy.standing import SECONDS, SPANS
from sottovoce.privacy.trust import TRUST_STATEMENTS

if TYPE_CHECKING:
    from sottovoce.privacy.noise_plan import Guarantee, NoisePlan
    from sottovoce.privacy.standing import PeriodBudget


_PERIODS_TOGETHER = (7, 30, 365)
_MOST_LINES = 12  # outputs or margins that a text lists


def up(value: float, digits: int = 6) -> str:
    """Write an upper bound (epsilon, delta, mu, a sensitivity), rounded up."""
    return _rounded_text(value, digits, ROUND_CEILING)


def down(value: float, digits: int = 6) -> str:
    """Write a lower bound (sigma, what is hidden), rounded down."""
    return _rounded_text(value, digits, ROUND_FLOOR)


def percent_down(share: float) -> str:
    """Write a share as a percentage with one decimal place, rounded down."""
    rounded = (100 * Decimal(repr(float(share)))).quantize(Decimal("0.1"), rounding=ROUND_FLOOR)
    return f"{float(rounded):g}%"


def _rounded_text(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return f"{value:g}"
    # The shortest text that reads back as this double: 0.05 stays 0.05.
    rounded = Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    return f"{float(rounded):,.{max(digits, 6)}g}"


def not_covered(plan: NoisePlan) -> tuple[str, ...]:
    """Return what the plan's promise does not cover."""
    sent = "contribution" if plan.release is None else plan.release.sent
    if plan.trust.noise_sources == 1:
        limits = [
            f"the cloud itself, which sees every {sent}",
            "agents or a cloud that break the protocol",
        ]
    else:
        limits = [
            f"cloud and helper together: if their operators collude, they see every {sent}",
            "an agent that breaks the protocol, which then hides less of itself and makes the sums "
            f"wrong for all: nobody can check a single {sent} any more",
        ]
    if not isinstance(plan.hide, Everything):
        limits.append(
            "a change of an agent's objective or data that moves its states further than the radius"
        )
    limits.append(
        "presence: whether an agent takes part in a round is public; what counts where it does "
        "not, by default a public constant, tells nothing more"
    )
    return (*limits, "side channels: timing, power, memory, traffic patterns")


def statement(plan: NoisePlan) -> str:
    """Return the plan as text: every sigma, what is hidden, from whom, and what is not covered."""
    constraints = [*_constraint_lines(plan), ""] if plan.release is None else []
    return "\n".join([*_noise_lines(plan), "", *constraints, guarantee_text(plan)])


def guarantee_text(plan: NoisePlan) -> str:
    """Return what is promised as text: how much, what is hidden, from whom, what is not covered."""
    limits = (f"  - {item}" for item in not_covered(plan))
    return "\n".join([*_promise_lines(plan), "", *_hidden_lines(plan), "", "Not covered:", *limits])


def hidden(hide: Adjacency) -> str:
    """Return what is hidden of one agent, in its own terms; ``hide`` has that agent's radius."""
    if isinstance(hide, Everything):
        return (
            f"any behaviour at all within the public set, in all of {hide.rounds:,} rounds, so "
            "that state, start, objective and data are hidden"
        )
    radius = float(np.asarray(hide.radius))
    if isinstance(hide, Offset):
        return f"an offset of at most {down(radius, 2)} in every one of {hide.rounds:,} rounds"
    return (
        f"a change of at most {down(radius, 2)} of the whole sequence of states, in l2: a constant "
        f"offset of only {down(radius / np.sqrt(hide.rounds), 2)} over {hide.rounds:,} rounds"
    )


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
        "feasible": "-" if plan.feasible is None else down(plan.feasible.probability),
        "certified": str(plan.certified),
        "trust": plan.trust.kind,
        "fingerprint": plan.fingerprint[:16],
    }


def guarantee_facts(promised: Guarantee) -> dict[str, str]:
    """Return the same of one agent's promise."""
    pair = f"({up(promised.epsilon)}, {up(promised.requested[1])})"
    return {
        "promise": f"{pair}-differentially private",
        "Gaussian_DP_mu": up(promised.gdp_mu),
        "rounds": f"{promised.hide.rounds:,}, all together",
        "hidden": promised.hidden,
        "trust": TRUST_STATEMENTS[promised.trust.kind],
    }


def period_promise(period: PeriodBudget, lifetime: float) -> str:
    """Return what a budget by period promises, for one and many, within the lifetime's mu."""
    square, pairs = units_up(Fraction(period.budget)) ** 2, []
    for count in _PERIODS_TOGETHER:
        mu = min(root_up(count * square), lifetime)
        pairs.append(f"{count} periods ({up(epsilon_of(mu, period.delta))}, {up(period.delta)})")
    return (
        f"all runs that begin within any {SPANS[period.per]}: ({up(period.epsilon)}, "
        f"{up(period.delta)}), mu <= {up(period.budget)}; {', '.join(pairs)}; never more than the "
        f"lifetime's mu <= {up(lifetime)}"
    )


def series_promise(plan: NoisePlan, every: float | None) -> list[str]:
    """Return what one run of a series promises the worst-off agent, and what many do together.

    Many are those of a schedule, a run in ``every`` seconds; None is none.
    """
    worst = plan.guarantee()
    delta = worst.requested[1]
    lines = [f"a run: ({up(worst.epsilon)}, {up(delta)}), mu <= {up(worst.gdp_mu)}"]
    square = units_up(Fraction(worst.gdp_mu)) ** 2
    every = math.inf if every is None else every
    for per, seconds in SECONDS.items():
        count = math.floor(seconds / every) + 1  # both ends of the window may open one
        if count > 1:
            mu = root_up(count * square)
            lines.append(
                f"any {SPANS[per]}, {count:,} runs by the schedule: ({up(epsilon_of(mu, delta))}, "
                f"{up(delta)}), mu <= {up(mu)}"
            )
    lines.append(
        "runs that are asked for count besides; budgets in the ledger bound what any agent spends"
    )
    return lines


def _noise_lines(plan: NoisePlan) -> list[str]:
    split = plan.trust.noise_sources > 1
    added = "added by each half" if split else "per released number"
    lines = [f"Noise ({plan.method} method), standard deviation {added}:"]
    lines += [f"  {o.kind + ' ' + o.name:<28} {down(o.sigma)}" for o in plan.outputs[:_MOST_LINES]]
    if len(plan.outputs) > _MOST_LINES:
        unlisted = len(plan.outputs) - _MOST_LINES
        lines.append(f"  ... and {unlisted} more, up to {down(plan.sigma.max())}")
    if split:
        lines.append("  Cloud and helper both add it: what is released has sqrt(2) times as much.")
    return lines


def _promise_lines(plan: NoisePlan) -> list[str]:
    worst = plan.guarantee()
    lines = [
        f"Promise, for all {plan.rounds:,} rounds and all messages together:",
        f"  every agent is ({up(worst.epsilon)}, {up(worst.requested[1])})-differentially "
        f"private or better; worst: {worst.name} with Gaussian-DP mu = {up(worst.gdp_mu)}.",
    ]
    if not plan.certified:
        lines.append("  THIS IS LESS THAN WAS ASKED FOR: the plan is for study only.")
    best = Attacker(worst.gdp_mu)
    lines.append(
        "  The best possible attacker, who knows everything but which of two adjacent behaviours "
        f"it was, errs at least {percent_down(best.equal_error_rate)} of the time (blind guessing: "
        f"50%); advantage at most {up(best.advantage, 3)}."
    )
    return lines


def _hidden_lines(plan: NoisePlan) -> list[str]:
    worst = plan.guarantee()
    lines = [f"What is hidden of an agent (of {worst.name}, the worst off):", f"  {worst.hidden}."]
    if isinstance(plan.hide, Trajectory):
        lines.append(
            "  A state that stays where it is is not hidden: whoever averages many releases finds "
            "it. To hide it, hide an offset or everything."
        )
    if plan.trust.noise_sources == 1:
        lines.append(f"From whom: {plan.trust.views[0].coalition}.")
    else:
        lines.append("From whom, and with which Gaussian-DP mu at most:")
        lines += [
            f"  - {view.coalition}: {up(worst.gdp_mu * view.mu_factor)}"
            for view in plan.trust.views
        ]
    lines.append(f"Trust: {TRUST_STATEMENTS[plan.trust.kind]}.")
    return lines


def _constraint_lines(plan: NoisePlan) -> list[str]:
    margins = plan.feasible
    if margins is None:
        return [
            "Constraints: no margin was asked for, so that noise alone leaves about every second "
            "answer over an active limit; feasible=0.95 keeps them."
        ]
    failure = up(float(1 - Decimal(repr(margins.probability))), 3)
    scope = "each constraint by itself" if margins.each_row else "all constraints together"
    lines = [
        "Constraints: a run ends with a test. P(the answer is confirmed and violates one) <= "
        f"{failure}, for {scope}, whatever the run did; an answer that is not confirmed is not "
        "applied, agents apply their fallbacks instead."
    ]
    shown, unlisted = margins.margins[:_MOST_LINES], margins.margins[_MOST_LINES:]
    lines += [f"  {_margin_line(margin)}" for margin in shown]
    if unlisted:
        worst = max(margin.percent_of_scale for margin in unlisted)
        lines.append(f"  ... and {len(unlisted)} more, up to {up(worst, 3)}% of their size")
    if not shown:
        lines.append("  no state within the public boxes violates one: nothing is tested")
    return [*lines, f"  {_cost_line(margins)}"]


def feasibility_data(margins: Feasibility) -> dict[str, object]:
    """Return the margins as plain data."""
    columns = ("name", "kind", "tested", "tightening", "percent_of_scale")
    cost = margins.cost
    return {
        "probability": margins.probability,
        "each_row": margins.each_row,
        "margins": [{name: getattr(m, name) for name in columns} for m in margins.margins],
        "predicted_cost": None if cost is None else cost.more,
        "optimum": None if cost is None else cost.optimum,
    }


def _margin_line(margin: Margin) -> str:
    size = f"{up(margin.tightening, 3)} ({up(margin.percent_of_scale, 3)}% of its size)"
    if margin.kind == "equality":
        return f"{margin.name}: kept within a band of +-{size}: no equality is exact under noise"
    return f"{margin.name}: aimed at with a margin of {size}, of which {up(margin.tested, 3)} noise"


def _cost_line(margins: Feasibility) -> str:
    cost = margins.cost
    if cost is None:
        return "What they cost is not known without objectives: each unit of margin its price."
    size = abs(cost.optimum)
    share = f", {up(100.0 * cost.more / size, 3)}% of the optimum" if size > 0.0 else ""
    return (
        f"Predicted cost: {up(cost.more, 3)} more than the optimum of "
        f"{down(cost.optimum, 6)}{share}."
    )
