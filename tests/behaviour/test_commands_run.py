"""What commands print, for people and for scripts."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import doors as d
import problems as p
import pytest

import sottovoce as sv

pytestmark = pytest.mark.core
COMMANDS = [
    "check", "plan", "advise", "compare", "simulate", "plot", "audit", "cloud", "helper", "agent",
    "gateway", "relay", "status", "demo", "paper", "identity init", "identity issue",
    "identity revoke", "ledger grant", "ledger show",
]  # fmt: skip


@pytest.fixture(scope="module")
def bakeries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return p.write_folder(tmp_path_factory.mktemp("bakeries"), p.BAKERIES)


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    text = (d.ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shown(page: str, command: str) -> str:
    """What a page shows below a command."""
    for block in blocks(page, "console"):
        told, _, rest = block.partition("\n")
        if told == f"$ {command}":
            return rest
    raise AssertionError(f"{page} has no {command}")


def matches(printed: str, expected: str) -> bool:
    """Whether a text is as expected, where ``...`` may be anything."""
    lines = "\n".join(line.rstrip() for line in printed.splitlines()) + "\n"
    pattern = ".*?".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, lines, re.DOTALL) is not None


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    told = d.run_cli(*command.split(), "--help")
    assert told.code == 0
    assert f"Example: sottovoce {command} " in " ".join(told.out.replace("│", " ").split())


def test_the_list_of_commands_is_complete() -> None:
    told = d.run_cli("--help").out
    for command in COMMANDS:
        assert command.split()[0] in told


def test_the_version_is_the_packages() -> None:
    assert d.run_cli("--version").out == f"sottovoce {sv.__version__}\n"


def test_a_shell_completes_commands_and_options() -> None:
    asked = {
        "_SOTTOVOCE_COMPLETE": "complete_bash",
        "COMP_WORDS": "sottovoce pla",
        "COMP_CWORD": "1",
    }
    code = "import sys; sys.argv[0] = 'sottovoce'; from sottovoce.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["plan"]


@pytest.mark.parametrize("command", ["check", "plan", "advise"])
def test_a_command_of_the_tutorial_prints_what_the_tutorial_shows(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p.write_folder(tmp_path / "bakeries", p.BAKERIES)
    monkeypatch.chdir(tmp_path)
    words = {"advise": "advise bakeries --epsilon 1"}.get(command, f"{command} bakeries")
    # A process of its own: the console of this one keeps the width of its first use.
    done = subprocess.run(
        [sys.executable, "-c", "from sottovoce.cli import main; main()", *words.split()],
        env=os.environ | {"COLUMNS": "110"}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = shown("docs/tutorial/own-problem.md", f"sottovoce {words}")
    assert matches(done.stdout, expected), done.stdout


def test_check_tells_scripts_every_part_of_a_certificate() -> None:
    told = d.run_cli("check", d.PAPER, "--json").json
    assert told["holds"] is True
    assert len(told["sums"]) == 4
    assert told["sensitivity"]["upper"][0][:4] == [1.0, 1.0, 1.0, 0.0]
    assert told["domain"][5]["upper"][0] == pytest.approx(2.28, abs=0.01)
    assert {"proven", "numerical"} == {a["status"] for a in told["assumptions"]}


def test_check_keeps_the_original_boxes_where_asked() -> None:
    told = d.run_cli("check", d.PAPER, "--original", "--json").json
    assert told["domain"] == told["original_domain"]
    assert (
        told["sensitivity"]["largest"]
        > d.run_cli("check", d.PAPER, "--json").json["sensitivity"]["largest"]
    )


def test_check_ends_with_1_where_an_assumption_fails(tmp_path: Path) -> None:
    d.save_problem(p.two_valleys(), tmp_path / "p")
    done = d.run_cli("check", tmp_path / "p", "--json")
    assert done.code == 1
    failing = {a["name"]: a for a in done.json["assumptions"] if a["status"] == "fails"}
    assert failing["convexity of the objective of valve"]["witness"] is not None


def test_plan_tells_scripts_the_noise_and_every_promise() -> None:
    told = d.run_cli("plan", d.PAPER, "--epsilon", "ln(3)", "--delta", "0.05", "--radius", "1").out
    assert "3.64469" in told
    data = d.run_cli("plan", d.PAPER, "--epsilon", "ln(3)", "--json").json
    assert [o["kind"] for o in data["outputs"]] == ["sum"] * 4
    assert all(o["sigma"] / 2**26 == o["grid"] for o in data["outputs"])
    for agent in data["agents"]:
        assert agent["epsilon"] <= math.log(3) * (1 + 1e-9)


def test_plan_takes_a_number_for_each_agent(bakeries: Path) -> None:
    data = d.run_cli("plan", bakeries, "--epsilon", "1,2,3", "--radius", "2,1,1", "--json").json
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
    done = d.run_cli("plan", bakeries, *options)
    assert done.code == 0, done.err
    assert any(one in done.out for one in word.split("|")), done.out


def test_a_useless_answer_is_warned_of_and_a_good_one_is_not(bakeries: Path) -> None:
    useless = d.run_cli("plan", bakeries, "--hide", "everything", "--rounds", "2000")
    assert useless.code == 0
    assert "USELESS" in useless.err.upper()
    fine = d.run_cli("plan", bakeries, "--strict", "--rounds", "2000")
    assert fine.code == 0
    assert "USELESS" not in fine.err.upper()


def test_solve_reports_answers_constraints_and_the_promise(bakeries: Path, tmp_path: Path) -> None:
    options = ("--rounds", "200", "--runs", "8", "--seed", "4", "--out", tmp_path / "out")
    data = d.run_cli("simulate", bakeries, *options, "--json").json
    assert data["rounds"] == 200
    assert "(1, 0.01)-differentially private" in data["promise"]
    assert [row["name"] for row in data["constraints"]] == ["connection"]
    assert data["constraints"][0]["scale"] == 30
    assert (tmp_path / "out" / "convergence.png").stat().st_size > 5_000
    result = d.load_result(tmp_path / "out" / "result.npz")
    noise = d.plan(
        d.load_problem(bakeries), epsilon=1, delta=0.01, hide=sv.Trajectory(radius=2, rounds=200)
    )
    same = d.simulate(d.load_problem(bakeries), noise, rounds=200, runs=8, seed=4)
    assert abs(result.x - same.x).max() < 1e-9


def test_solve_keeps_standard_output_for_the_result(bakeries: Path) -> None:
    done = d.run_cli("simulate", bakeries, "--rounds", "20", "--json")
    assert json.loads(done.out)["rounds"] == 20
    text = d.run_cli("simulate", bakeries, "--rounds", "20").out
    assert "north" in text
    assert "not private" in text


def test_advise_gives_rows_a_line_and_a_figure(tmp_path: Path) -> None:
    done = d.run_cli(
        "advise", "gallery:paper", "--epsilon", "0.5,2", "--radius", "0.01", "--hide", "offset",
        "--plot", tmp_path / "advice.png", "--json",
    )  # fmt: skip
    tight, loose = done.json["rows"]
    assert tight["predicted"]["x"] > loose["predicted"]["x"]
    assert tomllib.loads(done.json["recommended"])["privacy"]["hide"] == "offset"
    assert (tmp_path / "advice.png").stat().st_size > 10_000


def test_advise_measures_where_asked(bakeries: Path) -> None:
    words = ("advise", bakeries, "--epsilon", "1", "--hide", "trajectory", "--rounds", "200")
    rows = d.run_cli(*words, "--simulate", "--json").json["rows"]
    assert rows[0]["measured"]["x"] == pytest.approx(rows[0]["predicted"]["x"], rel=0.6)


@pytest.mark.slow
def test_audit_passes_and_draws(bakeries: Path, tmp_path: Path) -> None:
    few = ("--runs", "100", "--rounds", "8", "--out", tmp_path)
    data = d.run_cli("audit", bakeries, "--agent", "3", *few, "--json").json
    assert data["passed"] is True
    assert data["played_mu"] <= data["claimed_mu"]
    assert data["noise"]["passed"] is True
    assert (tmp_path / "audit.png").stat().st_size > 10_000


def test_compare_holds_plans_against_the_limit(bakeries: Path, tmp_path: Path) -> None:
    done = d.run_cli("compare", bakeries, "--rounds", "60", "--runs", "8", "--json")
    rows = done.json["rows"]
    assert {"DualAveraging", "Tikhonov"} == {row["algorithm"] for row in rows}
    for row in rows:
        assert row["efficiency_x"] == pytest.approx(row["x"] / row["limit_x"])


def test_a_ledger_is_granted_and_shown(tmp_path: Path) -> None:
    book = tmp_path / "budget.db"
    promise = ("--epsilon", "ln(3)", "--delta", "0.05", "--hide", "trajectory", "--radius", "0.5")
    assert d.run_cli("ledger", "grant", book, "--agent", "x1", *promise).code == 0
    sv.Ledger(book).spend("run", [d.charge("x1", "trajectory", 1.0, 1 / 3)])
    (account,) = d.run_cli("ledger", "show", book, "--json").json
    assert (account["agent"], account["hide"], account["radius"]) == ("x1", "trajectory", 0.5)
    assert account["spent"] == pytest.approx(1 / 6)
    text = d.run_cli("ledger", "show", book).out
    for cell in ("trajectory", "0.16667", "0.33334", "0.77858"):  # spent up, what remains down
        assert cell in text


def test_identities_are_made_issued_and_revoked(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    made = ("identity", "init", "--dir", keys, "--agents", "3", "--gateway", "2-3", "--host", "a.b")
    assert d.run_cli(*made).code == 0
    assert {path.name for path in (keys / "agents").iterdir()} == {"1", "2-3"}
    certificate = keys / "agents" / "1" / "cert.pem"
    before = certificate.read_bytes()
    assert d.run_cli("identity", "revoke", certificate, "--dir", keys).code == 0
    assert (keys / "revoked.txt").read_text().strip()
    assert d.run_cli("identity", "issue", "--dir", keys, "--agents", "1").code == 0
    assert certificate.read_bytes() != before


# The README and the pages


def readme_lines() -> tuple[str, list[str]]:
    text = (d.ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    printed = re.search(r"^prints\n\n```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert printed is not None
    return code, printed[1].splitlines()


def near(line: str, expected: str, tolerance: float) -> bool:
    """Whether two lines have the same words, and numbers that differ by little."""
    number = re.compile(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?")
    words = [number.sub("#", one) for one in (line, expected)]
    if re.sub(r"\s+", " ", words[0]) != re.sub(r"\s+", " ", words[1]):
        return False
    pairs = zip(
        *([float(n.replace(",", "")) for n in number.findall(o)] for o in (line, expected)),
        strict=True,
    )
    return all(abs(a - b) <= tolerance for a, b in pairs)


def test_the_readme_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    code, expected = readme_lines()
    exec(compile(code, "README.md", "exec"), {"__name__": "__readme__"})  # noqa: S102
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(expected)
    for line, wanted in zip(printed, expected, strict=True):
        if line.startswith("after 2,000 rounds"):
            assert near(line, wanted, 0.4), line  # bits may move: six times the limit of 0.06
        else:
            assert line == wanted


EXACT = [
    "docs/how-to/certificate.md", "docs/how-to/hide.md", "docs/reference/problems.md",
]  # fmt: skip


@pytest.mark.parametrize("page", EXACT)
def test_the_python_of_a_page_runs_and_prints_what_it_shows(
    page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (d.ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(python|text)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"__name__": "__page__"}
    printed = ""
    for language, block in found:
        if language == "python":
            exec(compile(block, page, "exec"), names)  # noqa: S102
            printed = capsys.readouterr().out
        elif printed:
            assert matches(printed, block), printed


FIELD = {
    "rates": "abilene_rates", "dispatch": "dispatch_30_bus", "ev-fleet": "ev_fleet",
    "robots": "robots_radio_range", "regression": "private_regression",
    "load-shedding": "load_shedding",
}  # fmt: skip


def alike(line: str, expected: str) -> bool:
    """Whether a line of results says the same, with numbers that noise may move."""
    number = re.compile(r"-?\d[\d,]*\.?\d*")
    if number.sub("#", line) != number.sub("#", expected):
        return False
    for a, b in zip(number.findall(line), number.findall(expected), strict=True):
        x, y = (float(n.replace(",", "")) for n in (a, b))
        if abs(x - y) > max(0.25 * abs(y), 0.02):
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELD)
def test_a_problem_of_the_field_costs_what_its_page_says(name: str) -> None:
    """Counts and medians of 16 to 64 runs, held within a quarter."""
    done = subprocess.run(
        [sys.executable, str(d.EXAMPLES / f"{FIELD[name]}.py")],
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = blocks(f"docs/how-to/{name}.md", "text")[0].splitlines()
    printed = done.stdout.splitlines()
    assert len(printed) == len(expected)
    for line, wanted in zip(printed, expected, strict=True):
        assert alike(line, wanted), line


@pytest.mark.slow
def test_the_demo_solves_the_papers_problem_with_real_processes(tmp_path: Path) -> None:
    done = subprocess.run(
        [*d.COMMAND, "demo", "--rounds", "60", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=200, check=False,
        env=os.environ | {"COLUMNS": "110"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for word in ("after 60 private rounds", "differentially private or better", "Not covered"):
        assert word in done.stdout
    assert (tmp_path / "demo.png").stat().st_size > 10_000
