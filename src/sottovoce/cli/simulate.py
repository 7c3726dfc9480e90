"""``sottovoce simulate``: run a problem in one process and keep the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sottovoce.cli.cloud import run_rounds
from sottovoce.cli.cluster import cluster as on_cluster
from sottovoce.cli.console import console, print_json
from sottovoce.cli.options import (
    AlgorithmName,
    Cluster,
    Delta,
    EachRow,
    Epsilon,
    Feasible,
    HideOption,
    Json,
    Radius,
    Strict,
    make_folder,
)
from sottovoce.progress import Progress, shown

if TYPE_CHECKING:
    from sottovoce.privacy.noise_plan import NoisePlan
    from sottovoce.problem.problem import Problem
    from sottovoce.simulation.result import Result

_QUANTILES = (5, 50, 95)
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


def simulate(
    folder: Annotated[Path, typer.Argument(help="folder with problem.toml and agents/")],
    rounds: Annotated[
        int | None, typer.Option(help="how many rounds; as the file says, or 2000 if nobody does")
    ] = None,
    runs: Annotated[int, typer.Option("--runs", help="how many independent runs")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="run r depends on (seed, r) alone")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="folder for result.npz and convergence.png")
    ] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    radius: Radius = None,
    hide: HideOption = None,
    feasible: Feasible = None,
    each_row: EachRow = False,
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
    asked: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "radius": radius, "hide": hide}
    asked |= {"feasible": feasible, "each_row": each_row}
    doing = f"certifying and planning {folder}"
    with shown(doing, patience=0.0) as tell, on_cluster(cluster) as executor:
        from sottovoce.cli.foresight import foresee, warn_if_useless
        from sottovoce.cli.request import algorithm_for
        from sottovoce.problem.files.load import load_problem
        from sottovoce.simulation.simulate import simulate as run_simulation

        problem = load_problem(folder)
        count = run_rounds(problem, rounds)
        made = _plan(problem, count, asked, tell)
        if made is not None:
            warn_if_useless(foresee(problem, made, count), strict=strict)
        result = run_simulation(
            problem,
            made,
            rounds=count,
            runs=runs,
            seed=seed,
            algorithm=algorithm_for(problem, algorithm),
            progress=tell,
            executor=executor,
        )
    files = _write(result, out)
    if json:
        print_json({**_summary(result), "files": files})
        return
    console.print(_table(result))
    console.print(f"\n{result.summary()}\n", markup=False, soft_wrap=True)
    for file in files:
        console.print(f"wrote {file}", soft_wrap=True)


def _plan(problem: Problem, rounds: int, asked: dict[str, Any], tell: Progress) -> NoisePlan | None:
    from sottovoce.certificate.certificate import certify
    from sottovoce.cli.request import make_plan

    if not problem.privacy and not any(asked.values()):
        return None
    certificate = certify(problem, progress=tell)
    return make_plan(problem, certificate, **asked, rounds=max(rounds, 1), progress=tell)


def _write(result: Result, out: Path | None) -> list[str]:
    if out is None:
        return []
    files = [out / "result.npz", out / "convergence.png"]
    result.save(files[0])
    result.plot(files[1])
    return [str(file) for file in files]


def _finals(result: Result) -> dict[str, Any]:
    """Quantiles over the runs of what was measured last; None where the saddle is not known."""
    import numpy as np

    ends = {name: getattr(result.trace, name)[:, -1] for name in _QUANTITIES}
    good = result.failed == 0
    return {
        name: np.percentile(values[good], _QUANTILES) if np.isfinite(values[good]).all() else None
        for name, values in ends.items()
        if good.any()
    }


def _summary(result: Result) -> dict[str, Any]:
    finals = {
        name: None if values is None else dict(zip(("p5", "median", "p95"), values, strict=True))
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


def _constraints(result: Result) -> list[dict[str, Any]]:
    """The violation of every constraint over the runs that did not fail, the worst of them."""
    from sottovoce.problem.evaluate import violation

    found, good = result.assessment(), result.failed == 0
    off = violation(found.rows[good], found.equality)
    return [
        {
            "name": name,
            "equality": bool(found.equality[j]),
            "scale": float(found.scale[j]),
            "largest_violation": float(off[:, j].max(initial=0.0)),
            "percent_of_scale": float(100 * off[:, j].max(initial=0.0) / found.scale[j]),
            "share_of_runs": float((off[:, j] > 0).mean()) if good.any() else None,
        }
        for j, name in enumerate(found.row_labels)
    ]


def _table(result: Result) -> Table:
    failed = int((result.failed > 0).sum())
    title = f"{result.rounds:,} rounds, {result.runs} run{'s' if result.runs > 1 else ''}, "
    title += f"{result.seconds:.2f} s"
    title += f", {failed} failed" if failed else ""
    if result.confirmed is not None:
        title += f", {int(result.confirmed.sum())} confirmed"
    title += f", interrupted before round {result.requested:,}" if result.interrupted else ""
    table = Table(title=title)
    table.add_column("after the last round")
    for name in ("5%", "median", "95%"):
        table.add_column(name, justify="right")
    for name, values in _finals(result).items():
        if values is not None and name not in _IN_SUMMARY:
            table.add_row(_QUANTITIES[name], *(f"{v:.6g}" for v in values))
    return table
