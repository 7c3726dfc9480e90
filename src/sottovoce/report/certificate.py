"""A certificate as tables for people and as data for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from sottovoce.certificate.certificate import Certificate
from sottovoce.formula.canonical import substitute
from sottovoce.formula.expression import ZERO, Expression, nodes, number, symbol
from sottovoce.privacy.statement import down, up
from sottovoce.problem.agents import Group
from sottovoce.problem.constraints import Constraint

_SHOWN = 24
_DIGITS = 9  # numbers longer than this are shown with six digits
_LONG = 240
_COLOURS = {
    "proven": "green",
    "numerical": "yellow",
    "fails": "bold red",
    "unchecked": "cyan",
    "note": "cyan",
}


def certificate_data(certificate: Certificate) -> dict[str, Any]:
    """Return a certificate as plain data.

    ``sensitivity.upper[o][l]`` is the certified ``S[o, l]`` and ``found`` the largest value seen,
    one row per sum; ``sums`` says which sums there are, of what and why. For fleets, where the
    matrix has millions of columns, only the largest entry per sum is given.
    """
    S = certificate.sensitivity
    small = S.outputs * S.agents <= 100_000
    data: dict[str, Any] = {
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
    }  # fmt: skip
    return data


def certificate_tables(certificate: Certificate) -> list[Table]:
    """Return a certificate as tables: assumptions, domain, sums and sensitivities."""
    return [
        _assumptions(certificate),
        _domain(certificate),
        _sums(certificate),
        _sensitivities(certificate),
    ]


def _box(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "agents": group.count,
        "lower": group.lower.min(axis=0),
        "upper": group.upper.max(axis=0),
    }


def _assumptions(certificate: Certificate) -> Table:
    table = Table(title="Assumptions of Theorem 1", title_justify="left")
    for heading in ("assumption", "status", "how"):
        table.add_column(heading, overflow="fold")
    for a in certificate.assumptions:
        at = "" if a.witness is None else f" at {_point(a.witness)}"
        table.add_row(a.name, f"[{_COLOURS[a.status]}]{a.status}[/]", f"{a.detail}{at}")
    return table


def _point(witness: Any) -> str:
    return ", ".join(f"{name} = {value:.6g}" for name, value in witness.items())


def _domain(certificate: Certificate) -> Table:
    table = Table(title="Domain: original box and what the constraints leave of it, plus a margin",
                  title_justify="left")  # fmt: skip
    for heading in ("agent", "original", "kept"):
        table.add_column(heading)
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
    at_home = {row.label for kept in certificate.cloud.kept for row in kept}
    for own in certificate.cloud.own:
        yield _SumRow(
            constraint=own.name,
            sum=None,
            formula=_shown(own.rest[0]),
            must="= 0" if own.equality else "<= 0",
            why="names one agent, which keeps it at home: no multiplier, no release"
            if own.name in at_home
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
    table = Table(title="Sums: what agents contribute to, and where it must lie",
                  title_justify="left")  # fmt: skip
    for heading in ("constraint", "sum", "formula", "must be", "why"):
        table.add_column(heading, overflow="fold")
    rows = list(_sum_rows(certificate))
    for row in rows[:_SHOWN]:
        cells = (row.constraint, row.sum or "none", row.formula, row.must, row.why)
        table.add_row(*(escape(cell) for cell in cells))
    if len(rows) > _SHOWN:
        table.add_row(f"... {len(rows) - _SHOWN} more", "", "", "", "")
    return table


def _sensitivities(certificate: Certificate) -> Table:
    S = certificate.sensitivity
    table = Table(
        title=f"Sensitivity S of outputs to agents: certified bound and largest value found "
        f"(largest gap {up(100 * S.gap(), 3)}%)",
        title_justify="left",
    )
    for heading in ("output", "agent", "certified", "found"):
        table.add_column(heading, justify="left" if heading == "output" else "right")
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
