"""What commands say before a run whose answer is expected to be worth nothing."""

from __future__ import annotations

from collections.abc import Callable

from sottovoce.certificate.assumptions import SADDLE_LIMIT
from sottovoce.certificate.optimum import known_saddle
from sottovoce.cli.console import errors
from sottovoce.errors import PrivacyError
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.problem import Problem
from sottovoce.study.prediction import Prediction, predict, predict_publicly, response

_FEASIBLE = 0.95
_REMEDY = (
    "more agents, a larger epsilon, a smaller radius or another thing to hide would help: "
    "sottovoce advise says how much"
)


def foresee(problem: Problem, plan: NoisePlan, rounds: int) -> Prediction:
    """Return what to expect; of problems too large for a saddle point what is public tells."""
    saddle = None if plan.method == "paper" else known_saddle(problem, most=SADDLE_LIMIT)
    if saddle is None:
        return predict_publicly(plan, rounds)
    return predict(response(problem, saddle), plan, rounds, feasible=_FEASIBLE)


def warn_if_useless(
    told: Prediction, *, strict: bool, say: Callable[[str], None] | None = None
) -> None:
    """Say loudly that an answer will be useless, or refuse it.

    Raises:
        PrivacyError: it will be, and ``strict`` asks for a refusal.
    """
    if not told.useless:
        return
    text = f"after {told.rounds:,} rounds {told.useless}: {_REMEDY}"
    if strict:
        raise PrivacyError(f"an answer must be worth something, got a plan for which {text}")
    if say is not None:
        say(text)
        return
    errors.print("[bold red]WARNING: THE ANSWER WILL BE USELESS:[/] ", end="")
    errors.print(text, markup=False, soft_wrap=True)
