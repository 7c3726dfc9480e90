"""Certificates and plans: tables for people, data for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from sottovoce.certificate.certificate import Certificate
from sottovoce.cli.console import table_of
from sottovoce.formula.canonical import substitute
from sottovoce.formula.expression import ZERO, Expression, nodes, number, symbol
from sottovoce.privacy.feasibility import nearest_zero, unsafe_fallbacks
from sottovoce.privacy.gaussian import attacker
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.statement import down, feasibility_data, not_covered, up
from sottovoce.privacy.trust import WORDS
from sottovoce.problem.agents import Group
from sottovoce.problem.constraints import Constraint

_SHOWN = 24
_AGENTS = 10_000  # agents up to which a plan's data lists all
_DIGITS = 9  # numbers longer than this are shown with six digits
_LONG = 240
_COLOURS = {
    "proven": "green",
    "numerical": "yellow",
    "fails": "bold red",
    "unchecked": "cyan",
    "note": "cyan",
}


def certificate_data(certificate: Certificate) -> dict[str, object]:
    """Return a certificate as plain data.

    ``sensitivity.upper[o][l]`` is the certified ``S[o, l]`` and ``found`` the largest value seen,
    one row per sum; ``sums`` says which sums there are, of what and why. For fleets, where the
    matrix has millions of columns, only the largest entry per sum is given.
    """
    S = certificate.sensitivity
    small = S.outputs * S.agents <= 100_000
    return {
        "fingerprint": certificate.fingerprint,
        "agents": certificate.cloud.agents,
        "constraints": certificate.cloud.rows,
        "holds": certificate.holds,
        "assumptions": [
            {
                "name": a.name,
                "status": a.status,
                "detail": a.detail,
                "witness": None if a.witness is None else dict(a.witness),
            }
            for a in certificate.assumptions
        ],
        "domain": [_box(g) for g in certificate.domain],
        "original_domain": [_box(g) for g in certificate.cloud.groups],
        "sums": [asdict(row) for row in _sum_rows(certificate)],
        "outputs": certificate.cloud.sums.labels(),
        "sensitivity": {
            "largest": S.largest(),
            "gap": S.gap(),
            **({"upper": S.dense(), "found": S.dense_found()} if small else {}),
        },
    }


def certificate_tables(certificate: Certificate) -> list[Table]:
    """Return a certificate as tables: assumptions, domain, sums and sensitivities."""
    return [
        _assumptions(certificate),
        _domain(certificate),
        _sums(certificate),
        _sensitivities(certificate),
    ]


def _box(group: Group) -> dict[str, object]:
    return {
        "name": group.name,
        "agents": group.count,
        "lower": group.lower.min(axis=0),
        "upper": group.upper.max(axis=0),
    }


def _assumptions(certificate: Certificate) -> Table:
    table = _folded("Assumptions of Theorem 1", "assumption", "status", "how")
    for a in certificate.assumptions:
        at = "" if a.witness is None else f" at {_point(a.witness)}"
        table.add_row(a.name, f"[{_COLOURS[a.status]}]{a.status}[/]", f"{a.detail}{at}")
    return table


def _folded(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in columns:
        table.add_column(heading, overflow="fold")
    return table


def _point(witness: Any) -> str:
    return ", ".join(f"{name} = {value:.6g}" for name, value in witness.items())


def _domain(certificate: Certificate) -> Table:
    title = "Domain: original box and what the constraints leave of it, plus a margin"
    table = _folded(title, "agent", "original", "kept")
    for before, after in zip(certificate.cloud.groups, certificate.domain, strict=True):
        for c, component in enumerate(before.symbols[:_SHOWN]):
            table.add_row(component.name, _range(before, c), _range(after, c))
    return table


def _range(group: Group, c: int) -> str:
    return f"[{group.lower[:, c].min():.6g}, {group.upper[:, c].max():.6g}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class _SumRow:
    """One sum, or a constraint that became none, in words."""

    constraint: str
    sum: str | None
    formula: str
    must: str
    why: str


def _sum_rows(certificate: Certificate) -> Iterator[_SumRow]:
    sums, labels = certificate.cloud.sums, certificate.cloud.sums.labels()
    held = {row: region for region in sums.regions for row in region.rows}
    origins = [origin for origin in sums.origins for _ in range(origin.count)]
    row = 0
    for family in sums.families:
        for r in range(family.rows):
            must = _interval(sums.lower[row], sums.upper[row])
            if row in held:
                names = zip(held[row].symbols, held[row].rows, strict=True)
                phi = substitute(held[row].phi, {s: symbol(labels[o]) for s, o in names})
                must = f"{_shown(phi)} <= 0"
            yield _SumRow(
                constraint=origins[row].name,
                sum=labels[row],
                formula=_formula(family, r),
                must=must,
                why=origins[row].how,
            )
            row += 1
    local = {row.label for kept in certificate.cloud.kept for row in kept}
    for single in certificate.cloud.own:
        yield _SumRow(
            constraint=single.name,
            sum=None,
            formula=_shown(single.rest[0]),
            must="= 0" if single.equality else "<= 0",
            why="names one agent, which keeps it locally: no multiplier, no release"
            if single.name in local
            else "names one component of one state: a bound, no multiplier, no release",
        )


def _formula(family: Constraint, row: int) -> str:
    texts = []
    for part in family.sums:
        weighted = "" if part.weights is None else "weights of "
        term = _shown(part.terms[row % len(part.terms)])
        texts.append(f"sum over {part.group.name} of {weighted}{term}")
    rest = family.named[row] if family.named else ZERO
    return " + ".join([*texts, *([_shown(rest)] if not rest.is_zero else [])])


def _shown(formula: Expression) -> str:
    """A formula for people: long fractions as decimals, and no longer than a screen."""
    long = [n for n in nodes((formula,)) if n.is_number and len(str(n.value)) > _DIGITS]
    text = str(substitute(formula, {n: number(float(f"{float(n.value):.6g}")) for n in long}))
    return text if len(text) <= _LONG else f"{text[: _LONG - 3]}..."


def _interval(lower: float, upper: float) -> str:
    if lower == upper:
        return f"= {upper:.6g}"
    return f"<= {upper:.6g}" if np.isinf(lower) else f"between {lower:.6g} and {upper:.6g}"


def _sums(certificate: Certificate) -> Table:
    title = "Sums: what agents contribute to, and where it must lie"
    table = _folded(title, "constraint", "sum", "formula", "must be", "why")
    rows = list(_sum_rows(certificate))
    for row in rows[:_SHOWN]:
        cells = (row.constraint, row.sum or "none", row.formula, row.must, row.why)
        table.add_row(*(escape(cell) for cell in cells))
    if len(rows) > _SHOWN:
        table.add_row(f"... {len(rows) - _SHOWN} more", "", "", "", "")
    return table


def _sensitivities(certificate: Certificate) -> Table:
    S = certificate.sensitivity
    table = table_of(
        f"Sensitivity S of outputs to agents: certified bound and largest value found "
        f"(largest gap {up(100 * S.gap(), 3)}%)",
        *("output", "agent", "certified", "found"),
    )
    labels = certificate.cloud.sums.labels()
    if S.agents > _SHOWN:
        for label, peak in list(zip(labels, S.largest(), strict=True))[:_SHOWN]:
            table.add_row(label, f"worst of {S.agents:,}", up(peak, 9), "")
        return table
    upper, found, names = S.dense(), S.dense_found(), certificate.cloud.agent_labels()
    for o, agent in np.argwhere(upper > 0):
        bound, seen = up(upper[o, agent], 9), down(found[o, agent], 9)
        table.add_row(labels[o], names[agent], bound, seen)
    return table


def unsafe_defaults(certificate: Certificate) -> list[str]:
    """Name the agents whose default public fallback may violate a constraint beside answers."""
    domain = certificate.domain
    unsafe = unsafe_fallbacks(certificate.cloud.sums, domain, nearest_zero(domain)).tolist()
    labels = certificate.cloud.agent_labels()
    return [label for label, flag in zip(labels, unsafe, strict=True) if flag]


def fallback_words(unsafe: Sequence[str]) -> str:
    """Say whose fallbacks are not safe, and what to do, in Rich's markup."""
    named = ", ".join(unsafe[:_SHOWN]) + (", ..." if len(unsafe) > _SHOWN else "")
    return (
        f"[yellow]{len(unsafe):,} of the public fallbacks may violate a constraint beside answers "
        f"of others[/]: {escape(named)}. Unless these agents start elsewhere, give them a fallback "
        "that contributes the least they can to sums with an upper limit, the most to sums with a "
        "lower one (docs/explanation/feasible.md)"
    )


def plan_data(plan: NoisePlan) -> dict[str, object]:
    """Return a plan as plain data; of more than 10,000 agents only the worst off is listed."""
    few = plan.cloud.agents <= _AGENTS
    guarantees = (
        [plan.guarantee(a) for a in range(plan.cloud.agents)] if few else [plan.guarantee()]
    )
    return {
        "method": plan.method,
        "hide": plan.hide.kind,
        "trust": {
            "kind": plan.trust.kind,
            "words": WORDS[plan.trust.kind],
            "views": {v.name: float(plan.mu_seen_by(v.name).max()) for v in plan.trust.views},
        },
        "rounds": plan.rounds,
        "certified": plan.certified,
        "feasible": None if plan.feasible is None else feasibility_data(plan.feasible),
        "outputs": [
            asdict(output) | {"released_sigma": float(released)}
            for output, released in zip(plan.outputs, plan.released_sigma, strict=True)
        ],
        "agents": [
            {
                "agent": g.agent + 1,  # files and tables count from 1
                "name": g.name,
                "radius": plan.radius(g.agent),
                "gdp_mu": g.gdp_mu,
                "epsilon": g.epsilon,
                "delta": g.delta,
                "hidden": g.hidden,
                "attacker_advantage": attacker(g.gdp_mu).advantage,
            }
            for g in guarantees
        ],
        "not_covered": not_covered(plan),
        "fingerprint": plan.fingerprint,
    }
