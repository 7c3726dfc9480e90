"""``sottovoce simulate`` and ``plot``: run a problem in one process, keep and draw the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sottovoce.cli.console import console, show_result, table_of, warn_if_useless
from sottovoce.cli.options import (
    AlgorithmName,
    Cluster,
    Json,
    ProblemName,
    RunOptions,
    Strict,
    algorithm_for,
    load,
    make_folder,
    on_cluster,
    run_rounds,
    with_options,
)
from sottovoce.progress import shown

if TYPE_CHECKING:
    from sottovoce.problem.agents import Array
    from sottovoce.simulation.result import Result

_QUANTILES = {"p5": 5, "median": 50, "p95": 95}
_QUANTITIES = {
    "error_x": "|x - x_hat|",
    "error_price": "|price - price_hat|",
    "violation": "largest violation",
    "residual": "optimality residual",
    "objective": "objective",
    "last_error_x": "|x - x_hat| of the last iterate",
    "last_error_price": "|price - price_hat| of the last iterate",
}
_IN_SUMMARY = ("violation", "objective")


@with_options
def simulate_command(
    problem: ProblemName,
    promise: RunOptions,
    rounds: Annotated[
        int | None, typer.Option(help="how many rounds; by default the file's, or else 2000")
    ] = None,
    runs: Annotated[int, typer.Option("--runs", help="how many independent runs")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="run r depends on (seed, r) alone")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="folder for result.npz and convergence.png")
    ] = None,
    algorithm: AlgorithmName = None,
    strict: Strict = False,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Simulate a problem with the noise that its privacy table or the options ask for.

    Without either there is no noise. Ctrl-C ends early with what has been computed. Noise comes
    from the seed: nothing is private.

    Example: sottovoce simulate examples/paper --rounds 20000 --runs 64 --out out
    """
    make_folder(out)
    doing = f"certifying and planning {problem}"
    with shown(doing, patience=0.0) as tell, on_cluster(cluster) as executor:
        from sottovoce.certificate.certificate import certify
        from sottovoce.simulation.simulate import simulate
        from sottovoce.study.prediction import expect

        stated = load(problem)
        count = run_rounds(stated, rounds)
        plan = None
        if stated.privacy or promise.given:
            certificate = certify(stated, progress=tell)
            plan = promise.plan(stated, certificate, rounds=count, progress=tell)
            warn_if_useless(expect(stated, plan, count), strict=strict)
        result = simulate(
            stated,
            plan,
            rounds=count,
            runs=runs,
            seed=seed,
            algorithm=algorithm_for(stated, algorithm),
            progress=tell,
            executor=executor,
        )
    files = _write(result, out)
    texts = (f"\n{result.summary()}\n", *(f"wrote {file}" for file in files))
    show_result(_data(result) | {"files": files}, _table(result), *texts, json=json)


def plot_command(
    result: Annotated[Path, typer.Argument(help="a result file, .npz")],
    out: Annotated[
        Path | None, typer.Option("--out", help="the image; beside the result if not given")
    ] = None,
) -> None:
    """Draw a result's errors over the rounds, with the ensemble's band.

    Example: sottovoce plot out/result.npz --out convergence.svg
    """
    from sottovoce.simulation.result import Result

    target = result.with_suffix(".png") if out is None else out
    Result.load(result).plot(target)
    console.print(f"wrote {target}", soft_wrap=True)


def _write(result: Result, out: Path | None) -> list[str]:
    if out is None:
        return []
    files = [out / "result.npz", out / "convergence.png"]
    result.save(files[0])
    result.plot(files[1])
    return [str(file) for file in files]


def _finals(result: Result) -> dict[str, Array | None]:
    """Quantiles over the runs of what was measured last; None where the saddle is not known."""
    import numpy as np

    good = result.failed == 0
    ends = {name: getattr(result.trace, name)[good, -1] for name in _QUANTITIES if good.any()}
    shares = list(_QUANTILES.values())
    return {
        name: np.percentile(values, shares) if np.isfinite(values).all() else None
        for name, values in ends.items()
    }


def _data(result: Result) -> dict[str, object]:
    finals = {
        name: None if values is None else dict(zip(_QUANTILES, values, strict=True))
        for name, values in _finals(result).items()
    }
    return {
        "runs": result.runs,
        "rounds": result.rounds,
        "requested": result.requested,
        "seed": result.seed,
        "interrupted": result.interrupted,
        "confirmed": None if result.confirmed is None else result.confirmed.tolist(),
        "failed": {str(r + 1): int(k) for r, k in enumerate(result.failed) if k > 0},
        "seconds": result.seconds,
        "algorithm": result.algorithm,
        "noise": result.noise,
        "final": finals,
        "constraints": _constraints(result),
        "promise": result.assessment().promise,
    }


def _constraints(result: Result) -> list[dict[str, object]]:
    """The violation of every constraint over the runs that did not fail, the worst of them."""
    from sottovoce.problem.evaluate import violation

    assessment, good = result.assessment(), result.failed == 0
    off = violation(assessment.rows[good], assessment.equality)
    return [
        {
            "name": name,
            "equality": bool(assessment.equality[j]),
            "scale": float(assessment.scale[j]),
            "largest_violation": float(off[:, j].max(initial=0.0)),
            "percent_of_scale": float(100 * off[:, j].max(initial=0.0) / assessment.scale[j]),
            "share_of_runs": float((off[:, j] > 0).mean()) if good.any() else None,
        }
        for j, name in enumerate(assessment.row_labels)
    ]


def _table(result: Result) -> Table:
    failed = int((result.failed > 0).sum())
    title = f"{result.rounds:,} rounds, {result.runs} run{'s' if result.runs > 1 else ''}, "
    title += f"{result.seconds:.2f} s"
    title += f", {failed} failed" if failed else ""
    if result.confirmed is not None:
        title += f", {int(result.confirmed.sum())} confirmed"
    title += f", interrupted before round {result.requested:,}" if result.interrupted else ""
    columns = ("after the last round", "5%", "median", "95%")
    table = table_of(title, *columns, title_justify="center")
    for name, values in _finals(result).items():
        if values is not None and name not in _IN_SUMMARY:
            table.add_row(_QUANTITIES[name], *(f"{v:.6g}" for v in values))
    return table
