"""``sottovoce compare``: algorithms and plans against each other and the statistical limit."""

from __future__ import annotations

import json as json_text
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.cluster import cluster as on_cluster
from sottovoce.cli.console import console, errors, print_json
from sottovoce.cli.options import Cluster, Delta, Epsilon, HideOption, Json, Radius, make_folder
from sottovoce.errors import InputError
from sottovoce.progress import shown

if TYPE_CHECKING:
    from sottovoce.algorithm.algorithm import Algorithm
    from sottovoce.problem.problem import Problem
    from sottovoce.study.compare import Compared


def compare(
    folder: Annotated[Path, typer.Argument(help="folder with problem.toml and agents/")],
    rounds: Annotated[str, typer.Option(help="numbers of rounds")] = "500,2000,10000",
    runs: Annotated[int, typer.Option(min=1, help="independent runs of each")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="run r depends on (seed, r) alone")] = 0,
    epsilon: Epsilon = None,
    delta: Delta = None,
    radius: Radius = None,
    hide: HideOption = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for compare.png and compare.json")
    ] = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Hold algorithms and plans against each other and against the statistical limit.

    Ctrl-C ends early with what has been computed. With --out more numbers of rounds are run, for
    the curves of the figure.

    Example: sottovoce compare examples/paper --rounds 500,2000,10000 --out out
    """
    make_folder(out)
    with on_cluster(cluster) as executor, shown(f"reading {folder}") as tell:
        from sottovoce.certificate.certificate import certify
        from sottovoce.cli.request import make_plan
        from sottovoce.problem.files.load import load_problem
        from sottovoce.report.compare import compare_data, compare_table
        from sottovoce.study.compare import compare as study
        from sottovoce.study.compare import curve_rounds

        asked = _rounds(rounds)
        problem = load_problem(folder)
        certificate = certify(problem, progress=tell)
        planner = partial(
            make_plan, problem, certificate, epsilon=epsilon, delta=delta, radius=radius,
            hide=hide, margins=False, progress=tell,
        )  # fmt: skip
        found = study(
            problem,
            certificate,
            planner,
            rounds=asked if out is None else curve_rounds(asked),
            runs=runs,
            seed=seed,
            algorithms=_algorithms(problem),
            progress=tell,
            executor=executor,
        )
    data = compare_data(found, asked)
    if json:
        print_json(data)
    else:
        console.print(compare_table(found, asked))
    if out is not None:
        _write(found, data, out)


def _rounds(text: str) -> list[int]:
    from sottovoce.cli.request import numbers

    wanted = "rounds must be whole numbers of at least 1, separated by commas, "
    try:
        counts = numbers(text, "rounds")
    except InputError as error:
        raise InputError(f"{wanted}got --rounds {text!r}") from error
    if not all(count >= 1 and count == int(count) for count in counts):
        raise InputError(f"{wanted}got --rounds {text!r}")
    return sorted({int(count) for count in counts})


def _algorithms(problem: Problem) -> dict[str, Algorithm]:
    """The default and the paper's, the latter with the steps of the file's [schedule] table."""
    from sottovoce.cli.request import algorithm_for

    known = [algorithm_for(problem, name) for name in ("dual-averaging", "tikhonov")]
    return {type(algorithm).__name__: algorithm for algorithm in known}


def _write(found: Compared, data: dict[str, object], out: Path) -> None:
    from sottovoce.report.compare import compare_figure

    text = json_text.dumps(data, indent=2, allow_nan=False)
    (out / "compare.json").write_text(text + "\n", encoding="utf-8")
    errors.print(f"data: {out / 'compare.json'}", soft_wrap=True)
    if found.rows:
        compare_figure(found, out / "compare.png")
        errors.print(f"figure: {out / 'compare.png'}", soft_wrap=True)
