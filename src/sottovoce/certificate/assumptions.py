"""The assumptions of the paper's Theorem 1, each proven, checked numerically, or failing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from sottovoce.certificate.contributions import sum_ranges
from sottovoce.certificate.convexity import SMOOTH, Judgement, convexity, smoothness
from sottovoce.certificate.optimum import reference_optimum
from sottovoce.certificate.slater import local_slater_point, slater_point
from sottovoce.errors import ProblemError, SottovoceError
from sottovoce.formula.canonical import negate
from sottovoce.formula.curvature import curvature
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.problem.constraints import numbered
from sottovoce.problem.costs import is_rising
from sottovoce.problem.fleets import fleets_of
from sottovoce.problem.groups import Group
from sottovoce.problem.problem import CloudView, Problem

Status = Literal["proven", "numerical", "fails", "unchecked", "note"]

CONVEX = "convex by rules of convex calculus"
_FEW = 1000  # agents that are judged one by one at once
_MANY = 16  # states of a row beyond which it is judged form by form

# Above this many scalar states the saddle point takes longer than stating and certifying together.
SADDLE_LIMIT = 20_000
_NAMED = 6  # rows that a note lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One assumption of Theorem 1 and its status.

    Attributes:
        name: what is assumed, e.g. "convexity of g2".
        status: "proven", "numerical" (checked, not proven), "fails", "unchecked" (and why), or
            "note": it does not hold, and nothing needs it to.
        detail: the proof, or what fails and the remedy.
        witness: a point where it fails, by the names of the states, or the Slater point's slack.
        row: the constraint it speaks of, from 0, if it speaks of one.
    """

    name: str
    status: Status
    detail: str
    witness: Mapping[str, float] | None = None
    row: int | None = None


def public_assumptions(cloud: CloudView, domain: Sequence[Group]) -> Iterator[Assumption]:
    """Check what the cloud can check: compactness, convexity and smoothness, Slater.

    Where a constraint is kept as a region of several sums, the region must be convex too.
    """
    yield Assumption(
        name="compactness of X",
        status="proven",
        detail="every X_i is a closed box with finite bounds",
    )
    boxes = {group.name: group for group in domain}
    named = [group for group in domain if group.count == 1]
    proven = _proven_by_template(cloud, domain)
    for first, family in numbered(cloud.constraints):
        if family.linear is not None:
            for row in range(family.rows):
                yield from _proven_row(family.label(row), first + row)
        for row, g in enumerate(family.rest):
            if first + row in proven:
                yield from _proven_row(family.label(row), first + row)
            else:
                yield from _of_term(family.label(row), first + row, g, named)
        for part in family.sums:
            for t, h in enumerate(part.terms):
                # One proof per term and sign of its weights serves all rows that use it.
                for sign in part.signs:
                    term = h if sign > 0 else negate(h)
                    yield from _of_term(family.label(t), first + t, term, [boxes[part.group.name]])
    yield from _regions(cloud, domain)
    if cloud.cost is not None:
        yield _convex_cost(cloud, domain, boxes)
    point = slater_point(cloud, domain)
    yield Assumption(name="Slater's condition", status=point.status, detail=point.detail)


def _proven_by_template(cloud: CloudView, domain: Sequence[Group]) -> set[int]:
    """Rows over many agents, each term of a single one, proven once per template of terms."""
    large = {
        first + row
        for first, family in numbered(cloud.constraints)
        for row, g in enumerate(family.rest)
        if len(g.symbols) > _MANY
    }
    for fleet in fleets_of(domain, cloud.constraints) if large else ():
        for part in fleet.parts():
            for column, t in enumerate(part.terms):
                h = fleet.terms[t]
                if h.is_symbol or (fleet.places and _convex_and_smooth(h, fleet.group, order=2)):
                    continue
                large -= set(part.rows[:, column].tolist())
    return large


def _convex_and_smooth(formula: Expression, group: Group, *, order: int) -> Judgement | None:
    """The judgement of convexity for all agents of a fleet, if they are proven smooth too."""
    judgement = _judge(convexity, formula, [group])
    if judgement.status != "proven":
        return None
    smooth = _judge(partial(smoothness, order=order), formula, [group])
    return judgement if smooth.status == "proven" else None


def _proven_row(label: str, row: int) -> Iterator[Assumption]:
    for name, detail in (("convexity", CONVEX), ("smoothness", SMOOTH)):
        yield Assumption(name=f"{name} of {label}", status="proven", detail=detail, row=row)


def _regions(cloud: CloudView, domain: Sequence[Group]) -> Iterator[Assumption]:
    if not cloud.sums.regions:
        return
    ranges = sum_ranges(cloud.sums, domain)
    for region in cloud.sums.regions:
        judgement = Judgement(status="proven", detail="convex by its form")
        if not curvature(region.phi).is_convex:
            box = {s: ranges[o] for s, o in zip(region.symbols, region.rows, strict=True)}
            judgement = convexity(region.phi, box)
        yield _assumption(f"convexity of the set of {region.name}", judgement, region.stated)


def _convex_cost(
    cloud: CloudView, domain: Sequence[Group], boxes: Mapping[str, Group]
) -> Assumption:
    """Whether the public cost is convex on all values that its sums can take: the worst finding.

    Where terms of a sum are not affine they must be convex, and the cost must not fall in it.
    """
    ranges, labels = sum_ranges(cloud.sums, domain), cloud.sums.labels
    judgements: list[Judgement] = []
    for term in cloud.sums.costs:
        box = {s: ranges[o] for s, o in zip(term.symbols, term.rows, strict=True)}
        judgements.append(convexity(term.formula, box))
        for s, row in zip(term.symbols, term.rows, strict=True):
            if s in term.rising and not is_rising(term.formula, s, box):
                why = f"one that may fall where {labels[row]} rises, a sum of terms not affine"
                judgements.append(Judgement(status="fails", detail=why))
    named = [group for group in domain if group.count == 1]
    for family in cloud.cost.families if cloud.cost else ():
        judgements += [_judge(convexity, h, named) for h in family.rest if h.symbols]
        for part in family.sums:
            signed = [h if sign > 0 else negate(h) for h in part.terms for sign in part.signs]
            judgements += [_judge(convexity, h, [boxes[part.group.name]]) for h in signed]
    order = ("proven", "note", "numerical", "fails")
    worst = max(judgements, key=lambda judgement: order.index(judgement.status))
    return _assumption("convexity of the public cost", worst)


def convex_sums(
    cloud: CloudView, domain: Sequence[Group], assumptions: Sequence[Assumption]
) -> dict[int, bool]:
    """For each sum, from 0, whether it is proven convex, given the public assumptions."""
    stated: dict[int, bool] = {}
    for a in assumptions:
        if a.row is not None and a.name.startswith("convexity"):
            stated[a.row] = stated.get(a.row, True) and a.status == "proven"
    boxes = [group for group in domain if group.count == 1]
    facts: dict[int, bool] = {}
    for origin, (row, _) in zip(cloud.sums.origins, numbered(cloud.constraints), strict=True):
        if origin.as_stated:
            for r in range(origin.count):
                facts[origin.first + r] = stated.get(row + r, False)
    for row, family in numbered(cloud.sums.families):
        for r, formula in enumerate(() if family.sums else family.rest or (ZERO,) * family.rows):
            if row + r not in facts:
                facts[row + r] = curvature(formula).is_convex or (
                    _judge(convexity, formula, boxes).status == "proven"
                )
    return facts


def private_assumptions(
    problem: Problem, domain: Sequence[Group], *, sound: bool
) -> Iterator[Assumption]:
    """Check what takes the objectives: their convexity and smoothness, and the saddle point.

    Unless all that is public is ``sound`` there is no saddle point to look for.
    """
    strict = True
    by_template = _objectives_by_template(problem, domain)
    for group, objective, code, box, local in zip(
        problem.groups, problem.objectives, problem.code, domain, problem.local, strict=True
    ):
        if code is not None:
            strict = False
            yield Assumption(
                name=f"convexity of the objective of {group.name}",
                status="unchecked",
                detail="it is code; a gradient that is not monotone is reported to its agent",
            )
            continue
        # Where the agent can be: its objective is evaluated nowhere else.
        low, high = np.maximum(box.lower, local.lower), np.minimum(box.upper, local.upper)
        inside = [replace(group, lower=low, upper=np.maximum(low, high))]
        convex = by_template.get(group.name) or _judge(convexity, objective, inside)
        strict &= convex.strict and objective.symbols >= set(group.symbols)
        sound &= convex.status != "fails"
        yield _assumption(f"convexity of the objective of {group.name}", convex)
        smooth = Judgement(status="proven", detail=SMOOTH)
        if group.name not in by_template:
            smooth = _judge(partial(smoothness, order=1), objective, inside)
        yield _assumption(f"smoothness of the objective of {group.name}", smooth)
    if sound and any(not o.plain(g) for g, o in zip(problem.groups, problem.local, strict=True)):
        slater = _local_slater(problem)
        sound = slater.status != "fails"
        yield slater
    status, detail = _saddle_status(problem, strict, sound)
    yield Assumption(name="regular and unique saddle point", status=status, detail=detail)


def _local_slater(problem: Problem) -> Assumption:
    name = "Slater's condition inside local sets"
    if problem.size > SADDLE_LIMIT:
        detail = f"{problem.size} states are too many to look"
        return Assumption(name=name, status="unchecked", detail=detail)
    try:
        point = local_slater_point(problem)
    except ProblemError as error:
        return Assumption(name=name, status="fails", detail=str(error))
    return Assumption(name=name, status=point.status, detail=point.detail)


def _objectives_by_template(problem: Problem, domain: Sequence[Group]) -> dict[str, Judgement]:
    """Objectives of named agents proven convex and smooth once per fleet, by agents' names."""
    judgements: dict[str, Judgement] = {}
    for fleet in problem.fleets:
        if fleet.objective.symbols and len(fleet.places) > 1:
            convex = _convex_and_smooth(fleet.objective, fleet.within(domain), order=1)
            if convex is not None:
                judgements |= {problem.groups[place].name: convex for place in fleet.places}
    return judgements


def _of_term(
    label: str, row: int, term: Expression, groups: Sequence[Group]
) -> Iterator[Assumption]:
    yield _assumption(f"convexity of {label}", _judge(convexity, term, groups), row)
    yield _assumption(f"smoothness of {label}", _judge(smoothness, term, groups), row)


def _judge(
    judge: Callable[..., Judgement], formula: Expression, groups: Sequence[Group]
) -> Judgement:
    """Judge a formula agent by agent; for many agents on one box that holds all of them first.

    The latter is fast; the former keeps apart parameters that never occur together.
    """
    used = formula.symbols
    parameters = [s for group in groups for s in group.parameters if s in used]
    ends = {
        s: (group.lower[:, c], group.upper[:, c])
        for group in groups
        for c, s in enumerate(group.symbols)
        if s in used
    }
    ends |= {s: (a, a) for group in groups for s, a in group.parameters.items() if s in used}
    if any(group.count > _FEW for group in groups):
        hull = {s: (float(low.min()), float(high.max())) for s, (low, high) in ends.items()}
        judgement = judge(formula, hull, parameters=parameters)
        if judgement.status == "proven":
            return judgement
    return judge(formula, ends, parameters=parameters)


def _assumption(name: str, judgement: Judgement, row: int | None = None) -> Assumption:
    detail, witness = judgement.detail, None
    if judgement.status == "fails" and name.startswith("convexity"):
        detail = (
            f"must be convex, got {detail}; restate it as a convex function or shrink the box to "
            "where it is one"
        )
    if judgement.witness is not None:
        witness = {s.name: float(v) for s, v in judgement.witness.items()}
    return Assumption(name=name, status=judgement.status, detail=detail, witness=witness, row=row)


def _saddle_status(problem: Problem, strict: bool, sound: bool) -> tuple[Status, str]:
    if not sound:
        return "fails", "an assumption above fails"
    if any(code is not None for code in problem.code):
        return "unchecked", "an objective is code, of which no saddle point can be computed"
    if problem.size > SADDLE_LIMIT:
        unique = "x-hat is unique (strictly convex objectives); " if strict else ""
        size = f"{problem.size} states are too many to look: call sv.reference_optimum"
        return "unchecked", unique + size
    try:
        saddle = reference_optimum(problem)
    except SottovoceError as error:
        return "fails", str(error)
    if not saddle.regular:
        labels = problem.cloud.row_labels()
        rows = " and ".join(labels[j] for j in saddle.dependent[:_NAMED])
        more = len(saddle.dependent) - _NAMED
        rows += f" and {more} more" if more > 0 else ""
        return "note", (
            f"mu-hat need not be unique: the gradients of {rows} are linearly dependent at "
            "x-hat, so that prices may share their worth in many ways; x-hat does not depend on it"
        )
    detail = f"KKT residual {saddle.residual:.1e}; active gradients independent"
    if strict or saddle.unique:
        why = "objectives strictly convex (proven)" if strict else "second-order condition"
        return "numerical", f"{detail}; {why}"
    return "unchecked", (
        f"{detail}; nothing curves L along component {saddle.flat[0] + 1} of x, so that "
        "x-hat may not be unique: make the objectives strictly convex"
    )
