"""What ``feasible`` promises, in words and figures, each rounded towards the worse."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sottovoce.privacy.feasibility import Feasibility, Margin
from sottovoce.privacy.figures import down, up

if TYPE_CHECKING:
    from sottovoce.privacy.noise_plan import NoisePlan

_SHOWN = 12


def kept(plan: NoisePlan) -> list[str]:
    """Return what the plan promises of the constraints, line by line."""
    found = plan.feasible
    if found is None:
        return [
            "Constraints: no margin was asked for, so that noise alone leaves about every second "
            "answer over an active limit; feasible=0.95 keeps them."
        ]
    lines = [f"Constraints: {promise_of(found)}"]
    lines += [f"  {_margin(margin)}" for margin in found.margins[:_SHOWN]]
    more = found.margins[_SHOWN:]
    if more:
        worst = max(more, key=_share)
        lines.append(f"  ... and {len(more)} more, up to {_percent(worst)} of their size")
    if not found.margins:
        lines.append("  no state within the public boxes violates one: nothing is tested")
    return [*lines, f"  {_cost(found)}"]


def promise_of(found: Feasibility) -> str:
    """Return the promise itself."""
    rest = up(float(1 - Decimal(repr(found.asked.probability))), 3)
    each = "each constraint by itself" if found.asked.each_row else "all constraints together"
    return (
        f"a run ends with a test. P(the answer is confirmed and violates one) <= {rest}, for "
        f"{each}, whatever the run did; an answer that is not confirmed is not applied, agents "
        "apply their fallbacks instead."
    )


def feasibility_data(found: Feasibility) -> dict[str, Any]:
    """Return the margins as plain data."""
    return {
        "probability": found.asked.probability,
        "each_row": found.asked.each_row,
        "margins": [
            {
                "name": m.name,
                "kind": m.kind,
                "tested": m.tested,
                "moved": m.moved,
                "percent_of_scale": 100.0 * _share(m),
            }
            for m in found.margins
        ],
        "predicted_cost": None if found.cost is None else found.cost.more,
        "optimum": None if found.cost is None else found.cost.optimum,
    }


def _margin(margin: Margin) -> str:
    size = f"{up(margin.moved, 3)} ({_percent(margin)} of its size)"
    if margin.kind == "equality":
        return f"{margin.name}: kept within a band of +-{size}: no equality is exact under noise"
    return f"{margin.name}: aimed at with a margin of {size}, of which {up(margin.tested, 3)} noise"


def _share(margin: Margin) -> float:
    return margin.moved / margin.scale if margin.scale > 0.0 else 0.0


def _percent(margin: Margin) -> str:
    return f"{up(100.0 * _share(margin), 3)}%"


def _cost(found: Feasibility) -> str:
    cost = found.cost
    if cost is None:
        return "What they cost is not known without objectives: each unit of margin its price."
    size = abs(cost.optimum)
    share = f", {up(100.0 * cost.more / size, 3)}% of the optimum" if size > 0.0 else ""
    return (
        f"Predicted cost: {up(cost.more, 3)} more than the optimum of "
        f"{down(cost.optimum, 6)}{share}."
    )
