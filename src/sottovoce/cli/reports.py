"""Certificates, plans, results, runs and accounts: tables for people, data for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
from rich.markup import escape
from rich.table import Table

from sottovoce.cli.console import picked, table_of
from sottovoce.formula.canonical import substitute
from sottovoce.formula.expression import ZERO, Expression, nodes, number, symbol
from sottovoce.privacy.adjacency import adjacency_of
from sottovoce.privacy.feasibility import nearest_zero, unsafe_fallbacks
from sottovoce.privacy.gaussian import Attacker
from sottovoce.privacy.statement import down, feasibility_data, hidden, not_covered, up
from sottovoce.privacy.trust import WORDS, trust_of
from sottovoce.problem.problem import violation

if TYPE_CHECKING:
    from sottovoce.certificate.certificate import Certificate
    from sottovoce.network.store import RunSummary
    from sottovoce.privacy.noise_plan import NoisePlan
    from sottovoce.problem.agents import Array, Group
    from sottovoce.problem.constraints import Constraint
    from sottovoce.simulation.result import Result

_SHOWN = 24
_AGENTS = 10_000  # agents up to which a plan's data lists all
_DIGITS = 9  # numbers longer than this are shown with six digits
_LONG = 240
_QUANTILES = {"p5": 5, "median": 50, "p95": 95}
_QUANTITIES = {
    "error_x": "|x - x_hat|",
    "error_price": "|price - price_hat|",
    "violation": "largest violation",
    "residual": "optimality residual",
    "objective": "objective",
    "last_error_x": "|x - x_hat| of the last iterate",
    "last_error_price": "|price - price_hat| of the last iterate",
}
_IN_SUMMARY = ("violation", "objective")
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
            picked(assumption, "name", "status", "detail", "witness")
            for assumption in certificate.assumptions
        ],
        "domain": [_box(g) for g in certificate.domain],
        "original_domain": [_box(g) for g in certificate.cloud.groups],
        "sums": list(_sum_rows(certificate)),
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
    columns = ("assumption", "status", "how")
    table = table_of("Assumptions of Theorem 1", *columns, words=True)
    for a in certificate.assumptions:
        witness = ", ".join(f"{name} = {v:.6g}" for name, v in (a.witness or {}).items())
        how = a.detail if a.witness is None else f"{a.detail} at {witness}"
        table.add_row(a.name, f"[{_COLOURS[a.status]}]{a.status}[/]", how)
    return table


def _domain(certificate: Certificate) -> Table:
    title = "Domain: original box and what the constraints leave of it, plus a margin"
    table = table_of(title, "agent", "original", "kept", words=True)
    for before, after in zip(certificate.cloud.groups, certificate.domain, strict=True):
        for c, component in enumerate(before.symbols[:_SHOWN]):
            table.add_row(component.name, _range(before, c), _range(after, c))
    return table


def _range(group: Group, c: int) -> str:
    return f"[{group.lower[:, c].min():.6g}, {group.upper[:, c].max():.6g}]"


def _sum_rows(certificate: Certificate) -> Iterator[dict[str, str | None]]:
    """Yield every sum, and every constraint that became none, in words."""
    sums, labels = certificate.cloud.sums, certificate.cloud.sums.labels()
    together = {row: (r.symbols, r.rows, r.phi) for r in sums.regions for row in r.rows}
    together |= {row: (t.symbols, t.rows, t.formula) for t in sums.costs for row in t.rows}
    costs = {row for term in sums.costs for row in term.rows}
    origins = [(origin.name, origin.how) for origin in sums.origins for _ in range(origin.count)]
    origins += [("public cost", "a sum that the cost depends on")] * (sums.count - len(origins))
    places = ((family, r) for family in sums.families for r in range(family.rows))
    for row, (family, r) in enumerate(places):
        must = _interval(sums.lower[row], sums.upper[row])
        if row in together:
            symbols, rows, formula = together[row]
            names = dict(zip(symbols, (symbol(labels[o]) for o in rows), strict=True))
            phi = _shown(substitute(formula, names))
            bounded = np.isfinite(sums.lower[row]) or np.isfinite(sums.upper[row])
            cost = f"{must}, costs {phi}" if bounded else f"costs {phi}"
            must = cost if row in costs else f"{phi} <= 0"
        yield {
            "constraint": origins[row][0],
            "sum": labels[row],
            "formula": _formula(family, r),
            "must": must,
            "why": origins[row][1],
        }
    local = {row.label for rows in certificate.cloud.local_rows for row in rows}
    for single in certificate.cloud.separable:
        kept = "names one agent, which keeps it locally: no multiplier, no release"
        bound = "names one component of one state: a bound, no multiplier, no release"
        yield {
            "constraint": single.name,
            "sum": None,
            "formula": _shown(single.rest[0]),
            "must": "= 0" if single.equality else "<= 0",
            "why": kept if single.name in local else bound,
        }


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
    columns = ("constraint", "sum", "formula", "must be", "why")
    table = table_of(title, *columns, words=True)
    rows = list(_sum_rows(certificate))
    for row in rows[:_SHOWN]:
        table.add_row(*(escape(cell or "none") for cell in row.values()))
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
            asdict(output) | {"grid": output.grid, "released_sigma": float(released)}
            for output, released in zip(plan.outputs, plan.released_sigma, strict=True)
        ],
        "agents": [
            {
                "agent": g.agent + 1,  # files and tables count from 1
                "radius": plan.radius(g.agent),
                **picked(g, "name", "gdp_mu", "epsilon", "delta", "hidden"),
                "attacker_advantage": Attacker(g.gdp_mu).advantage,
            }
            for g in guarantees
        ],
        "not_covered": not_covered(plan),
        "fingerprint": plan.fingerprint,
    }


def _finals(result: Result) -> dict[str, Array | None]:
    """Quantiles over the runs of what was measured last; None where the saddle is not known."""
    good = result.failed == 0
    ends = {name: getattr(result.trace, name)[good, -1] for name in _QUANTITIES if good.any()}
    shares = list(_QUANTILES.values())
    return {
        name: np.percentile(values, shares) if np.isfinite(values).all() else None
        for name, values in ends.items()
    }


def result_data(result: Result) -> dict[str, object]:
    """Return the figures of an ensemble after its last round as plain data."""
    finals = {
        name: None if values is None else dict(zip(_QUANTILES, values, strict=True))
        for name, values in _finals(result).items()
    }
    return {
        **picked(result, "runs", "rounds", "requested", "seed", "interrupted", "confirmed"),
        "failed": {str(r + 1): int(k) for r, k in enumerate(result.failed) if k > 0},
        **picked(result, "seconds", "algorithm", "noise"),
        "final": finals,
        "constraints": _constraints(result),
        "promise": result.assessment().promise,
    }


def _constraints(result: Result) -> list[dict[str, object]]:
    """The violation of every constraint over the runs that did not fail, the worst of them."""
    assessment, good = result.assessment(), result.failed == 0
    off = violation(assessment.rows[good], assessment.equality)
    return [
        {
            "name": name,
            "equality": bool(assessment.equality[j]),
            "scale": float(assessment.scale[j]),
            "largest_violation": float(off[:, j].max(initial=0.0)),
            "percent_of_scale": float(100 * off[:, j].max(initial=0.0) / assessment.scale[j]),
            "share_of_runs": float((off[:, j] > 0).mean()) if good.any() else None,
        }
        for j, name in enumerate(assessment.row_labels)
    ]


def result_table(result: Result) -> Table:
    """Return the errors of an ensemble after its last round."""
    failed = int((result.failed > 0).sum())
    title = f"{result.rounds:,} rounds, {result.runs} run{'s' if result.runs > 1 else ''}, "
    title += f"{result.seconds:.2f} s"
    title += f", {failed} failed" if failed else ""
    if result.confirmed is not None:
        title += f", {int(result.confirmed.sum())} confirmed"
    title += f", interrupted before round {result.requested:,}" if result.interrupted else ""
    columns = ("after the last round", "5%", "median", "95%")
    table = table_of(title, *columns)
    for name, values in _finals(result).items():
        if values is not None and name not in _IN_SUMMARY:
            table.add_row(_QUANTITIES[name], *(f"{v:.6g}" for v in values))
    return table


def status_table(summary: RunSummary) -> Table:
    """Return a run by what its store says."""
    config, reason = summary.config, f": {summary.reason}" if summary.reason else ""
    total = "" if config is None else f" of {config.rounds:,}"
    rows = {
        "status": f"{summary.status}{reason}",
        "rounds": f"{summary.rounds:,}{total}",
        "begun": summary.created,
    }
    if config is not None:
        promise = config.promise
        figures = {name: up(promise[name], 4) for name in ("epsilon", "delta", "gdp_mu")}
        hide = adjacency_of(promise["hide"], radius=promise["radius"], rounds=promise["rounds"])
        kept = "no margin: an active limit is exceeded by about every second answer"
        if (feasible := promise.get("feasible")) is not None:
            each = "a certain one" if feasible["each_row"] else "one"
            rest = up(1.0 - feasible["probability"], 3)
            kept = f"P(the answer is confirmed and violates {each}) <= {rest}"
        rows |= {
            "run": config.run_id,
            "noise": config.noise,
            "promise": "({epsilon}, {delta})-DP or better for every agent, mu = {gdp_mu}".format(
                **figures
            ),
            f"hidden ({hide.kind})": hidden(hide),
            "trust": WORDS[trust_of(promise.get("trust", "one")).kind],
            "constraints": kept,
        }
    refused = ", ".join(f"{code} {n:,}" for code, n in sorted(summary.incidents.items()))
    rows |= {
        "prices": ", ".join(f"{p:.4g}" for p in summary.price[:16]),
        "held": f"{summary.held:,} agent-rounds",
        "refused, clipped": refused or "none",
    }
    table = Table(show_header=False)
    for row in rows.items():
        table.add_row(*row)
    return table
