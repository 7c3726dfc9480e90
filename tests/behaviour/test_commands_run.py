"""What commands print, for people and for scripts."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import problems as p
import pytest
from commands import COMMAND, PAPER, run_cli

import sottovoce as sv

pytestmark = pytest.mark.core
COMMANDS = [
    "check", "plan", "advise", "compare", "simulate", "plot", "audit", "cloud", "helper", "agent",
    "gateway", "relay", "status", "demo", "paper", "identity init", "identity issue",
    "identity revoke", "ledger grant", "ledger show", "ledger forecast", "conformance cloud",
    "conformance agent", "conformance files",
]  # fmt: skip


@pytest.fixture(scope="module")
def bakeries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return p.write_folder(tmp_path_factory.mktemp("bakeries"), p.BAKERIES)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    output = run_cli(*command.split(), "--help")
    assert output.code == 0
    assert f"Example: sottovoce {command} " in " ".join(output.out.replace("│", " ").split())


def test_the_list_of_commands_is_complete() -> None:
    output = run_cli("--help").out
    for command in COMMANDS:
        assert command.split()[0] in output


def test_the_version_is_the_packages() -> None:
    assert run_cli("--version").out == f"sottovoce {sv.__version__}\n"


def test_a_shell_completes_commands_and_options() -> None:
    completion = {
        "_SOTTOVOCE_COMPLETE": "complete_bash",
        "COMP_WORDS": "sottovoce pla",
        "COMP_CWORD": "1",
    }
    code = "import sys; sys.argv[0] = 'sottovoce'; from sottovoce.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | completion, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["plan"]


def test_check_tells_scripts_every_part_of_a_certificate() -> None:
    output = run_cli("check", PAPER, "--json").json
    assert output["holds"] is True
    assert len(output["sums"]) == 4
    assert output["sensitivity"]["upper"][0][:4] == [1.0, 1.0, 1.0, 0.0]
    assert output["domain"][5]["upper"][0] == pytest.approx(2.28, abs=0.01)
    assert {"proven", "numerical"} == {a["status"] for a in output["assumptions"]}


def test_check_keeps_the_original_boxes_where_asked(tmp_path: Path) -> None:
    p.readme().save(tmp_path / "p")
    kept, shrunk = (
        run_cli("check", tmp_path / "p", *words, "--json").json for words in (("--original",), ())
    )
    assert kept["domain"] == kept["original_domain"] != shrunk["domain"]
    assert kept["sensitivity"]["largest"] > shrunk["sensitivity"]["largest"]


def test_check_ends_with_1_where_an_assumption_fails(tmp_path: Path) -> None:
    p.valves(convex=False).save(tmp_path / "p")
    done = run_cli("check", tmp_path / "p", "--json")
    assert done.code == 1
    failing = {a["name"]: a for a in done.json["assumptions"] if a["status"] == "fails"}
    assert failing["convexity of the objective of valve"]["witness"] is not None


def test_plan_tells_scripts_the_noise_and_every_promise() -> None:
    promise = ("--epsilon", "ln(3)", "--delta", "0.05", "--radius", "1")
    data = run_cli("plan", PAPER, *promise, "--json").json
    assert data["outputs"][0]["sigma"] == pytest.approx(3.64469, rel=1e-5)
    assert [o["kind"] for o in data["outputs"]] == ["sum"] * 4
    assert all(o["sigma"] / 2**26 == o["grid"] for o in data["outputs"])
    for agent in data["agents"]:
        assert agent["epsilon"] <= math.log(3) * (1 + 1e-9)


def test_plan_needs_no_private_file_for_what_is_public(tmp_path: Path) -> None:
    shutil.copy(PAPER / "problem.toml", tmp_path)
    promise = ("--epsilon", "ln(3)", "--delta", "0.05", "--radius", "1", "--rounds", "50", "--json")
    assert run_cli("plan", tmp_path, *promise).code == 2
    outputs = run_cli("plan", tmp_path, "--public", *promise).json["outputs"]
    assert outputs == run_cli("plan", PAPER, *promise).json["outputs"]


def test_plan_takes_a_number_for_each_agent(bakeries: Path) -> None:
    data = run_cli("plan", bakeries, "--epsilon", "1,2,3", "--radius", "2,1,1", "--json").json
    assert [agent["radius"] for agent in data["agents"]] == [2.0, 1.0, 1.0]
    assert data["outputs"][0]["sigma"] == pytest.approx(3.75575582, rel=2e-6)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--method", "paper"), "value"),
        (("--split",), "collude"),
        (("--feasible", "0.9"), "together"),
        (("--feasible", "0.9", "--each-row"), "each constraint"),
        (("--hide", "offset", "--rounds", "100"), "in every one of 100 rounds"),
        (("--hide", "everything", "--rounds", "100"), "everything|any behaviour"),
    ],
)
def test_plan_says_what_each_option_promises(
    options: tuple[str, ...], word: str, bakeries: Path
) -> None:
    done = run_cli("plan", bakeries, *options)
    assert done.code == 0, done.err
    assert any(one in done.out for one in word.split("|")), done.out


def test_a_useless_answer_is_warned_of_and_a_good_one_is_not(bakeries: Path) -> None:
    useless = run_cli("plan", bakeries, "--hide", "everything", "--rounds", "2000")
    assert useless.code == 0
    assert "USELESS" in useless.err.upper()
    fine = run_cli("plan", bakeries, "--strict", "--rounds", "2000")
    assert fine.code == 0
    assert "USELESS" not in fine.err.upper()


def test_simulate_reports_answers_rows_and_the_promise(bakeries: Path, tmp_path: Path) -> None:
    options = ("--rounds", "200", "--runs", "8", "--seed", "4", "--out", tmp_path / "out")
    data = run_cli("simulate", bakeries, *options, "--json").json
    assert data["rounds"] == 200
    assert "(1, 0.01)-differentially private" in data["promise"]
    assert [row["name"] for row in data["constraints"]] == ["connection"]
    assert data["constraints"][0]["scale"] == 30
    assert (tmp_path / "out" / "convergence.png").stat().st_size > 5_000
    result = sv.Result.load(tmp_path / "out" / "result.npz")
    noise = sv.plan(
        sv.Problem.load(bakeries), epsilon=1, delta=0.01, hide=sv.Trajectory(radius=2, rounds=200)
    )
    same = sv.simulate(sv.Problem.load(bakeries), noise, rounds=200, runs=8, seed=4)
    assert abs(result.x - same.x).max() < 1e-9


def test_simulate_says_at_once_what_it_does_on_standard_error(bakeries: Path) -> None:
    python, *words = (*COMMAND, "simulate", str(bakeries), "--rounds", "20", "--json")
    with subprocess.Popen(
        [python, "-X", "importtime", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        before = []
        for line in process.stderr:
            if line.startswith("certifying and planning"):
                break
            before.append(line.rpartition("|")[2].strip())
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert before
    assert "numpy" not in before  # said before anything heavy was loaded, hence within a second
    assert json.loads(out)["rounds"] == 20
    text = run_cli("simulate", bakeries, "--rounds", "20").out
    assert "north" in text
    assert "not private" in text


def test_options_go_before_the_privacy_table(bakeries: Path) -> None:
    options = ("--hide", "offset", "--radius", "0.2", "--epsilon", "3", "--delta", "0.02")
    data = run_cli("simulate", bakeries, "--rounds", "30", *options, "--json").json
    assert "(3, 0.02)-differentially private" in data["promise"]
    assert "an offset of at most 0.2 in every one of 30 rounds" in data["promise"]


def test_advise_gives_rows_a_line_and_a_figure(tmp_path: Path) -> None:
    promise = ("--epsilon", "0.5,2", "--radius", "0.01", "--hide", "offset")
    figure = ("--plot", tmp_path / "advice.png")
    done = run_cli("advise", "gallery:hs43", *promise, *figure, "--json")
    tight, loose = done.json["rows"]
    assert tight["predicted"]["x"] > loose["predicted"]["x"]
    assert tomllib.loads(done.json["recommended"])["privacy"]["hide"] == "offset"
    assert (tmp_path / "advice.png").stat().st_size > 10_000


def test_advise_measures_where_asked(bakeries: Path) -> None:
    words = ("advise", bakeries, "--epsilon", "1", "--hide", "trajectory", "--rounds", "200")
    rows = run_cli(*words, "--simulate", "--json").json["rows"]
    assert rows[0]["measured"]["x"] == pytest.approx(rows[0]["predicted"]["x"], rel=0.6)


def test_an_audit_names_its_agent_by_label_or_from_1(bakeries: Path) -> None:
    few = ("--runs", "100", "--rounds", "2", "--json")
    named = run_cli("audit", bakeries, "--agent", "west", *few).json
    assert (named["agent"], named["name"]) == (3, "west")
    assert run_cli("audit", bakeries, "--agent", "3", *few).json["name"] == "west"


@pytest.mark.slow
def test_audit_passes_and_draws(bakeries: Path, tmp_path: Path) -> None:
    few = ("--runs", "100", "--rounds", "8", "--out", tmp_path)
    data = run_cli("audit", bakeries, "--agent", "3", *few, "--json").json
    assert data["passed"] is True
    assert data["played_mu"] <= data["claimed_mu"]
    assert data["noise"]["passed"] is True
    assert (tmp_path / "audit.png").stat().st_size > 10_000


def test_compare_holds_plans_and_curves_against_the_limit(bakeries: Path, tmp_path: Path) -> None:
    few = ("--rounds", "30,120", "--runs", "10")
    data = run_cli("compare", bakeries, *few, "--out", tmp_path, "--json").json
    assert [(row["plan"], row["rounds"], row["algorithm"]) for row in data["rows"]] == [
        ("paper's method, certified", 30, "Tikhonov"),
        ("paper's method, certified", 120, "Tikhonov"),
        *(("joint", count, name) for count in (30, 120) for name in ("DualAveraging", "Tikhonov")),
    ]
    for row in data["rows"]:
        assert row["efficiency_x"] == pytest.approx(row["x"] / row["limit_x"])
    assert {row["rounds"] for row in data["grid"]} == {45, 55, 67, 81}
    assert json.loads((tmp_path / "compare.json").read_text()) == data
    assert (tmp_path / "compare.png").stat().st_size > 20_000
    there = sv.compare(sv.Problem.load(bakeries), rounds=[120], runs=10)
    (mine,) = (row for row in there.rows if row.algorithm == "DualAveraging")
    assert mine.x == data["rows"][-2]["x"]  # the longest plan covers the same rounds


def test_compare_puts_rivals_and_sources_beside_the_default(bakeries: Path, tmp_path: Path) -> None:
    few = ("--rounds", "30", "--runs", "4", "--with", "hhrw,ndmd,han")
    data = run_cli("compare", bakeries, *few, "--out", tmp_path, "--json").json
    assert [(row["plan"], row["algorithm"]) for row in data["rows"]] == [
        ("own theorem", "HHRW 2016"), ("own theorem", "NDMD 2024"), ("joint", "DualAveraging"),
        ("joint", "HHRW 2016"), ("joint", "NDMD 2024"),
    ]  # fmt: skip
    assert all({"x", "price", "cost", "violation"} <= set(row) for row in data["rows"])
    assert [refusal["plan"] for refusal in data["refusals"]] == ["Han et al. 2017"]
    sources = (tmp_path / "compare.bib").read_text()
    assert [key in sources for key in ("Hsu", "Chua", "Topcu", "Hale")] == [True, True, True, False]
    assert (tmp_path / "compare.png").stat().st_size > 20_000


def test_a_ledger_rounds_what_is_spent_up_and_what_remains_down(tmp_path: Path) -> None:
    book = tmp_path / "budget.db"
    agent = ("ledger", "grant", book, "--agent", "x1", "--delta", "0.05")
    promise = ("--epsilon", "ln(3)", "--hide", "trajectory", "--radius", "0.5")
    assert run_cli(*agent, *promise).code == 0
    sv.Ledger(book).spend("run", [p.charge("x1", "trajectory", 1.0, 1 / 3)])
    (account,) = run_cli("ledger", "show", book, "--json").json
    assert (account["agent"], account["hide"], account["radius"]) == ("x1", "trajectory", 0.5)
    assert account["spent"] == pytest.approx(1 / 6)
    assert account["spent_per_radius"] == pytest.approx(1 / 3)
    assert account["remaining"] == pytest.approx(0.778587, abs=1e-6)
    text = run_cli("ledger", "show", book).out
    for cell in ("trajectory", "0.5", "1.0987, 0.05", "0.16667", "0.33334", "0.77858"):
        assert f" {cell} " in text
    other = run_cli(*agent, "--epsilon", "1", "--hide", "everything")
    assert other.code == 2
    assert "bounds nothing there" in other.err


def test_a_budget_by_period_is_granted_shown_and_forecast(tmp_path: Path) -> None:
    book, agents = tmp_path / "budget.db", [f"--agent=x{i}" for i in range(1, 8)]
    plan = ("--epsilon", "0.5", "--delta", "1e-5", "--hide", "offset", "--radius", "1")
    grant = ("ledger", "grant", book, *agents, "--delta", "1e-5")
    lifetime = ("--epsilon", "10", "--hide", "offset", "--radius", "1")
    assert run_cli(*grant, *lifetime).code == 0
    shown = run_cli(*grant[:-1], "1e-5", "--epsilon", "1", "--per", "day")
    assert shown.code == 0
    assert "all runs that begin within any 24 hours: (1, 1e-05), mu <= 0.268052;" in shown.out
    forecast = ("ledger", "forecast", book, "gallery:paper", *plan, "--rounds", "50")
    told = run_cli(*forecast, "--json")
    assert told.code == 0
    worst = told.json[0]
    assert worst["runs"] == worst["per"]["day"] == 3
    assert worst["in_all"] > 100
    certificate = sv.certify(sv.gallery.paper().cloud)
    hide = sv.Offset(radius=1.0, rounds=50)
    charges = sv.plan(certificate, epsilon=0.5, delta=1e-5, hide=hide).charges()
    for run in range(3):
        assert sv.Ledger(book).unaffordable(charges) == {}
        sv.Ledger(book).spend(f"run {run}", charges)
    told = run_cli(*forecast, "--json")
    assert told.code == 1
    blocked = [agent for agent in told.json if agent["refusal"]]
    assert {agent["agent"] for agent in blocked} == set(sv.Ledger(book).unaffordable(charges))
    assert all(agent["runs"] == 0 and agent["next_at"].endswith("Z") for agent in blocked)
    assert "would exceed its budget of mu" in run_cli(*forecast).out
    (account,) = [a for a in run_cli("ledger", "show", book, "--json").json if a["agent"] == "x1"]
    assert [period["per"] for period in account["periods"]] == ["day"]


def test_identities_are_made_issued_and_revoked(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    init = ("identity", "init", "--dir", keys, "--agents", "3", "--gateway", "2-3", "--host", "a.b")
    assert run_cli(*init).code == 0
    assert {path.name for path in (keys / "agents").iterdir()} == {"1", "2-3"}
    certificate = keys / "agents" / "1" / "cert.pem"
    before = certificate.read_bytes()
    assert run_cli("identity", "revoke", certificate, "--dir", keys).code == 0
    assert (keys / "revoked.txt").read_text().strip()
    assert run_cli("identity", "issue", "--dir", keys, "--agents", "1").code == 0
    assert certificate.read_bytes() != before


@pytest.mark.compiled
def test_paper_reports_published_and_recomputed_side_by_side(tmp_path: Path) -> None:
    data = run_cli("paper", "--runs", "4", "--out", tmp_path, "--json").json
    for key in ("kappa", "k_g", "k_prime", "sigma_sq", "sigma_g_sq", "x_hat", "mu_hat", "errors"):
        assert key in data["published"]
        assert key in data["recomputed"]
    assert data["recomputed"]["kappa"] == pytest.approx(1.7563398731, abs=5e-11)
    assert data["exact_sigma"] == pytest.approx(1.2559236655, abs=5e-11)
    assert data["column_sensitivity_g"] == pytest.approx(333.934292, abs=5e-7)
    assert data["recomputed"]["x_hat"][4] == pytest.approx(-3, abs=5e-3)
    assert set(data["recomputed"]["errors"]) == {"200000", "500000"}
    assert set(data["ensemble"]["500000"]["x"]) == {"0.05", "0.5", "0.95"}
    assert data["limit"]["x"] == pytest.approx(1.43, abs=0.005)
    assert data["limit"]["mu"] == pytest.approx(2.82, abs=0.005)
    assert (tmp_path / "paper.png").stat().st_size > 20_000
