"""Who adds the noise, hence who must be trusted: one cloud, or two halves that do not collude.

One cloud sees every contribution and adds noise of sigma. Of a split cloud neither half sees one:
contributions arrive masked at the cloud, the helper knows the masks, and *each* adds noise of the
full sigma, so that what is released has the standard deviation sqrt(2) sigma. Whoever knows one
half's noise still faces the other's. The sum of two discrete Gaussians on the same grid is one of
sqrt(2) times the scale,

    P(X1 + X2 = x)  is proportional to  exp(-x^2 / 4N^2) sum_j exp(-(j - x/2)^2 / N^2),

whose last factor is the same for every x within a factor of 1 +- 3 exp(-pi^2 N^2) by Poisson
summation; N = 2^26. So outsiders, who know neither, face a Gaussian mechanism with mu_l / sqrt(2).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, Final, Literal, TypeAlias, final

from sottovoce.errors import InputError

TrustKind: TypeAlias = Literal["one", "split"]
ViewName: TypeAlias = Literal["cloud", "helper", "outside"]

_UP = 1.0 + 2.0**-50  # what is promised must not be less than what holds
_LISTENER = "an eavesdropper of all messages"
_OUTSIDE = f"every other agent, all of them together, and {_LISTENER} that the cloud sends"
_HELPED = f"together with every other agent and {_LISTENER}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """An attacker: a party with all who help it, and its Gaussian-DP mu as a share of ``mu_l``."""

    name: ViewName
    coalition: str
    mu_factor: float


@final
@dataclass(frozen=True, slots=True)
class OneCloud:
    """A cloud that is trusted: it sees every contribution and adds noise of sigma."""

    kind: ClassVar[TrustKind] = "one"
    noise_sources: ClassVar[int] = 1
    views: ClassVar[tuple[View, ...]] = (View(name="outside", coalition=_OUTSIDE, mu_factor=1.0),)


@final
@dataclass(frozen=True, slots=True)
class SplitCloud:
    """A cloud and a helper, of which neither sees a contribution; each adds noise of sigma."""

    kind: ClassVar[TrustKind] = "split"
    noise_sources: ClassVar[int] = 2
    views: ClassVar[tuple[View, ...]] = (
        View(name="cloud", coalition=f"the cloud, {_HELPED}", mu_factor=1.0),
        View(name="helper", coalition=f"the helper, {_HELPED} that the cloud sends", mu_factor=1.0),
        View(name="outside", coalition=_OUTSIDE, mu_factor=sqrt(0.5) * _UP),
    )


Trust: TypeAlias = OneCloud | SplitCloud
ONE_CLOUD: Final = OneCloud()
TRUST_STATEMENTS: Final[dict[TrustKind, str]] = {
    "one": "the cloud is trusted, it sees what every agent sends",
    "split": "the operators of cloud and helper must not collude: neither sees a contribution by "
    "itself, both together see every one",
}
"""Who must be trusted, in words that go wherever a promise is printed."""


def trust_of(kind: object) -> Trust:
    """Return the trust of that name, or refuse it."""
    for trust in (ONE_CLOUD, SplitCloud()):
        if kind == trust.kind:
            return trust
    raise InputError(f"trust must be 'one' or 'split', got {kind!r:.60}")
