"""Everything that certificates, plans, budgets and studies refuse."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from pathlib import Path
from typing import Any

import problems as p
import pytest
from refusals import Refusal, check, listed

import sottovoce
from sottovoce.privacy.sampler import SecureSampler

pytestmark = pytest.mark.core
sv: Any = sottovoce  # wrong types are refused too

INPUT, PRIVACY, PROBLEM = sv.errors.InputError, sv.errors.PrivacyError, sv.errors.ProblemError


def planned(**changed: Any) -> Any:
    return p.plan(changed.pop("certificate", None) or p.bakeries(), **({"rounds": 50} | changed))


def two(*rows: Any, lower: Any = -1, upper: Any = 1, objectives: Any = None) -> Any:
    """A problem of two agents; rows and objectives are functions of their states."""
    x = sv.agents(2, lower=lower, upper=upper)
    wishes = [(s - 0.2) ** 2 for s in x] if objectives is None else [f(x) for f in objectives]
    return sv.Problem(objectives=wishes, constraints=[row(x) for row in rows])


def promise_of(problem: Any) -> Any:
    return planned(certificate=p.certify(problem))


CERTIFICATES = [
    Refusal("a certificate of a number", lambda: p.certify(3), INPUT, ("problem", "3")),
    Refusal("a tolerance that is negative", lambda: p.certify(p.bakeries(), tolerance=-1), INPUT, ("tolerance", "-1")),
    Refusal("constraints without a common point", lambda: p.certify(two(lambda x: x[0] + x[1] <= -3)), PROBLEM, ("g1", "relax")),
    Refusal("constraints that exclude each other", lambda: promise_of(two(lambda x: x[0] + x[1] <= -1, lambda x: x[0] + x[1] >= 1)), PROBLEM, ("g1|g2", "relax")),
    Refusal("discs without a common point", lambda: promise_of(two(lambda x: (x[0] + x[1]) ** 2 <= 0.01, lambda x: x[0] + 2 * x[1] >= 1.4)), sv.SottovoceError, ("g1|g2|Slater", "strict|common|together|relax")),
    Refusal("a row without an inner point", lambda: promise_of(two(lambda x: (x[0] - x[1]) ** 2 <= 0)), sv.SottovoceError, ("Slater", "strict|relax|equal")),
    Refusal("a product of two agents", lambda: promise_of(two(lambda x: x[0] * x[1] <= 0.5)), sv.errors.ConvexityError, ("g1", "convex", "x1")),
    Refusal("a concave constraint", lambda: promise_of(two(lambda x: x[0] ** 2 + x[1] >= 0.5)), sv.errors.ConvexityError, ("g1", "convex", "x1**2")),
    Refusal("a concave corner", lambda: promise_of(two(lambda x: x[1] - abs(x[0]) <= 0.5)), sv.errors.ConvexityError, ("g1", "convex", "abs")),
    Refusal("an objective with two valleys", lambda: promise_of(p.valves(convex=False)), sv.errors.ConvexityError, ("valve", "convex", "box")),
    Refusal("a concave objective", lambda: promise_of(two(lambda x: x[0] + x[1] <= 1, objectives=[lambda x: -(x[0] ** 2), lambda x: x[1] ** 2])), sv.errors.ConvexityError, ("x1", "convex")),
    Refusal("a logarithm over zero", lambda: promise_of(two(lambda x: x[0] + x[1] <= 1, objectives=[lambda x: -sv.log(x[0]), lambda x: x[1] ** 2])), sv.SottovoceError, ("log", "x1")),
    Refusal("a root over zero", lambda: promise_of(two(lambda x: x[0] + x[1] <= 1, objectives=[lambda x: -sv.sqrt(x[0] - 3), lambda x: x[1] ** 2])), sv.SottovoceError, ("x1", "convex|defined")),
    Refusal("a public set that excludes its fleet", lambda: p.certify(excluded_fleet()), PROBLEM, ("ev", "relax")),
    Refusal("an optimum of code", lambda: sv.reference_optimum(p.coded()), sv.errors.CertificateError, ("press", "code", "formula")),
    Refusal("an optimum of no problem", lambda: sv.reference_optimum(3), INPUT, ("problem", "3")),
    Refusal("an optimum of a concave objective", lambda: sv.reference_optimum(two(lambda x: x[0] + x[1] <= 1, objectives=[lambda x: -(x[0] ** 2), lambda x: x[1] ** 2])), sv.SottovoceError, ("convex", "certify")),
    Refusal("an optimum of nothing feasible", lambda: sv.reference_optimum(two(lambda x: x[0] + x[1] <= -3)), sv.SottovoceError, ("g1", "relax|widen")),
]  # fmt: skip


def excluded_fleet() -> Any:
    ev = sv.agents(3, dim=2, lower=0, upper=1, name="ev")
    r = ev.x
    return sv.Problem(objectives=sum(s**2 for s in r), constraints=[sv.total(ev) <= 1, sum(r) >= 3])


def papers(stated: Any, **changed: Any) -> Any:
    return p.plan(stated, rounds=50, method="paper", **changed)


def of_paper(k_g: float, k_prime: tuple[float, ...]) -> Any:
    return papers(sv.gallery.paper(), constants=sv.paper.Constants(k_g=k_g, k_prime=k_prime))


PLANS = [
    Refusal("a plan of no certificate", lambda: sv.plan(3, epsilon=1, delta=0.1, hide=sv.Everything(rounds=3)), INPUT, ("problem", "3")),
    Refusal("epsilon 0", lambda: planned(epsilon=0), INPUT, ("epsilon", "positive", "0")),
    Refusal("epsilon that is negative", lambda: planned(epsilon=-1.5), INPUT, ("epsilon", "positive", "-1.5")),
    Refusal("epsilon that is NaN", lambda: planned(epsilon=math.nan), INPUT, ("epsilon", "nan")),
    Refusal("epsilon that is infinite", lambda: planned(epsilon=math.inf), INPUT, ("epsilon", "finite|at most", "inf")),
    Refusal("epsilon that is text", lambda: planned(epsilon="much"), INPUT, ("epsilon", "number")),
    Refusal("epsilon for too few agents", lambda: planned(epsilon=[1.0, 2.0]), INPUT, ("epsilon", "3", "(2,)|2")),
    Refusal("delta 0", lambda: planned(delta=0.0), INPUT, ("delta", "(0, 1)", "0")),
    Refusal("delta 1", lambda: planned(delta=1.0), INPUT, ("delta", "(0, 1)", "1")),
    Refusal("delta for too few agents", lambda: planned(delta=[0.1, 0.1]), INPUT, ("delta", "3", "2")),
    Refusal("nothing to hide", lambda: planned(hide=None), INPUT, ("hide", "Trajectory", "Everything", "None")),
    Refusal("a word for what to hide", lambda: planned(hide="trajectory"), INPUT, ("hide", "Trajectory", "trajectory")),
    Refusal("radius 0", lambda: planned(hide=sv.Trajectory(radius=0.0)), INPUT, ("radius", "positive", "0")),
    Refusal("a radius that is negative", lambda: planned(hide=sv.Offset(radius=-2.0, rounds=5)), INPUT, ("radius", "positive", "-2")),
    Refusal("no rounds", lambda: sv.Everything(rounds=0), INPUT, ("rounds", "0")),
    Refusal("half a round", lambda: sv.Offset(radius=1.0, rounds=2.5), INPUT, ("rounds", "integer", "2.5")),
    Refusal("a radius that is infinite", lambda: planned(hide=sv.Trajectory(radius=math.inf)), INPUT, ("radius", "finite", "inf")),
    Refusal("a radius for too few agents", lambda: planned(hide=sv.Trajectory(radius=[1.0, 2.0])), INPUT, ("radius", "3", "2")),
    Refusal("a radius that is text", lambda: planned(hide=sv.Trajectory(radius="far")), INPUT, ("radius", "far|number")),
    Refusal("too few weights", lambda: planned(weights=[1.0, 1.0]), INPUT, ("weights", "1", "(2,)")),
    Refusal("weight 0", lambda: planned(weights=[0.0]), INPUT, ("weights", "positive", "0")),
    Refusal("weights that are text", lambda: planned(weights="equal"), INPUT, ("weights", "number|positive")),
    Refusal("another trust", lambda: planned(trust="split"), INPUT, ("trust", "SplitCloud", "split")),
    Refusal("a probability above 1", lambda: planned(feasible=1.5), INPUT, ("feasible|probability", "1.5")),
    Refusal("feasible that is text", lambda: planned(feasible="yes"), INPUT, ("feasible|probability", "yes")),
    Refusal("each_row that is a number", lambda: planned(feasible=0.9, each_row=3), INPUT, ("each_row", "True", "3")),
    Refusal("a hard row without a margin", lambda: promise_of(p.bakeries(hard=True)), PRIVACY, ("connection", "hard", "feasible")),
    Refusal("no room for a margin", lambda: planned(hide=sv.Everything(rounds=50), feasible=0.95), PRIVACY, ("feasible", "room", "epsilon")),
    Refusal("no room at any noise", lambda: planned(certificate=p.certify(two(lambda x: x[0] + x[1] <= -1.999999)), feasible=0.95), PRIVACY, ("feasible", "room", "relax|epsilon|radius")),
    Refusal("too few constants", lambda: of_paper(k_g=472.0, k_prime=(1.0, 2.0)), INPUT, ("constants", "7", "2")),
    Refusal("a constant 0 where states move a gradient", lambda: of_paper(k_g=472.0, k_prime=(0.0,) * 7), PRIVACY, ("positive", "0", "noise")),
    Refusal("a constant that under-noises", lambda: of_paper(k_g=5.0, k_prime=(200.0,) * 7), PRIVACY, ("sigma", "sv.plan", "allow_undernoised")),
    Refusal("the paper's method where agents are coupled", lambda: papers(p.coupled()), PRIVACY, ("sigma", "sv.plan", "allow_undernoised")),
    Refusal("the paper's method for a fleet", lambda: papers(p.rates()), PRIVACY, ("paper", "fleet", "sv.plan")),
    Refusal("the paper's method with an equality", lambda: papers(p.flows()), PRIVACY, ("paper", "equalit", "sv.plan")),
    Refusal("noise that is far too small", lambda: planned(hide=sv.Trajectory(radius=1e-9, rounds=50)), PRIVACY, ("radius", "epsilon|2^25")),
    Refusal("units that are out of range", lambda: planned(certificate=p.certify(two(lambda x: 1e160 * (x[0] + x[1]) <= 1e160).cloud)), PRIVACY, ("units", "got")),
    Refusal("a constant K_g that is negative", lambda: sv.paper.Constants(k_g=-1.0, k_prime=(1.0,)), INPUT, ("k_g", "-1")),
    Refusal("a guarantee for no agent", lambda: planned().guarantee(7), INPUT, ("agent", "0 to 2", "7")),
    Refusal("a limit for another problem", lambda: sv.accuracy_limit(p.readme(), planned(), 50), INPUT, ("plan", "problem")),
    Refusal("a limit of no rounds", lambda: sv.accuracy_limit(p.bakeries(), planned(), 0), INPUT, ("rounds", "0")),
    Refusal("sigma 0", lambda: SecureSampler([0.0]), INPUT, ("sigma", "positive", "0")),
    Refusal("no sigma", lambda: SecureSampler([]), INPUT, ("sigma", "(0,)|empty")),
    Refusal("too many values", lambda: SecureSampler([1.0]).release([1.0, 2.0]), INPUT, ("values", "(1,)", "(2,)")),
    Refusal("a value that is NaN", lambda: SecureSampler([1.0]).release([math.nan]), PRIVACY, ("values", "finite", "1")),
    Refusal("a value out of range", lambda: SecureSampler([1.0]).release([1e9]), PRIVACY, ("values", "2^25", "sigma")),
]  # fmt: skip

GRANT = {"epsilon": 1.0, "delta": 0.01, "hide": "trajectory", "radius": 1.0}


def ledger(folder: Path) -> Any:
    """Accounts with a budget for x1."""
    book = sv.Ledger(folder / "budget.db")
    book.grant("x1", **GRANT)
    return book


def spent(folder: Path) -> Any:
    """The same, most of it spent by the run "one"."""
    book = ledger(folder)
    book.spend("one", [p.charge("x1", "trajectory", 1.0, 0.3)])
    return book


def of_another_kind(folder: Path) -> None:
    """An account for everything, and a run that hides a trajectory."""
    book = ledger(folder)
    book.grant("x2", **(GRANT | {"hide": "everything", "radius": None}))
    book.spend("r", [p.charge("x2", "trajectory", 1.0, 0.1)])


def damaged(folder: Path) -> Any:
    (folder / "budget.db").write_text("no database")
    return sv.Ledger(folder / "budget.db").accounts()


def foreign(folder: Path) -> Any:
    with contextlib.closing(sqlite3.connect(folder / "budget.db")) as other:
        other.execute("CREATE TABLE t (x)")
    return sv.Ledger(folder / "budget.db").accounts()


BUDGETS = [
    Refusal("an agent without a name", lambda f: ledger(f).grant("", **GRANT), INPUT, ("agent", "name")),
    Refusal("a budget of epsilon 0", lambda f: ledger(f).grant("x2", **(GRANT | {"epsilon": 0.0})), INPUT, ("epsilon", "positive", "0")),
    Refusal("a budget for an unknown kind", lambda f: ledger(f).grant("x2", **(GRANT | {"hide": "nearby"})), INPUT, ("hide", "trajectory", "nearby")),
    Refusal("a budget without a radius", lambda f: ledger(f).grant("x2", **(GRANT | {"radius": None})), INPUT, ("radius", "trajectory")),
    Refusal("a radius for everything", lambda f: ledger(f).grant("x2", **(GRANT | {"hide": "everything"})), INPUT, ("radius", "everything")),
    Refusal("a radius beyond all scales", lambda f: ledger(f).grant("x2", **(GRANT | {"radius": 1e300})), INPUT, ("radius", "1e+300")),
    Refusal("a cost without a budget", lambda f: ledger(f).spend("r", [p.charge("x9", "trajectory", 1.0, 0.1)]), sv.errors.BudgetError, ("x9", "grant|budget")),
    Refusal("a cost beyond the budget", lambda f: spent(f).spend("r", [p.charge("x1", "trajectory", 1.0, 0.5)]), sv.errors.BudgetError, ("x1", "0.5", "nothing was recorded")),
    Refusal("a cost of another kind", of_another_kind, sv.errors.BudgetError, ("x2", "everything", "trajectory")),
    Refusal("a run recorded with other costs", lambda f: spent(f).spend("one", [p.charge("x1", "trajectory", 1.0, 0.1)]), sv.errors.BudgetError, ("one", "run_id")),
    Refusal("an agent charged twice", lambda f: ledger(f).spend("r", [p.charge("x1", "trajectory", 1.0, 0.1)] * 2), INPUT, ("x1", "twice")),
    Refusal("a budget below what is spent", lambda f: spent(f).grant("x1", **(GRANT | {"epsilon": 0.1})), sv.errors.BudgetError, ("x1", "spent", "more")),
    Refusal("a ledger that is text", damaged, PRIVACY, ("budget.db", "ledger", "released|restore")),
    Refusal("a ledger that is another database", foreign, PRIVACY, ("budget.db", "ledger", "restore|choose")),
    Refusal("a run without agents", lambda f: ledger(f).spend("r", []), INPUT, ("run_id", "agent")),
    Refusal("a run without a name", lambda f: ledger(f).spend("", [p.charge("x1", "trajectory", 1.0, 0.1)]), INPUT, ("run_id", "agent")),
    Refusal("the account of no agent", lambda f: ledger(f).account("x9"), sv.errors.BudgetError, ("x9", "grant|budget")),
    Refusal("a cost that is negative", lambda f: p.charge("x1", "trajectory", 1.0, -0.1), INPUT, ("mu", "x1", "-0.1")),
    Refusal("a cost of no agent", lambda f: p.charge("", "trajectory", 1.0, 0.1), INPUT, ("agent", "name")),
    Refusal("a ledger in no folder", lambda f: sv.Ledger(f / "no" / "budget.db").grant("x1", **GRANT), sv.SottovoceError, ("budget.db", "No such file|created|unable")),
]  # fmt: skip


@pytest.mark.parametrize("row", listed(CERTIFICATES + PLANS))
def test_what_cannot_be_promised_is_refused_by_name(row: Refusal) -> None:
    check(row)


@pytest.mark.parametrize("row", listed(BUDGETS))
def test_what_no_budget_covers_is_refused_by_name(row: Refusal, tmp_path: Path) -> None:
    check(row, tmp_path)
