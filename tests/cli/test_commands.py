from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import sottovoce as sv
from sottovoce.cli.app import application
from sottovoce.cli.budgets import grant_command
from sottovoce.cli.state import plan_command
from sottovoce.errors import BudgetError, InputError, PrivacyError
from sottovoce.privacy.charge import Charge, Protected
from sottovoce.privacy.ledger import Ledger

ROOT = Path(__file__).parents[2]
PAPER, COUPLED = (ROOT / "examples" / name for name in ("paper", "coupled"))


def run(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", "from sottovoce.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def run_json(*arguments: str | Path, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


def registered() -> dict[str, Any]:
    """Every command that can be run, such as ``ledger show``."""
    found: dict[str, Any] = {}
    for name, command in get_command(application()).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {"": command})
        found |= {f"{name} {sub}".strip(): one for sub, one in inner.items()}
    return found


@pytest.mark.parametrize("command", registered())
def test_every_command_has_an_example(command: str) -> None:
    assert f"Example: sottovoce {command} " in registered()[command].help


def test_help_shows_the_example_on_a_terminal() -> None:
    text = " ".join(run("gateway", "--help").stdout.replace("│", " ").split())
    assert "Example: sottovoce gateway FOLDER --agents 1-250" in text


def test_solve_says_at_once_that_it_compiles_and_keeps_standard_output_clean() -> None:
    words = [sys.executable, "-c", "from sottovoce.cli import main; main()", "simulate", str(PAPER),
             "--rounds", "20", "--json"]  # fmt: skip
    heavy = {"sympy", "llvmlite", "numpy"}
    with subprocess.Popen(
        [words[0], "-X", "importtime", *words[1:]],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        before = []
        for line in process.stderr:
            if line.startswith("certifying and planning"):
                break
            before.append(line.rpartition("|")[2].strip())
        loaded = heavy & set(before)
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert before
    assert loaded == set()  # it was said before anything heavy was loaded, hence within a second
    assert json.loads(out)["rounds"] == 20


def test_the_version_is_the_package_s() -> None:
    assert run("--version").stdout == f"sottovoce {sv.__version__}\n"
    assert sv.__version__ == metadata.version("sottovoce")


def test_a_shell_completes_commands_and_their_options() -> None:
    def completed(words: str, place: int) -> list[str]:
        asked = {"_SOTTOVOCE_COMPLETE": "complete_bash", "COMP_WORDS": words}
        code = "from sottovoce.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-c", f"import sys; sys.argv[0] = 'sottovoce'; {code}"],
            env=os.environ | asked | {"COMP_CWORD": str(place)},
            capture_output=True, text=True, timeout=60, check=False,
        ).stdout.split()  # fmt: skip

    assert completed("sottovoce si", 1) == ["simulate"]
    assert completed("sottovoce simulate --eps", 2) == ["--epsilon"]


def test_options_of_solve_go_before_the_privacy_table(tmp_path: Path) -> None:
    folder = line_folder(tmp_path / "line")
    options = ("--hide", "offset", "--radius", "0.2", "--epsilon", "3", "--delta", "0.01")
    data = run_json("simulate", folder, "--rounds", "30", *options)
    assert "(3, 0.01)-differentially private" in data["promise"]
    assert "an offset of at most 0.2 in every one of 30 rounds" in data["promise"]
    assert [row["name"] for row in data["constraints"]] == ["g1", "g2"]
    assert all(
        row["scale"] == bound for row, bound in zip(data["constraints"], (1, 3), strict=True)
    )


def test_check_reports_every_part_of_the_certificate() -> None:
    data = run_json("check", PAPER)
    assert data["holds"] is True
    assert {a["status"] for a in data["assumptions"]} <= {"proven", "numerical"}
    assert len(data["sums"]) == 4
    assert data["sensitivity"]["upper"][0][:4] == [1.0, 1.0, 1.0, 0.0]
    assert data["domain"][5]["upper"][0] == pytest.approx(2.28, abs=0.01)
    text = run("check", PAPER).stdout
    assert "Slater" in text
    assert "proven" in text


def test_check_fails_with_exit_code_1_where_an_assumption_fails(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "problem.toml").write_text(
        "agents = [{lower = -1, upper = 1}, {lower = -1, upper = 1}]\n"
        'constraints = ["x1*x2 <= 0.5"]\n'
    )
    for i in (1, 2):
        (tmp_path / f"agents/{i}.toml").write_text(f'objective = "x{i}**2"\n')
    data = run_json("check", tmp_path, code=1)
    failing = next(a for a in data["assumptions"] if a["name"] == "convexity of g1")
    assert failing["status"] == "fails"
    assert failing["witness"] is not None
    refused = run("plan", tmp_path, "--epsilon", "1", "--delta", "0.1", "--radius", "1", code=2)
    assert "must be convex" in refused.stderr


def test_plan_gives_the_promised_json() -> None:
    data = run_json("plan", PAPER, "--epsilon", "ln(3)", "--delta", "0.05", "--radius", "1")
    assert [o["kind"] for o in data["outputs"]] == ["sum"] * 4
    assert all(o["sigma"] / 2**26 == o["grid"] > 0 for o in data["outputs"])
    assert data["hide"] == "trajectory"
    assert [agent["radius"] for agent in data["agents"]] == [1.0] * 7
    for agent in data["agents"]:
        assert agent["delta"] <= 0.05
        assert agent["epsilon"] <= math.log(3) * (1 + 1e-9)


def test_the_papers_method_gives_the_papers_sigmas() -> None:
    data = run_json("plan", PAPER, "--method", "paper")
    factor = 1.7563398731
    sigma = {o["name"]: o["sigma"] for o in data["outputs"]}
    values = [sigma[f"g{j}"] for j in range(1, 5)]
    assert values == pytest.approx([factor * 472.674613] * 4, rel=1e-8)
    assert sigma["d g1 / d x3"] == pytest.approx(2 * factor, rel=1e-8)
    assert not any(o["column"] == 0 for o in data["outputs"])


def test_plan_says_what_is_hidden_and_what_is_not() -> None:
    text = run("plan", PAPER, "--rounds", "500000").stdout
    assert "a constant offset of only 0.0014 over 500,000 rounds" in text
    assert "every other agent" in text
    assert "the cloud itself" in text


def test_advise_gives_rows_a_line_and_a_figure(tmp_path: Path) -> None:
    data = run_json(
        "advise", "gallery:paper", "--epsilon", "0.5,2", "--radius", "0.01", "--hide", "offset",
        "--plot", tmp_path / "advice.png",
    )  # fmt: skip
    tight, loose = data["rows"]
    assert tight["predicted"]["x"] > loose["predicted"]["x"]
    assert tomllib.loads(data["recommended"])["privacy"]["hide"] == "offset"
    assert (tmp_path / "advice.png").stat().st_size > 10_000


def test_a_useless_answer_is_warned_of_and_strictly_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan_command(PAPER, hide="offset", rounds=200)
    assert "THE ANSWER WILL BE USELESS" in capsys.readouterr().err
    with pytest.raises(PrivacyError, match="an answer must be worth something, got a plan for"):
        plan_command(PAPER, hide="offset", rounds=200, strict=True)
    plan_command(PAPER, hide="trajectory", radius="0.01", rounds=2_000, strict=True)
    assert "USELESS" not in capsys.readouterr().err


def line_folder(folder: Path) -> Path:
    """The problem of tests/study/test_compare.py, so that it is compiled once."""
    (folder / "agents").mkdir(parents=True)
    (folder / "problem.toml").write_text(
        f"agents = [{', '.join(['{lower = -2, upper = 2}'] * 3)}]\n"
        'constraints = ["x1 + x2 <= 1", "x2 + x3 <= 3"]\n'
        "privacy = {epsilon = 1, delta = 0.05, radius = 0.1}\n"
        "schedule = {gamma_bar = 0.05}\n"
    )
    for i, objective in enumerate(("(x1 - 1)**2", "(x2 - 1)**2", "(x3 + 0.5)**4")):
        (folder / f"agents/{i + 1}.toml").write_text(f'objective = "{objective}"\n')
    return folder


def test_compare_holds_algorithms_and_plans_against_the_limit(tmp_path: Path) -> None:
    folder, out = line_folder(tmp_path / "line"), tmp_path / "out"
    data = run_json("compare", folder, "--rounds", "30,120", "--runs", "10", "--out", out)
    assert [(row["plan"], row["rounds"], row["algorithm"]) for row in data["rows"]] == [
        (name, count, algorithm)
        for name in ("paper's method, certified", "joint")
        for count in (30, 120)
        for algorithm in ("DualAveraging", "Tikhonov")
        if (name, algorithm) != ("paper's method, certified", "DualAveraging")
    ]
    for row in data["rows"]:
        assert row["efficiency_x"] == pytest.approx(row["x"] / row["limit_x"])
        assert row["failed"] == 0
    assert {row["rounds"] for row in data["grid"]} == {45, 55, 67, 81}
    assert data["refusals"] == []
    assert json.loads((out / "compare.json").read_text()) == data
    assert (out / "compare.png").stat().st_size > 20_000
    text = run("compare", folder, "--rounds", "120", "--runs", "10").stdout
    last = data["rows"][-2]
    # The longest plan covers the same rounds, so the same numbers come out.
    assert f"{last['efficiency_x']:.2f}" in text
    assert f"{last['price']:#.3g}" in text


def test_audit_finds_no_more_than_claimed(tmp_path: Path) -> None:
    few = ("--runs", "100", "--rounds", "8")
    data = run_json("audit", PAPER, "--agent", "3", *few, "--out", tmp_path)
    assert data["passed"] is True
    assert data["measured_mu"] <= data["played_mu"] <= data["claimed_mu"]
    assert 0.9 < data["played_share"] <= 1.0
    assert data["noise"]["passed"] is True
    assert data["told"] == ""
    assert (tmp_path / "audit.png").stat().st_size > 10_000


def test_ledger_grants_and_shows(tmp_path: Path) -> None:
    file = tmp_path / "budget.db"
    promise = ["--agent", "x1", "--epsilon", "ln(3)", "--delta", "0.05"]
    granted = run("ledger", "grant", file, *promise, "--hide", "trajectory", "--radius", "0.5")
    assert "x1" in granted.stdout
    cost = Charge(agent="x1", protected=Protected("trajectory", 1.0), mu=1 / 3, allowance=0.0)
    Ledger(file).spend("run", [cost])
    account = run_json("ledger", "show", file)[0]
    assert (account["agent"], account["hide"], account["radius"]) == ("x1", "trajectory", 0.5)
    assert account["spent"] == pytest.approx(1 / 6)
    assert account["spent_per_radius"] == pytest.approx(1 / 3)
    shown = run("ledger", "show", file).stdout
    # spent 1/6 and per radius 1/3 rounded up, what remains of 0.7962... rounded down
    for cell in ("trajectory", "0.5", "1.0987, 0.05", "0.16667", "0.33334", "0.77858"):
        assert f" {cell} " in shown
    assert account["remaining"] == pytest.approx(0.778587, abs=1e-6)
    with pytest.raises(BudgetError, match="bounds nothing there"):
        grant_command(file, ["x1"], "1", "0.05", "everything")
    with pytest.raises(InputError, match="radius must be one number for all agents"):
        grant_command(file, ["x1"], "1", "0.05", "trajectory", "1,2")
    assert "no such file" in run("ledger", "show", tmp_path / "none.db", code=2).stderr


def test_paper_reports_published_and_recomputed_side_by_side(tmp_path: Path) -> None:
    data = run_json("paper", "--runs", "4", "--out", tmp_path)
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "nowhere"], "must exist"),
        (["plan", PAPER, "--epsilon", "-1"], "epsilon must be positive"),
        (["plan", PAPER, "--delta", "1.5"], "delta must lie in (0, 1)"),
        (["plan", PAPER, "--radius", "0"], "radius must be positive"),
        (["plan", PAPER, "--radius", "1,2"], "one per agent (7)"),
        (["plan", PAPER, "--hide", "offset"], "rounds must be given"),
        (["plan", PAPER, "--hide", "nearby"], "hide must be one of"),
        (["plan", PAPER, "--epsilon", "__import__('os')"], "--epsilon"),
        (["plan", COUPLED], "epsilon must be given"),
        (["audit", PAPER, "--agent", "8"], "agent must be a whole number from 1 to 7"),
        (["compare", PAPER, "--rounds", "0,abc"], "whole numbers of at least 1, separated by"),
        (["compare", PAPER, "--rounds", "5,0"], "got --rounds '5,0'"),
        (["compare", PAPER, "--out", PAPER / "problem.toml"], "--out must be a folder"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    arguments: list[str | Path], message: str
) -> None:
    done = run(*arguments, code=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
