"""``sottovoce check``, ``plan`` and ``advise``: what a problem allows before anything is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.console import console, errors, show_result, warn_if_useless
from sottovoce.cli.options import (
    Cluster,
    Json,
    Method,
    ProblemName,
    Rounds,
    RunOptions,
    Strict,
    load,
    numbers,
    on_cluster,
    one_number,
    with_options,
)
from sottovoce.progress import shown


def check_command(
    problem: ProblemName,
    original: Annotated[
        bool, typer.Option("--original", help="keep the original boxes, do not tighten them")
    ] = False,
    json: Json = False,
) -> None:
    """Certify a problem: its assumptions, domain, sums and sensitivities.

    Where constraints are to be kept, it also lists agents whose public fallback, the point nearest
    0, may violate one beside answers of others.

    Exit code 1 if an assumption of the paper's Theorem 1 fails.

    Example: sottovoce check examples/paper --json
    """
    with shown(f"reading {problem}") as tell:
        from sottovoce.certificate.certificate import certify
        from sottovoce.cli.reports import (
            certificate_data,
            certificate_tables,
            fallback_words,
            unsafe_defaults,
        )

        stated = load(problem)
        certificate = certify(stated, tighten=not original, progress=tell)
        hard = any(family.hard for family in stated.constraints)
        unsafe = unsafe_defaults(certificate) if hard or "feasible" in stated.privacy else []
    data = certificate_data(certificate) | {"unsafe_fallbacks": unsafe}
    show_result(data, *certificate_tables(certificate), json=json)
    if unsafe and not json:
        console.print(fallback_words(unsafe))
    if not certificate.holds:
        raise typer.Exit(1)


@with_options
def plan_command(
    problem: ProblemName,
    promise: RunOptions,
    rounds: Rounds = None,
    method: Method = "joint",
    allow_undernoised: Annotated[
        bool, typer.Option(help="with --method paper: plan even where the promise breaks")
    ] = False,
    split: Annotated[
        bool,
        typer.Option("--split", help="a cloud and a helper that do not collude each add the noise"),
    ] = False,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Choose the noise of every released number so that every agent's promise is kept.

    What is not given is taken from the privacy table of problem.toml.

    Example: sottovoce plan examples/paper --epsilon 'ln(3)' --delta 0.05 --radius 1
    """
    with shown(f"reading {problem}") as tell:
        from sottovoce.certificate.certificate import certify
        from sottovoce.cli.reports import plan_data
        from sottovoce.study.prediction import expect

        stated = load(problem)
        plan = promise.plan(
            stated,
            certify(stated, progress=tell),
            rounds=rounds,
            method=method,
            allow_undernoised=allow_undernoised,
            split=split,
            progress=tell,
        )
        tell("predicting what the answer will be worth")
        prediction = expect(stated, plan, plan.rounds)
    warn_if_useless(prediction, strict=strict)
    show_result(plan_data(plan), str(plan), json=json)


def advise_command(
    problem: ProblemName,
    epsilon: Annotated[str, typer.Option(help="values of epsilon")] = "0.1,0.3,1,3",
    delta: Annotated[str | None, typer.Option(help="failure probability in (0, 1)")] = None,
    radius: Annotated[str | None, typer.Option(help="b, how much is hidden")] = None,
    hide: Annotated[
        str | None,
        typer.Option(help="trajectory, offset or everything, or some: offset,everything"),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="rounds, if not what suits each")] = None,
    accuracy: Annotated[float, typer.Option(help="the error that is good enough")] = 0.01,
    feasible: Annotated[
        float, typer.Option(help="the probability with which constraints shall be kept")
    ] = 0.95,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="measure in 64 short simulated runs as well")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="an image file for the figure")] = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Show what each promise costs, and the one to write into problem.toml.

    For what is hidden (all three kinds unless --hide names one) and every epsilon: the noise in
    percent of each constraint's scale, the probability of a violation, what keeping all constraints
    costs, errors, rounds, and the fleet for which it all costs less than 1%.

    Example: sottovoce advise gallery:chargers --plot advice.png
    """
    with on_cluster(cluster) as executor, shown(f"reading {problem}") as tell:
        from sottovoce.study.advise import advise

        advice = advise(
            load(problem),
            hide=None if hide is None else hide.split(","),
            radius=None if radius is None else one_number(radius, "radius"),
            epsilons=numbers(epsilon, "epsilon"),
            delta=None if delta is None else one_number(delta, "delta"),
            rounds=rounds,
            accuracy=accuracy,
            feasible=feasible,
            simulate=simulate,
            progress=tell,
            executor=executor,
        )
    line = ("For the top of problem.toml:\n", advice.line) if advice.line else ()
    texts = (advice.table(), advice.constraints(), f"\n{advice.words}", *line)
    show_result(advice.data(), *texts, json=json)
    if plot is not None:
        advice.plot(plot)
        errors.print(f"figure: {plot}", soft_wrap=True)
