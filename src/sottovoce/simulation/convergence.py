"""The convergence figure: errors over the rounds, with the ensemble's band."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from sottovoce.arguments import path_of
from sottovoce.errors import InputError
from sottovoce.problem.agents import Array
from sottovoce.simulation.result import Result

_BAND = (5.0, 95.0)
_COLOURS = ("#1f5a8c", "#c2571a")


def figure(result: Result) -> Figure:
    """Return the median of all runs and the band from 5 to 95% against the rounds, log-log.

    Shows ``|x(k) - x_hat|`` and ``|lambda(k) - lambda_hat|``, or, where the saddle point is not
    known, the largest constraint violation and the residual of the optimality conditions.
    """
    drawn = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = drawn.subplots()
    for (label, values), colour in zip(_curves(result), _COLOURS, strict=True):
        _draw(axes, result.trace.k, values, label, colour)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rounds $k$")
    axes.set_ylabel("distance")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(frameon=False)
    axes.set_title(_title(result), fontsize="medium")
    return drawn


def draw(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure to an image file of any kind that matplotlib knows."""
    target = path_of("path", path)
    try:
        figure.savefig(target, dpi=160)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot draw to {target}: {error}") from error


def _curves(result: Result) -> list[tuple[str, Array]]:
    trace = result.trace
    if result.saddle_x is not None:
        return [
            (r"$\|x(k) - \hat x\|$", trace.error_x),
            (r"$\|\lambda(k) - \hat\lambda\|$", trace.error_price),
        ]
    return [("largest violation", trace.violation), ("optimality residual", trace.residual)]


def _draw(axes: Any, k: Any, values: Array, label: str, colour: str) -> None:
    # Failed runs stay out of the picture; a logarithm has no room for round 0 and exact zeros.
    shown = k > 0
    runs = values[np.isfinite(values).all(axis=1)][:, shown]
    if not runs.size:
        return
    low, middle, high = np.percentile(runs, [_BAND[0], 50.0, _BAND[1]], axis=0)
    positive = middle > 0
    axes.plot(k[shown][positive], middle[positive], color=colour, label=label, linewidth=1.3)
    if runs.shape[0] > 1:
        floor = np.maximum(low, np.finfo(float).tiny)
        axes.fill_between(
            k[shown][positive],
            floor[positive],
            high[positive],
            color=colour,
            alpha=0.18,
            linewidth=0,
        )


def _title(result: Result) -> str:
    runs = "1 run" if result.runs == 1 else f"{result.runs} runs, median and 5-95% band"
    noise = "no noise" if result.noise.startswith("none") else "simulated noise"
    return f"{runs}, {noise}" + (" (interrupted)" if result.interrupted else "")
