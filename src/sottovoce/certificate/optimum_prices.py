"""The prices of the sums at the saddle point, from the multipliers of the stated constraints."""

from __future__ import annotations

import numpy as np

from sottovoce.certificate.optimum import ReferenceOptimum
from sottovoce.formula.derive import derivative
from sottovoce.formula.tape import tape
from sottovoce.problem.agents import Array
from sottovoce.problem.numeric import Numeric, Rows
from sottovoce.problem.problem import Problem
from sottovoce.problem.sums import Region


def saddle_prices(problem: Problem, saddle: ReferenceOptimum) -> Array:
    """Return lambda_hat, shape (p,): ``sum_o lambda_o dh_o/dx = sum_j mu_j dg_j/dx`` at x_hat.

    For a constraint that is one sum as stated it is the multiplier; for a region of several sums
    it is ``c dphi/du`` with c such that both sides agree.
    """
    sums = problem.cloud.sums
    prices = np.zeros(sums.count)
    mixing: list[tuple[int, int]] = []
    row = 0
    for family, origin in zip(problem.constraints, sums.origins, strict=True):
        if origin.as_stated:
            prices[origin.first : origin.first + family.rows] = saddle.mu[row : row + family.rows]
        else:
            mixing += [(row + r, origin.first + r) for r in range(family.rows)]
        row += family.rows
    if not mixing:
        return prices
    regions = {region.stated: region for region in sums.regions}
    stated = Numeric(problem).jacobian(saddle.x)
    coupling = Rows(problem, sums.families)
    values, slopes = coupling.values(saddle.x), coupling.jacobian(saddle.x)
    for row, one in mixing:
        weights = np.zeros(sums.count)
        weights[one] = 1.0
        if row in regions:
            region = regions[row]
            weights[list(region.rows)] = _gradient(region, values[list(region.rows)])
        pulled = slopes.pullback(weights)
        size = float(pulled @ pulled)
        if size > 0.0:
            force = stated.pullback(np.eye(1, stated.shape[0], row)[0])
            prices += saddle.mu[row] * float(force @ pulled) / size * weights
    return prices


def _gradient(region: Region, u: Array) -> Array:
    slopes = tape([derivative(region.phi, s) for s in region.symbols], region.symbols)
    return np.array(slopes(*u.tolist()), dtype=np.float64)
