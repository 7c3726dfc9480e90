"""A certificate as tables for people and as data for scripts."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.table import Table

from sottovoce.certify.certificate import Certificate
from sottovoce.privacy.figures import down, up
from sottovoce.problem.agents import Group

_SHOWN = 24
_COLOURS = {"proven": "green", "numerical": "yellow", "fails": "bold red", "unchecked": "cyan"}


def certificate_data(certificate: Certificate) -> dict[str, Any]:
    """Return a certificate as plain data.

    ``sensitivity.upper[o][l]`` is the certified ``S[o, l]`` and ``found`` the largest value seen,
    outputs first the rows of g, then the released gradient entries. For fleets, where the matrix
    has millions of columns, only the largest entry per output is given.
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
        "gradients": [
            {"row": e.row + 1, "agent": e.agent + 1, "column": e.column + 1, "kind": e.kind,
             "formula": str(e.formula)}
            for e in certificate.gradients
        ],
        "outputs": output_labels(certificate),
        "sensitivity": {
            "largest": S.largest(),
            "gap": S.gap(),
            **({"upper": S.dense(), "found": S.dense_found()} if small else {}),
        },
    }  # fmt: skip
    if certificate.paper is not None:
        data["paper"] = {
            "k_g": certificate.paper.k_g.upper,
            "k_prime": [bound.upper for bound in certificate.paper.k_prime],
            "column_sensitivity_g": certificate.paper.column_sensitivity,
        }
    return data


def certificate_tables(certificate: Certificate) -> list[Table]:
    """Return a certificate as tables: assumptions, domain, gradients and sensitivities."""
    return [
        _assumptions(certificate),
        _domain(certificate),
        _gradients(certificate),
        _sensitivities(certificate),
    ]


def output_labels(certificate: Certificate) -> list[str]:
    """What people call the outputs: the rows of g, then the released gradient entries."""
    rows = certificate.cloud.row_labels()
    names = _component_names(certificate)
    return [*rows, *(f"d {rows[e.row]} / d {names[e.column]}" for e in certificate.released)]


def _component_names(certificate: Certificate) -> dict[int, str]:
    return {
        entry.column: symbol
        for entry in certificate.gradients
        for symbol in [_symbol_at(certificate, entry.column)]
    }


def _symbol_at(certificate: Certificate, column: int) -> str:
    for group in certificate.cloud.groups:
        if column < group.count * group.dim:
            return str(group.symbols[column % group.dim].name)
        column -= group.count * group.dim
    raise IndexError(column)


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
        for c, symbol in enumerate(before.symbols[:_SHOWN]):
            table.add_row(symbol.name, _range(before, c), _range(after, c))
    return table


def _range(group: Group, c: int) -> str:
    return f"[{group.lower[:, c].min():.6g}, {group.upper[:, c].max():.6g}]"


def _gradients(certificate: Certificate) -> Table:
    table = Table(title="Gradient entries: who tells an agent", title_justify="left")
    for heading in ("entry", "formula", "kind"):
        table.add_column(heading, overflow="fold")
    rows = certificate.cloud.row_labels()
    for entry in certificate.gradients[:_SHOWN]:
        name = f"d {rows[entry.row]} / d {_symbol_at(certificate, entry.column)}"
        table.add_row(name, str(entry.formula), entry.kind)
    if len(certificate.gradients) > _SHOWN:
        table.add_row(f"... {len(certificate.gradients) - _SHOWN} more", "", "")
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
    labels = output_labels(certificate)
    if S.agents > _SHOWN:
        for label, peak in list(zip(labels, S.largest(), strict=True))[:_SHOWN]:
            table.add_row(label, f"worst of {S.agents:,}", up(peak, 9), "")
        return table
    upper, found, names = S.dense(), S.dense_found(), certificate.cloud.agent_labels()
    for o, agent in np.argwhere(upper > 0):
        bound, seen = up(upper[o, agent], 9), down(found[o, agent], 9)
        table.add_row(labels[o], names[agent], bound, seen)
    return table
