"""Certificates, plans, results, runs and accounts: tables for people, data for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from sottovoce.cli.console import picked
from sottovoce.formula.canonical import substitute
from sottovoce.formula.derive import round_numbers
from sottovoce.formula.expression import ZERO, Expression, symbol
from sottovoce.privacy.adjacency import adjacency_of
from sottovoce.privacy.feasibility import default_fallbacks, unsafe_fallbacks
from sottovoce.privacy.gaussian import Attacker
from sottovoce.privacy.statement import down, feasibility_data, hidden, not_covered, up
from sottovoce.privacy.trust import TRUST_STATEMENTS, trust_of
from sottovoce.simulation.summary import constraint_violations
from sottovoce.tables import PlainTable, cut, framed_table

if TYPE_CHECKING:
    from sottovoce.certificate.certificate import Certificate
    from sottovoce.network.store import RunSummary
    from sottovoce.privacy.noise_plan import NoisePlan
    from sottovoce.problem.constraints import Constraint
    from sottovoce.problem.groups import Array, Group
    from sottovoce.simulation.result import Result

_MOST_ROWS = 24  # of a table
_MOST_AGENTS = 10_000  # up to which a plan's data lists all
_MOST_ENTRIES = 100_000  # of a sensitivity matrix up to which a certificate's data has it
_MOST_LETTERS = 240  # of a formula
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


def certificate_data(certificate: Certificate) -> dict[str, object]:
    """Return a certificate as plain data.

    ``sensitivity.upper[o][l]`` is the certified ``S[o, l]`` and ``attained`` the largest value,
    one row per sum; ``sums`` lists the sums with their formula and origin. For fleets, where the
    matrix has millions of columns, only the largest entry per sum is given.
    """
    S = certificate.sensitivity
    small = S.outputs * S.agents <= _MOST_ENTRIES
    return {
        "fingerprint": certificate.fingerprint,
        "agents": certificate.cloud.agents,
        "constraints": certificate.cloud.rows,
        "holds": certificate.holds,
        "assumptions": [
            picked(assumption, "name", "status", "detail", "witness")
            for assumption in certificate.assumptions
        ],
        "domain": [_box_data(g) for g in certificate.domain],
        "original_domain": [_box_data(g) for g in certificate.cloud.groups],
        "sums": list(_sum_rows(certificate)),
        "outputs": certificate.cloud.sums.labels,
        "sensitivity": {
            "largest": S.largest(),
            "gap": S.gap(),
            **({"upper": S.dense(), "attained": S.dense(attained=True)} if small else {}),
        },
    }


def certificate_tables(certificate: Certificate) -> list[PlainTable]:
    """Return a certificate as tables: assumptions, domain, sums and sensitivities."""
    return [
        _assumption_table(certificate),
        _domain_table(certificate),
        _sum_table(certificate),
        _sensitivity_table(certificate),
    ]


def _box_data(group: Group) -> dict[str, object]:
    return {
        "name": group.name,
        "agents": group.count,
        "lower": group.lower.min(axis=0),
        "upper": group.upper.max(axis=0),
    }


def _assumption_table(certificate: Certificate) -> PlainTable:
    rows = []
    for a in certificate.assumptions:
        witness = ", ".join(f"{name} = {v:.6g}" for name, v in (a.witness or {}).items())
        rows.append(
            (a.name, a.status, f"{a.detail} at {witness}" if a.witness is not None else a.detail)
        )
    columns = ("assumption", "status", "how")
    return framed_table("Assumptions of the paper's Theorem 1", columns, rows, words=True)


def _domain_table(certificate: Certificate) -> PlainTable:
    title = "Domain: original box and what the constraints leave of it, plus a margin"
    rows = [
        (component.name, _format_range(original, c), _format_range(tightened, c))
        for original, tightened in zip(certificate.cloud.groups, certificate.domain, strict=True)
        for c, component in enumerate(original.symbols[:_MOST_ROWS])
    ]
    return framed_table(title, ("agent", "original", "tightened"), rows, words=True)


def _format_range(group: Group, c: int) -> str:
    return f"[{group.lower[:, c].min():.6g}, {group.upper[:, c].max():.6g}]"


def _sum_rows(certificate: Certificate) -> Iterator[dict[str, str | None]]:
    """Yield every sum, and every constraint that became none, in words."""
    sums, labels = certificate.cloud.sums, certificate.cloud.sums.labels
    jointly = {row: (r.symbols, r.rows, r.phi) for r in sums.regions for row in r.rows}
    jointly |= {row: (t.symbols, t.rows, t.formula) for t in sums.costs for row in t.rows}
    costs = {row for term in sums.costs for row in term.rows}
    origins = [(origin.name, origin.how) for origin in sums.origins for _ in range(origin.count)]
    origins += [("public cost", "a sum that the cost depends on")] * (sums.count - len(origins))
    places = ((family, r) for family in sums.families for r in range(family.rows))
    for row, (family, r) in enumerate(places):
        must = _format_interval(sums.lower[row], sums.upper[row])
        if row in jointly:
            symbols, rows, formula = jointly[row]
            names = dict(zip(symbols, (symbol(labels[o]) for o in rows), strict=True))
            phi = _format_formula(substitute(formula, names))
            bounded = np.isfinite(sums.lower[row]) or np.isfinite(sums.upper[row])
            cost = f"{must}, costs {phi}" if bounded else f"costs {phi}"
            must = cost if row in costs else f"{phi} <= 0"
        yield {
            "constraint": origins[row][0],
            "sum": labels[row],
            "formula": _format_sum(family, r),
            "must": must,
            "why": origins[row][1],
        }
    local = {row.label for rows in certificate.cloud.local_rows for row in rows}
    for single in certificate.cloud.separable:
        set_row = "names one agent, which keeps it locally: no multiplier, no release"
        bound = "names one component of one state: a bound, no multiplier, no release"
        yield {
            "constraint": single.name,
            "sum": None,
            "formula": _format_formula(single.rest[0]),
            "must": "= 0" if single.equality else "<= 0",
            "why": set_row if single.name in local else bound,
        }


def _format_sum(family: Constraint, row: int) -> str:
    texts = []
    for part in family.sums:
        weighted = "" if part.weights is None else "weights of "
        term = _format_formula(part.terms[row % len(part.terms)])
        texts.append(f"sum over {part.group.name} of {weighted}{term}")
    rest = family.named[row] if family.named else ZERO
    return " + ".join([*texts, *([_format_formula(rest)] if not rest.is_zero else [])])


def _format_formula(formula: Expression) -> str:
    """A formula for people: long fractions as decimals, and no longer than a screen."""
    return cut(str(round_numbers(formula)), _MOST_LETTERS)


def _format_interval(lower: float, upper: float) -> str:
    if lower == upper:
        return f"= {upper:.6g}"
    return f"<= {upper:.6g}" if np.isinf(lower) else f"between {lower:.6g} and {upper:.6g}"


def _sum_table(certificate: Certificate) -> PlainTable:
    title = "Sums: what agents contribute to, and where it must lie"
    columns = ("constraint", "sum", "formula", "must be", "why")
    listed = list(_sum_rows(certificate))
    rows = [tuple(cell or "none" for cell in row.values()) for row in listed[:_MOST_ROWS]]
    if len(listed) > _MOST_ROWS:
        rows.append((f"... {len(listed) - _MOST_ROWS} more", "", "", "", ""))
    return framed_table(title, columns, rows, words=True)


def _sensitivity_table(certificate: Certificate) -> PlainTable:
    S, labels = certificate.sensitivity, certificate.cloud.sums.labels
    if S.agents > _MOST_ROWS:
        peaks = list(zip(labels, S.largest(), strict=True))[:_MOST_ROWS]
        rows = [(label, f"worst of {S.agents:,}", up(peak, 9), "") for label, peak in peaks]
    else:
        upper, attained = S.dense(), S.dense(attained=True)
        names = certificate.cloud.agent_labels()
        rows = [
            (labels[o], names[agent], up(upper[o, agent], 9), down(attained[o, agent], 9))
            for o, agent in np.argwhere(upper > 0)
        ]
    return framed_table(
        "Sensitivity S of outputs to agents: certified bound and largest value attained "
        f"(largest gap {up(100 * S.gap(), 3)}%)",
        ("output", "agent", "certified", "attained"),
        rows,
    )


def unsafe_defaults(certificate: Certificate) -> list[str]:
    """Name the agents whose default public fallback may violate a constraint beside answers."""
    domain = certificate.domain
    unsafe = unsafe_fallbacks(certificate.cloud.sums, domain, default_fallbacks(domain)).tolist()
    labels = certificate.cloud.agent_labels()
    return [label for label, flag in zip(labels, unsafe, strict=True) if flag]


def fallback_words(unsafe: Sequence[str]) -> str:
    """Say whose fallbacks are not safe, and what to do."""
    named = ", ".join(unsafe[:_MOST_ROWS]) + (", ..." if len(unsafe) > _MOST_ROWS else "")
    return (
        f"{len(unsafe):,} of the public fallbacks may violate a constraint beside answers "
        f"of others: {named}. Unless these agents start elsewhere, give them a fallback "
        "that contributes the least they can to sums with an upper limit, the most to sums with a "
        "lower one (docs/explanation/feasible.md)"
    )


def plan_data(plan: NoisePlan) -> dict[str, object]:
    """Return a plan as plain data; of more than 10,000 agents only the worst off is listed."""
    all_agents = range(plan.cloud.agents) if plan.cloud.agents <= _MOST_AGENTS else [None]
    guarantees = [plan.guarantee(agent) for agent in all_agents]
    return {
        "method": plan.method,
        "hide": plan.hide.kind,
        "trust": {
            "kind": plan.trust.kind,
            "words": TRUST_STATEMENTS[plan.trust.kind],
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


def _final_quantiles(result: Result) -> dict[str, Array | None]:
    """Quantiles over the runs of what was measured last; None where the saddle is not known."""
    completed = result.failed == 0
    ends = {
        name: getattr(result.trace, name)[completed, -1] for name in _QUANTITIES if completed.any()
    }
    shares = list(_QUANTILES.values())
    return {
        name: np.percentile(values, shares) if np.isfinite(values).all() else None
        for name, values in ends.items()
    }


def result_data(result: Result) -> dict[str, object]:
    """Return the figures of an ensemble after its last round as plain data."""
    finals = {
        name: None if values is None else dict(zip(_QUANTILES, values, strict=True))
        for name, values in _final_quantiles(result).items()
    }
    return {
        **picked(result, "runs", "rounds", "requested", "seed", "interrupted", "confirmed"),
        "failed": {str(r + 1): int(k) for r, k in enumerate(result.failed) if k > 0},
        **picked(result, "seconds", "algorithm", "noise"),
        "final": finals,
        "constraints": constraint_violations(result.assessment(), result.failed == 0),
        "promise": result.assessment().promise,
    }


def result_table(result: Result) -> PlainTable:
    """Return the errors of an ensemble after its last round."""
    failed = int((result.failed > 0).sum())
    title = f"{result.rounds:,} rounds, {result.runs} run{'s' if result.runs > 1 else ''}, "
    title += f"{result.seconds:.2f} s"
    title += f", {failed} failed" if failed else ""
    if result.confirmed is not None:
        title += f", {int(result.confirmed.sum())} confirmed"
    title += f", interrupted before round {result.requested:,}" if result.interrupted else ""
    rows = [
        (_QUANTITIES[name], *(f"{v:.6g}" for v in values))
        for name, values in _final_quantiles(result).items()
        if values is not None and name not in _IN_SUMMARY
    ]
    return framed_table(title, ("after the last round", "5%", "median", "95%"), rows)


def status_table(summary: RunSummary) -> PlainTable:
    """Return the state of a run from its store."""
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
        margin = "no margin: an active limit is exceeded by about every second answer"
        if (feasible := promise.get("feasible")) is not None:
            each = "a certain one" if feasible["each_row"] else "one"
            rest = up(1.0 - feasible["probability"], 3)
            margin = f"P(the answer is confirmed and violates {each}) <= {rest}"
        rows |= {
            "run": config.run_id,
            "noise": config.noise,
            "promise": "({epsilon}, {delta})-DP or better for every agent, mu = {gdp_mu}".format(
                **figures
            ),
            f"hidden ({hide.kind})": hidden(hide),
            "trust": TRUST_STATEMENTS[trust_of(promise.get("trust", "one")).kind],
            "constraints": margin,
        }
    if (series := summary.series) is not None:
        ends = [f"{r.number} {r.status}{f' ({r.reason})' if r.reason else ''}" for r in series.runs]
        out = ", ".join(f"{len(agents):,} {why}" for why, agents in series.sat_out.items())
        rows |= {
            "series": f"{series.name}, run {series.number:,}, {series.answered:,} answered",
            "runs that ended": ", ".join(ends[-6:]) or "none",
            "sat out": out or "none",
        }
    refused = ", ".join(f"{code} {n:,}" for code, n in sorted(summary.incidents.items()))
    rows |= {
        "prices": ", ".join(f"{p:.4g}" for p in summary.price[:16]),
        "held": f"{summary.held:,} agent-rounds",
        "refused, clipped": refused or "none",
    }
    return framed_table("", (), rows.items(), words=True)
