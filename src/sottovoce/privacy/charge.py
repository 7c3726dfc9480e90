"""What a run costs an agent, and what an account that protects another distance is charged for it.

An account protects one thing, an adjacency with a radius R, and its total holds for every pair of
lifetimes of the agent that are adjacent in that sense within every run. A run promises mu for pairs
within its own radius b, of which a part a, the allowance for rounding, does not shrink with the
distance (a = mu if it is not known). The account is charged

    charge(R) = (R/b) mu + max(0, 1 - R/b) a

or, where the run hides everything, mu; a run that promises nothing about some of the pairs is
refused. docs/explanation/ledger.md has the proof and the table of adjacencies. Everything is
computed in exact fractions and rounded up to a multiple of 2^-BITS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, get_args

from sottovoce.errors import BudgetError, InputError
from sottovoce.privacy.adjacency import Kind, kind_of, require_radius
from sottovoce.privacy.gaussian import LARGEST

BITS: Final = 100
"""Binary places of mu in exact sums of squares; every double above 1e-14 has no more. mu counts in
units of 2^-BITS, its square in units of 4^-BITS; charges are rounded up, what is left down."""

_KINDS: Final = get_args(Kind)  # the pairs of each include those of the ones before it


@dataclass(frozen=True, slots=True)
class Protected:
    """Which two behaviours of an agent are adjacent within one run."""

    hide: Kind
    radius: float | None = None  # None for "everything", and only there

    def __post_init__(self) -> None:
        kind = kind_of(self.hide)
        require_radius(kind, has_radius=self.radius is not None)
        if self.radius is None:
            return
        if not 1 / LARGEST <= self.radius <= LARGEST:  # refuses NaN too
            raise InputError(
                f"radius must lie in [{1 / LARGEST:g}, {LARGEST:g}], got radius={self.radius!r}"
            )
        object.__setattr__(self, "radius", float(self.radius))

    def __str__(self) -> str:
        return self.hide if self.radius is None else f"{self.hide} within {self.radius!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What one run costs one agent: mu of the whole run, for the pairs that it protects."""

    agent: str  # its label
    protected: Protected  # the pairs of behaviours
    mu: float
    allowance: float  # the part of mu that a smaller distance does not shrink; mu if unknown

    def __post_init__(self) -> None:
        if not isinstance(self.agent, str) or not self.agent:
            raise InputError(f"an agent's name must be a non-empty string, got {self.agent!r}")
        if not 0 <= self.mu <= LARGEST:  # refuses NaN too
            raise InputError(
                f"mu of agent {self.agent!r} must lie in [0, {LARGEST:g}], got mu={self.mu!r}"
            )
        if not 0 <= self.allowance <= self.mu:
            raise InputError(
                f"allowance of agent {self.agent!r} must lie in [0, mu], got "
                f"allowance={self.allowance!r} with mu={self.mu!r}"
            )


def amount(charge: Charge, account: Protected) -> int:
    """Return what an account is charged, in units of 2^-BITS, rounded up.

    Refuses a run that promises nothing about some of the pairs that the account protects.
    """
    run = charge.protected
    covered_by = _KINDS[_KINDS.index(account.hide) :]
    if run.hide not in covered_by:
        raise BudgetError(
            f"agent {charge.agent!r} keeps an account for {account}, and a run for {run} bounds "
            f"nothing there: plan the run that hides {' or '.join(map(repr, covered_by))}, or "
            f"grant the budget anew with hide={run.hide!r}"
        )
    if run.radius is None or account.radius is None:
        return _units(charge.mu, 0.0, 1.0, 1.0)
    return _units(charge.mu, charge.allowance, account.radius, run.radius)


@lru_cache(maxsize=1024)  # the agents of a fleet mostly cost the same
def _units(mu: float, allowance: float, radius: float, planned: float) -> int:
    ratio = Fraction(radius) / Fraction(planned)
    exact = ratio * Fraction(mu) + max(Fraction(0), 1 - ratio) * Fraction(allowance)
    return units_up(exact)


def units_up(mu: Fraction) -> int:
    """Return mu in units of 2^-BITS."""
    return math.ceil(mu * (1 << BITS))


def square_down(mu: float) -> int:
    """Return mu^2 in units of 4^-BITS, mu being rounded down to a multiple of 2^-BITS."""
    return math.floor(math.ldexp(mu, BITS)) ** 2


def root_up(total: int) -> float:
    """Return the least double whose square is at least total."""
    root = math.isqrt(total)
    root += root * root < total
    value = math.ldexp(root, -BITS)
    return value if math.ldexp(value, BITS) >= root else math.nextafter(value, math.inf)


def root_down(total: int) -> float:
    """Return a double whose square is at most total, less than one ulp below the root."""
    root = math.isqrt(total)
    value = math.ldexp(root, -BITS)
    return value if math.ldexp(value, BITS) <= root else math.nextafter(value, 0.0)


def ratio_up(mu: float, radius: float) -> float:
    """Return the least double that is at least mu / radius."""
    value = mu / radius
    exact = Fraction(mu) / Fraction(radius)
    return value if Fraction(value) >= exact else math.nextafter(value, math.inf)
