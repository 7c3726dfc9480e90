"""The constants of Theorems 2 and 3: as somebody states them, or certified over the original X."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sottovoce.arguments import entries, real
from sottovoce.certificate.certificate import TOLERANCE
from sottovoce.certificate.forms import exact
from sottovoce.certificate.supremum import Supremum, matrix_supremum
from sottovoce.errors import CertificateError
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import exactly
from sottovoce.problem.problem import CloudView


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """``K_g`` and ``K_g'^i`` to use in place of the certified ones, e.g. the published ones."""

    k_g: float
    k_prime: tuple[float, ...]

    def __post_init__(self) -> None:
        real("k_g", self.k_g, "positive and finite", lambda k: 0 < k < math.inf)
        for k in entries("k_prime", self.k_prime, "a list of numbers, one per agent"):
            real("k_prime", k, "finite and not negative", lambda k: 0 <= k < math.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CertifiedConstants:
    """What Theorems 2 and 3 multiply by ``kappa(delta, epsilon) B`` to get a sigma.

    Attributes:
        k_g: ``K_g = sup |dg/dx|_2``, the spectral norm.
        k_prime: ``K_g'^i = sup |d2g/dx_i2|_2`` for each agent i. The theorem takes it for the
            Lipschitz constant of dg/dx_i, which it is only if no constraint couples agents.
        column: ``sup |dg/dx_i|_2`` for each agent i: what one agent alone can move g by, which is
            all that adjacency lets happen.
    """

    k_g: Supremum
    k_prime: tuple[Supremum, ...]
    column: tuple[Supremum, ...]

    @property
    def column_sensitivity(self) -> float:
        """The largest column, ``max_i sup |dg/dx_i|_2``."""
        return max(bound.upper for bound in self.column)

    def upper(self) -> Constants:
        """The upper bounds, as a plan takes them."""
        return Constants(k_g=self.k_g.upper, k_prime=tuple(bound.upper for bound in self.k_prime))


@exactly()
def certified_constants(cloud: CloudView) -> CertifiedConstants | None:
    """Certify ``K_g``, ``K_g'^i`` and the column sensitivities over the original X.

    None if there is a fleet, which the paper does not know, or if they have no finite bound.
    """
    if any(family.sums for family in cloud.constraints):
        return None
    g = [exact(row) for family in cloud.constraints for row in family.named]
    box = {
        s: (float(low), float(high))
        for group in cloud.groups
        for s, low, high in zip(group.symbols, group.lower[0], group.upper[0], strict=True)
    }

    blocks = [[[derivative(row, s) for s in group.symbols] for row in g] for group in cloud.groups]
    curvatures = [
        [[derivative(d, s) for s in group.symbols] for row in block for d in row]
        for group, block in zip(cloud.groups, blocks, strict=True)
    ]
    whole = [[derivative(row, s) for s in box] for row in g]
    try:
        k_g, *rest = [
            matrix_supremum(matrix, box, tolerance=TOLERANCE)
            for matrix in (whole, *curvatures, *blocks)
        ]
    except CertificateError:
        return None
    return CertifiedConstants(
        k_g=k_g, k_prime=tuple(rest[: cloud.agents]), column=tuple(rest[cloud.agents :])
    )
