"""Fallbacks that are public, and may violate a constraint beside answers of others."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape

from sottovoce.certificate.certificate import Certificate
from sottovoce.privacy.feasibility import nearest_zero, unsafe_fallbacks

_SHOWN = 24


def unsafe_defaults(certificate: Certificate) -> list[str]:
    """Name the agents that need a fallback of their own: that of nobody's choosing is not safe."""
    domain = certificate.domain
    found = unsafe_fallbacks(certificate.cloud.sums, domain, nearest_zero(domain))
    labels = (group.label(place) for group in domain for place in range(group.count))
    return [label for label, unsafe in zip(labels, found.tolist(), strict=True) if unsafe]


def fallback_words(unsafe: Sequence[str]) -> str:
    """Say whose fallbacks are not safe, and what to do."""
    named = ", ".join(unsafe[:_SHOWN]) + (", ..." if len(unsafe) > _SHOWN else "")
    return (
        f"[yellow]{len(unsafe):,} of the public fallbacks may violate a constraint beside answers "
        f"of others[/]: {escape(named)}. Unless these agents start elsewhere, give them a fallback "
        "that contributes the least they can to sums with an upper limit, the most to sums with a "
        "lower one (docs/explanation/feasible.md)"
    )
