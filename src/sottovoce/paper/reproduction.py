"""The paper, number by number: published and recomputed figures, as tables, data and a plot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.certificate.certificate import Certificate, certify
from sottovoce.certificate.optimum import ReferenceOptimum, reference_optimum
from sottovoce.paper.paper_plan import Constants, certified_constants, paper_plan
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.gaussian import exact_sigma, kappa
from sottovoce.privacy.limit import accuracy_limit
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.gallery import paper as paper_problem
from sottovoce.problem.groups import Array
from sottovoce.progress import Progress
from sottovoce.simulation.result import Result
from sottovoce.simulation.simulate import simulate
from sottovoce.simulation.summary import draw
from sottovoce.tables import PlainTable

EPSILON, DELTA, RADIUS = math.log(3.0), 0.05, 1.0
STEPS = (200_000, 500_000)  # after which the paper states errors
QUANTILES = (0.05, 0.5, 0.95)  # of errors over the runs

PUBLISHED: Mapping[str, Any] = {
    "kappa": 1.7565,
    "k_g": 472.567,
    "k_prime": (0.0, 0.0, 2.0, 0.0, 2.0, 100.08, 100.08),
    "sigma_sq": (0.0, 0.0, 12.3406, 0.0, 12.3406, 30900.7580, 30900.7580),
    "sigma_g_sq": 688971.6017,
    "x_hat": (7.591, -4.769, 0.178, -0.822, -2.863, 1.790, 1.340),
    "mu_hat": (1.8139, 0.0, 0.6409, 2.7314),
    "errors": {200_000: {"x": 0.4839, "mu": 0.5459}, 500_000: {"x": 0.2612, "mu": 0.2123}},
}
"""Everything the paper prints; the only numbers here that are not computed."""

_FIGURES = (
    ("kappa(0.05, ln 3)", "kappa", 4, "K_delta was rounded"),
    ("K_g", "k_g", 3, "too small for Theorem 3"),
    ("K_g'^", "k_prime", 2, "arithmetic slip"),
    ("sigma_sq_", "sigma_sq", 4, "follows from kappa and K_g'"),
    ("sigma_g_sq", "sigma_g_sq", 4, "follows from kappa and K_g"),
    ("x-hat_", "x_hat", 3, "stopped early"),
    ("mu-hat_", "mu_hat", 4, "stopped early"),
)
"""Name, key, printed digits, and why the recomputed figure differs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reproduction:
    """The paper's figures, recomputed.

    Attributes:
        recomputed: the same keys as ``PUBLISHED``; errors are medians over the ensemble, against
            the true saddle point.
        limit_x: asymptotic error of x (root mean square) of 500,000 releases with the published
            noise; ``limit_mu`` is that of mu.
        ensemble: per step the errors of every run against the true and the published saddle point.
    """

    recomputed: Mapping[str, Any]
    exact_sigma: float  # the least per unit of sensitivity, in place of kappa
    column_sensitivity_g: float  # what one agent alone can move g by, in place of K_g
    limit_x: float
    limit_mu: float
    ensemble: Mapping[int, Mapping[str, Array]]
    result: Result

    def data(self) -> dict[str, Any]:
        """All figures for JSON; of errors the quantiles."""
        errors = {
            str(step): {
                name: {str(q): float(np.quantile(values, q)) for q in QUANTILES}
                for name, values in each.items()
            }
            for step, each in self.ensemble.items()
        }
        return {
            "published": PUBLISHED,
            "recomputed": self.recomputed,
            "exact_sigma": self.exact_sigma,
            "column_sensitivity_g": self.column_sensitivity_g,
            "limit": {"x": self.limit_x, "mu": self.limit_mu, "rounds": STEPS[-1]},
            "ensemble": {"runs": self.result.runs, "seed": self.result.seed, **errors},
        }

    def tables(self) -> tuple[PlainTable, PlainTable, str]:
        """All comparisons as tables for people, and what they say of the paper."""
        words = (
            f"Exact Gaussian sigma per unit of sensitivity: {self.exact_sigma:.10f} "
            f"(kappa wastes {self.recomputed['kappa'] / self.exact_sigma - 1:.0%}).\n"
            f"One agent alone moves g by at most {self.column_sensitivity_g:.6f}, not by K_g.\n"
            f"Asymptotic error of {STEPS[-1]:,} rounds with the published noise, root mean "
            f"square: {self.limit_x:.2f} in x and {self.limit_mu:.2f} in mu. The published "
            "errors lie far below it."
        )
        return _comparison_table(self.recomputed), _error_table(self.ensemble), words

    def plot(self, path: Path) -> None:
        """Draw both error norms against k, one run and the ensemble's band."""
        import matplotlib as mpl
        from matplotlib.figure import Figure

        trace, published = self.result.trace, PUBLISHED["errors"]
        with mpl.rc_context({"font.size": 11}):
            figure = Figure(figsize=(9.0, 5.2), layout="constrained")
            axes = figure.subplots()
            for values, colour, name, symbol in (
                (trace.error_x, "tab:blue", "x", "x"),
                (trace.error_price, "tab:red", "mu", r"\mu"),
            ):
                low, middle, high = np.quantile(values, QUANTILES, axis=0)
                label = rf"$\|{symbol}(k) - \hat{{{symbol}}}\|$"
                axes.fill_between(trace.k, low, high, color=colour, alpha=0.18, linewidth=0,
                                  label=f"{label}, 5% to 95% of {len(values)} runs")  # fmt: skip
                axes.plot(trace.k, middle, color=colour, linewidth=1.0, linestyle="--")
                axes.plot(
                    trace.k, values[0], color=colour, linewidth=1.2, label=f"{label}, one run"
                )
                axes.plot(list(published), [printed[name] for printed in published.values()],
                          marker="*", markersize=13, color=colour, markeredgecolor="black",
                          linestyle="none", label=f"published, {name}")  # fmt: skip
            axes.set(
                xscale="log", yscale="log", xlim=(1, 1.2 * trace.k[-1]), xlabel="round k",
                ylabel="distance to the true saddle point",
                title="Algorithm 1 with the published noise",
            )  # fmt: skip
            axes.grid(which="both", alpha=0.25)
            axes.legend(fontsize=9, loc="lower left")
            draw(figure, path)


def reproduce(
    *, runs: int = 32, seed: int = 0, progress: bool | Progress | None = None
) -> Reproduction:
    """Recompute every published figure and simulate ``runs`` times with the published noise.

    Constants come from the certificate over the original ``X = [-10, 10]^7``, the optimum from
    ``reference_optimum``, errors from Algorithm 1 started at ``x = 0``, ``mu = 0``.
    """
    problem = paper_problem()
    certificate = certify(problem, progress=progress)
    saddle = reference_optimum(problem)
    noise = published_noise(certificate)
    least = accuracy_limit(problem, noise, STEPS[-1], saddle=saddle)
    results = {
        step: simulate(
            problem,
            noise,
            rounds=step,
            runs=runs,
            seed=seed,
            algorithm=Tikhonov(gamma_bar=5e-4, alpha_bar=0.2, c1=1 / 3, c2=1 / 4),
            saddle=(saddle.x, saddle.mu),
            progress=progress,
        )
        for step in STEPS
    }
    ensemble = {step: _measure_errors(result, saddle) for step, result in results.items()}
    constants, column = certified_constants(problem.cloud)
    return Reproduction(
        recomputed=_recompute(constants, saddle, ensemble),
        exact_sigma=exact_sigma(EPSILON, DELTA),
        column_sensitivity_g=column,
        limit_x=least.x,
        limit_mu=least.price,
        ensemble=ensemble,
        result=results[STEPS[-1]],
    )


def published_noise(certificate: Certificate) -> NoisePlan:
    """Return Algorithm 1's noise with the published variances, as Table II and w_g print them."""
    constants = Constants(k_g=PUBLISHED["k_g"], k_prime=PUBLISHED["k_prime"])
    certified = paper_plan(
        certificate,
        epsilon=EPSILON,
        delta=DELTA,
        hide=Trajectory(radius=RADIUS),
        constants=constants,
    )
    gradients = np.sqrt(np.asarray(PUBLISHED["sigma_sq"]))
    values = math.sqrt(PUBLISHED["sigma_g_sq"])
    # The published kappa is rounded up, so these sigmas are no smaller than the plan's own and
    # its promise stands.
    sigmas = (values if o.column is None else float(gradients[o.column]) for o in certified.outputs)
    outputs = (replace(o, sigma=s) for o, s in zip(certified.outputs, sigmas, strict=True))
    return replace(certified, outputs=tuple(outputs))


def _measure_errors(result: Result, saddle: ReferenceOptimum) -> dict[str, Array]:
    x_hat, mu_hat = np.asarray(PUBLISHED["x_hat"]), np.asarray(PUBLISHED["mu_hat"])
    return {
        "x": np.linalg.norm(result.x - saddle.x, axis=1),
        "mu": np.linalg.norm(result.price - saddle.mu, axis=1),
        "x_published": np.linalg.norm(result.x - x_hat, axis=1),
        "mu_published": np.linalg.norm(result.price - mu_hat, axis=1),
    }


def _recompute(
    constants: Constants,
    saddle: ReferenceOptimum,
    ensemble: Mapping[int, Mapping[str, Array]],
) -> dict[str, Any]:
    factor = kappa(EPSILON, DELTA)
    return {
        "kappa": factor,
        "k_g": constants.k_g,
        "k_prime": list(constants.k_prime),
        "sigma_sq": [(factor * k * RADIUS) ** 2 for k in constants.k_prime],
        "sigma_g_sq": (factor * constants.k_g * RADIUS) ** 2,
        "x_hat": saddle.x,
        "mu_hat": saddle.mu,
        "errors": {
            step: {name: float(np.median(errors[name])) for name in ("x", "mu")}
            for step, errors in ensemble.items()
        },
    }


def _comparison_table(recomputed: Mapping[str, Any]) -> PlainTable:
    """Every published figure but the errors, beside the recomputed one."""
    rows = []
    for name, key, digits, cause in _FIGURES:
        several = not isinstance(PUBLISHED[key], float)
        pairs = zip(np.ravel(PUBLISHED[key]), np.ravel(recomputed[key]), strict=True)
        for i, (before, after) in enumerate(pairs):
            # An early stop shows most where the objective is flat.
            flat = ", and flat here" if key == "x_hat" and abs(after - before) > 0.01 else ""
            figure = f"{name}{i + 1}" if several else name
            verdict = _judge(before, after, digits, cause + flat)
            rows.append((figure, f"{before:.{digits}f}", f"{after:.{digits + 3}f}", verdict))
    return PlainTable(
        title="The paper, number by number",
        columns=("figure", "published", "recomputed", "verdict"),
        rows=tuple(rows),
    )


def _judge(published: float, recomputed: float, digits: int, cause: str) -> str:
    """Whether two figures agree to the printed digits, ``|difference| <= 10^-digits / 2``."""
    difference = recomputed - published
    if abs(difference) <= 0.5 * 10.0**-digits * (1.0 + 1e-9):
        return "agrees"
    if published == 0.0:
        return f"differs by {difference:.3g}: {cause}"
    return f"differs by {difference / published:+.2%}: {cause}"


def _error_table(ensemble: Mapping[int, Mapping[str, Array]]) -> PlainTable:
    """The errors of the simulation beside the published ones."""
    rows = []
    for step, errors in ensemble.items():
        for name, values in errors.items():
            which, _, against = name.partition("_")
            printed = PUBLISHED["errors"][step][which]
            quantiles = (f"{np.quantile(values, q):.4f}" for q in QUANTILES)
            near = f"{np.sum(values <= printed)} of {len(values)}"
            distance = f"{step:,} steps: {which}, {against or 'true'}"
            rows.append((distance, f"{printed:.4f}", *quantiles, near))
    return PlainTable(
        title=f"Errors of Algorithm 1 with the published noise, {len(values)} seeds",
        columns=("distance to", "published", *(f"{q:.0%}" for q in QUANTILES), "as near"),
        rows=tuple(rows),
    )
