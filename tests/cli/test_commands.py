"""What the behaviour suite leaves to the command line's own tests: options, data, start-up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sottovoce as sv
from sottovoce.cli.accounts import grant_command
from sottovoce.errors import BudgetError
from sottovoce.privacy.charge import Charge, Protected
from sottovoce.privacy.ledger import Ledger

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "examples" / "paper"
COMMAND = [sys.executable, "-c", "from sottovoce.cli import main; main()"]


def run(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    words = [*COMMAND, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def run_json(*arguments: str | Path, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


def test_simulate_says_at_once_what_it_does_and_keeps_standard_output_clean() -> None:
    words = [*COMMAND, "simulate", str(PAPER), "--rounds", "20", "--json"]
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
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert before
    assert "numpy" not in before  # said before anything heavy was loaded, hence within a second
    assert json.loads(out)["rounds"] == 20


def test_options_go_before_the_privacy_table(tmp_path: Path) -> None:
    folder = line_folder(tmp_path / "line")
    options = ("--hide", "offset", "--radius", "0.2", "--epsilon", "3", "--delta", "0.01")
    data = run_json("simulate", folder, "--rounds", "30", *options)
    assert "(3, 0.01)-differentially private" in data["promise"]
    assert "an offset of at most 0.2 in every one of 30 rounds" in data["promise"]
    assert [(row["name"], row["scale"]) for row in data["constraints"]] == [("g1", 1), ("g2", 3)]


def test_the_papers_method_gives_the_papers_sigmas() -> None:
    data = run_json("plan", PAPER, "--method", "paper")
    factor = 1.7563398731
    sigma = {o["name"]: o["sigma"] for o in data["outputs"]}
    values = [sigma[f"g{j}"] for j in range(1, 5)]
    assert values == pytest.approx([factor * 472.674613] * 4, rel=1e-8)
    assert sigma["d g1 / d x3"] == pytest.approx(2 * factor, rel=1e-8)
    assert not any(o["column"] == 0 for o in data["outputs"])


def line_folder(folder: Path) -> Path:
    """The problem of tests/study/test_compare.py."""
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


def test_compare_writes_what_it_prints_with_the_points_of_its_curves(tmp_path: Path) -> None:
    folder, out = line_folder(tmp_path / "line"), tmp_path / "out"
    data = run_json("compare", folder, "--rounds", "30,120", "--runs", "10", "--out", out)
    assert [(row["plan"], row["rounds"], row["algorithm"]) for row in data["rows"]] == [
        ("paper's method, certified", 30, "Tikhonov"),
        ("paper's method, certified", 120, "Tikhonov"),
        *(("joint", count, name) for count in (30, 120) for name in ("DualAveraging", "Tikhonov")),
    ]
    assert {row["rounds"] for row in data["grid"]} == {45, 55, 67, 81}
    assert json.loads((out / "compare.json").read_text()) == data
    assert (out / "compare.png").stat().st_size > 20_000
    there = sv.compare(sv.Problem.load(folder), rounds=[120], runs=10)
    (mine,) = (row for row in there.rows if row.algorithm == "DualAveraging")
    assert mine.x == data["rows"][-2]["x"]  # the longest plan covers the same rounds


def test_an_audit_names_its_agent_by_label_or_from_1() -> None:
    few = ("--runs", "100", "--rounds", "4")
    named = run_json("audit", "gallery:paper", "--agent", "x3", *few)
    assert (named["agent"], named["name"]) == (3, "x3")
    assert run_json("audit", PAPER, "--agent", "3", *few)["name"] == "x3"


def test_a_ledger_rounds_what_is_spent_up_and_what_remains_down(tmp_path: Path) -> None:
    file = tmp_path / "budget.db"
    grant_command(file, ["x1"], "ln(3)", "0.05", "trajectory", "0.5")
    cost = Charge(agent="x1", protected=Protected("trajectory", 1.0), mu=1 / 3, allowance=0.0)
    Ledger(file).spend("run", [cost])
    (account,) = run_json("ledger", "show", file)
    assert account["spent"] == pytest.approx(1 / 6)
    assert account["spent_per_radius"] == pytest.approx(1 / 3)
    assert account["remaining"] == pytest.approx(0.778587, abs=1e-6)
    shown = run("ledger", "show", file).stdout
    for cell in ("trajectory", "0.5", "1.0987, 0.05", "0.16667", "0.33334", "0.77858"):
        assert f" {cell} " in shown
    with pytest.raises(BudgetError, match="bounds nothing there"):
        grant_command(file, ["x1"], "1", "0.05", "everything")


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
