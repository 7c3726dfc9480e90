"""Everything that a file may say wrongly: the file, the line, the requirement and what was got."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import problems as p
import pytest
from refusals import Refusal, check, listed, missing

import sottovoce

pytestmark = pytest.mark.core
sv: Any = sottovoce  # wrong types are refused too

PROBLEM = sv.errors.ProblemError
AGENT, PUBLIC = "agents/1.toml", "problem.toml"
HEAD = p.BAKERIES_TOML


def folder_of(files: dict[str, Any], changed: dict[str, Any]) -> Any:
    def call(folder: Path) -> None:
        sv.Problem.load(p.write_folder(folder, files | changed))

    return call


def bakeries(name: str, file: str, text: Any, *words: str) -> Refusal:
    return Refusal(name, folder_of(p.BAKERIES, {file: text}), PROBLEM, words)


def public(name: str, old: str, new: str, *words: str) -> Refusal:
    assert old in HEAD
    return bakeries(name, PUBLIC, HEAD.replace(old, new, 1), *words)


def own(name: str, text: str, *words: str) -> Refusal:
    return bakeries(name, AGENT, text, *words)


def fleet(name: str, file: str, old: str, new: str, *words: str) -> Refusal:
    text = p.FLEET[file]
    assert old in text
    return Refusal(name, folder_of(p.FLEET, {file: text.replace(old, new, 1)}), PROBLEM, words)


def matrix(name: str, file: str, old: str, new: str, *words: str) -> Refusal:
    text = p.MATRIX[file]
    assert old in text
    return Refusal(name, folder_of(p.MATRIX, {file: text.replace(old, new, 1)}), PROBLEM, words)


DOCUMENTS = [
    Refusal("no folder", lambda f: sv.Problem.load(f / "nowhere"), PROBLEM, ("problem.toml", "exist")),
    Refusal("a path that is a number", lambda f: sv.Problem.load(3), sv.errors.InputError, ("folder", "path", "3")),
    bakeries("no TOML", PUBLIC, "agents = [", "problem.toml", "TOML", "line 1|end"),
    bakeries("no text", PUBLIC, b"\xff\xfe\x00", "problem.toml", "UTF-8"),
    bakeries("TOML that is nested deeply", PUBLIC, "a = " + "[" * 5_000 + "]" * 5_000, "problem.toml", "TOML"),
    bakeries("no agents", PUBLIC, 'constraints = ["x1 <= 1"]\n', "problem.toml", "agents|agent"),
    bakeries("agents that are a number", PUBLIC, "agents = 3\n", "agents", "[[agents]]", "3"),
    bakeries("an agent that is a number", PUBLIC, "agents = [3]\n", "table", "3"),
    public("a key that is not known", "upper = 20", "uper = 20", "problem.toml", "line", "upper", "uper"),
    public("a table that is not known", "[schedule]", "[scheduel]", "problem.toml", "line", "schedule", "scheduel"),
    public("a bound that is text", "lower = 0", 'lower = "0"', "line", "lower", "number", "str"),
    public("a bound that is left out", "lower = 0\n", "", "lower", "agent 1|north", "add"),
    public("bounds that cross", "lower = 0", "lower = 30", "lower", "30", "20", "north"),
    public("a name that is a number", 'name = "north"', "name = 3", "line", "name", "3"),
    public("a name that is a function", 'name = "north"', 'name = "log"', "log", "name"),
    public("a name twice", 'name = "south"', 'name = "north"', "north", "2.toml|twice"),
    public("a dimension 0", "lower = 0", "lower = 0\ndim = 0", "line", "dim", "integer", "0"),
    public("another format", HEAD, "format = 99\n" + HEAD, "format", "99", "newer"),
    public("an expression left out", 'expression = "north + south + west <= 30"\n', "", "expression", "add"),
    public("hard that is text", 'name = "connection"', 'name = "connection"\nhard = "yes"', "hard", "true", "yes"),
    public("a bound without a total", 'name = "connection"', 'name = "connection"\nbound = [1]', "bound", "total", "remove"),
    public("a constraint twice", "[privacy]", '[[constraints]]\nname = "connection"\nexpression = "north <= 3"\n\n[privacy]', "connection", "twice"),
    public("no constraint", '[[constraints]]\nname = "connection"\nexpression = "north + south + west <= 30"\n', "", "problem.toml", "constraint"),
    bakeries("a privacy that is a number", PUBLIC, "privacy = 3\n" + HEAD.partition("[privacy]")[0], "privacy", "table", "3"),
    bakeries("an empty list of agents", PUBLIC, "agents = []\nconstraints = []\n", "agent", "none"),
    bakeries("a table for the agents", PUBLIC, HEAD.replace("[[agents]]", "[agents]", 1).replace("[[agents]]", "[agents.b]", 1).replace("[[agents]]", "[agents.c]"), "agents", "list"),
    public("a format that is text", HEAD, 'format = "1"\n' + HEAD, "format", "'1'"),
    public("a constraint that is a number", '"north + south + west <= 30"', "3", "expression", "text", "3"),
    public("a bound that is NaN", "upper = 20", "upper = nan", "upper", "finite", "nan"),
    public("rounds in words", "rounds = 500", 'rounds = "many"', "rounds", "integer", "many"),
    public("a truth for delta", "delta = 0.01", "delta = true", "line", "delta", "number", "True"),
    public("an infinite radius", "radius = 2", "radius = inf", "line", "radius", "finite", "inf"),
    public("a date for a radius", "radius = 2", "radius = 2020-01-01", "radius", "number", "2020"),
    public("an unknown key of privacy", "radius = 2", "radios = 2", "line", "radius", "radios"),
    public("epsilon that is no number", "epsilon = 1", 'epsilon = "much"', "line", "epsilon", "much"),
    public("epsilon that runs code", "epsilon = 1", "epsilon = \"__import__('os')\"", "epsilon"[:7], "line"),
    public("an unknown kind of hiding", '"trajectory"', '"nearby"', "hide", "offset", "nearby"),
    public("each_row that is a number", "radius = 2", "radius = 2\nfeasible = 0.9\neach_row = 1", "each_row", "true", "1"),
    public("an unknown algorithm", "[schedule]", '[schedule]\nalgorithm = "newton"', "algorithm", "tikhonov", "newton"),
    public("a constraint over a stranger", "+ west", "+ east", "east", "north"),
    public("a constraint without a comparison", "west <= 30", "west", "<=", "line"),
    public("two comparisons in one", "north + south", "1 <= north + south", "one comparison", "two"),
    public("a strict comparison", "<= 30", "< 30", "<=", "line"),
    public("an assignment", "<= 30", "= 30", "==", "line"),
    public("an equality that is not affine", "north + south + west <= 30", "north**2 == 30", "connection", "affine"),
    bakeries("a private file that is missing", AGENT, None, "1.toml", "exist"),
    bakeries("a private file of no agent", "agents/4.toml", 'objective = "0"\n', "4.toml", "3"),
    own("a private file of another agent", 'agent = "south"\nobjective = "0"\n', "north", "south", "agent"),
    own("a private file without an objective", 'agent = "north"\n', "objective", "1.toml"),
    own("an objective that is a number", "objective = 3\n", "objective", "text", "3"),
    own("an objective of another's state", 'objective = "south**2"\n', "south", "line 1|constraint"),
    own("an unknown key of a private file", 'objective = "north"\nstrat = 3\n', "start", "strat", "line 2"),
    own("a start outside the box", 'objective = "north"\nstart = 25\n', "start", "north", "box|bounds"),
    own("a start that is text", 'objective = "north"\nstart = "a"\n', "line 2", "start", "number", "str"),
    own("a start that is NaN", 'objective = "north"\nstart = nan\n', "start", "north", "1 number"),
    own("a start that is a list with a text", 'objective = "north"\nstart = [7.25, "a"]\n', "start", "list of float, str"),
    own("a start that is a table", 'objective = "north"\nstart = {}\n', "start", "number", "dict"),
    own("a start of two numbers", 'objective = "north"\nstart = [1, 2]\n', "start", "north", "1"),
    own("a fallback outside the box", 'objective = "north"\nfallback = -1\n', "fallback", "north"),
    own("a fallback outside the local set", 'objective = "north"\nlocal = ["north <= 3"]\nfallback = 5\n', "fallback", "north"),
    own("local that is text", 'objective = "north"\nlocal = "north <= 3"\n', "local", "list", "north"),
    own("a local row of another", 'objective = "north"\nlocal = ["south <= 3"]\n', "south", "local|own"),
    own("a local row that is not convex", 'objective = "north"\nlocal = ["north**2 >= 4"]\n', "convex", "north**2"),
    own("a local row that excludes the box", 'objective = "north"\nlocal = ["north >= 40"]\n', "north", "20"),
]  # fmt: skip

FLEETS = [
    fleet("no count", "problem.toml", "count = 4\n", "", "fleet ev", "count", "add"),
    fleet("half an agent", "problem.toml", "count = 4", "count = 3.5", "line 3", "count of fleet ev", "integer", "3.5"),
    fleet("an unknown key of a fleet", "problem.toml", "dim = 2", "size = 2", "fleet ev", "dim", "size"),
    fleet("a bound nowhere", "problem.toml", "lower = 0\n", "", "fleet ev", "lower", "add"),
    fleet("a total of a number", "problem.toml", "loss*ev[1]**2", "1", "total", "one fleet", "none"),
    fleet("a product of totals", "problem.toml", "total(ev[1]) <= 9", "total(ev[1])*total(ev[2]) <= 9", "total", "numbers only"),
    fleet("a fleet beside its total", "problem.toml", "total(ev[1]) <= 9", "total(ev[1]) + ev[2] <= 9", "ev[2]", "unknown"),
    fleet("a count of 0", "problem.toml", "count = 4", "count = 0", "count", "integer", "0"),
    fleet("a fleet of agents that a table does not have", "problem.toml", "count = 4", "count = 5", "ev.csv", "5", "4"),
    fleet("a table that is missing", "problem.toml", '"ev.csv"', '"vans.csv"', "vans.csv", "exist"),
    fleet("a table of another folder", "problem.toml", '"ev.csv"', '"../ev.csv"', "../ev.csv", "folder"),
    fleet("a table of another kind", "problem.toml", '"ev.csv"', '"ev.xlsx"', "ev.xlsx", "csv"),
    fleet("a bound said twice", "problem.toml", "lower = 0", "lower = 0\nupper = 3", "upper", "once|remove"),
    fleet("a number of the first agent that no agent has", "problem.toml", "lower = 0", "lower = 0\nfirst = 9", "first", "ev", "9"),
    fleet("too few bounds", "problem.toml", "bound = [12, 10]", "bound = [12, 10, 9]", "2", "3"),
    fleet("a total over a stranger", "problem.toml", "total(ev[1])", "total(van[1])", "van", "ev"),
    fleet("a fleet without a total", "problem.toml", "total(ev[1]) <= 9", "exp(total(ev[1])) <= 9", "total", "add"),
    fleet("a private parameter in public", "problem.toml", "loss*ev", "need*ev", "need", "loss"),
    fleet("weights of a stranger", "problem.toml", "{ ev =", "{ van =", "weights", "van"),
    fleet("weights that are a text", "problem.toml", '{ ev = "feeders.csv" }', '"feeders.csv"', "weights", "ev"),
    fleet("weights of an agent that is not there", "feeders.csv", "2,4,0.5", "2,9,0.5", "feeders.csv", "agent", "4"),
    fleet("a component that is not there", "problem.toml", "total(ev[1]) <= 9", "total(ev[3]) <= 9", "ev[3]", "ev[2]"),
    fleet("a line with too few numbers", "ev.csv", "1,4,5", "1,4", "ev.csv", "3"),
    fleet("a line with text", "ev.csv", "1,4,5", "1,four,5", "ev.csv", "number"),
    fleet("a line with NaN", "ev.csv", "1,4,5", "nan,4,5", "ev.csv", "line 2", "loss", "finite"),
    fleet("an empty table", "ev.csv", p.FLEET["ev.csv"], "", "ev.csv", "column names", "none"),
    fleet("semicolons", "ev.csv", "loss,upper[1],upper[2]\n", "loss;upper[1];upper[2]\n", "ev.csv", "comma", "semicolon"),
    fleet("a column twice", "ev.csv", "loss,upper[1]", "upper[1],upper[1]", "ev.csv", "column"),
    fleet("a column that is missing", "ev.csv", "upper[1],upper[2]", "upper[1],upper[3]", "upper", "upper[2]"),
    fleet("a private table without an agent", "agents/fleet-ev.csv", "4,4,0.5\n", "", "4", "line|lines"),
    fleet("an agent twice", "agents/fleet-ev.csv", "4,4,0.5", "3,4,0.5", "fleet-ev", "agent|once|line"),
    fleet("an agent of another fleet", "agents/fleet-ev.csv", "4,4,0.5", "9,4,0.5", "fleet-ev.csv", "agent", "4"),
    fleet("a parameter that is public and private", "agents/fleet-ev.csv", "need,hurry", "need,loss", "loss", "public", "private"),
    fleet("a private parameter that is missing", "agents/fleet-ev.csv", "need,hurry", "need,haste", "hurry", "fleet-ev.toml"),
    fleet("a private table of another folder", "agents/fleet-ev.toml", '"fleet-ev.csv"', '["fleet-ev.csv", "../ev.csv"]', "../ev.csv", "folder"),
    Refusal("tables with other columns", folder_of(p.FLEET, {"agents/fleet-ev.toml": p.FLEET["agents/fleet-ev.toml"].replace('"fleet-ev.csv"', '["one.csv", "two.csv"]'), "agents/one.csv": "agent,need,hurry\n1,6,1\n2,5,2\n", "agents/two.csv": "agent,need,haste\n3,8,1\n4,4,0.5\n"}), PROBLEM, ("fleet-ev.toml", "same columns")),
    fleet("a private file of a fleet without an objective", "agents/fleet-ev.toml", 'objective =', 'fleet =', "objective", "fleet-ev.toml"),
    fleet("a private file of another fleet", "agents/fleet-ev.toml", "start = 0.5", 'fleet = "bus"', "fleet", "ev", "bus"),
    fleet("parameters that are numbers", "agents/fleet-ev.toml", '"fleet-ev.csv"', "[1, 2]", "parameters", "fleet-ev.csv", "list of int"),
    fleet("parameters that are a number", "agents/fleet-ev.toml", '"fleet-ev.csv"', "3", "parameters", "fleet-ev.csv", "int"),
    fleet("a start outside the boxes", "agents/fleet-ev.toml", "start = 0.5", "start = 9", "start", "ev"),
]  # fmt: skip

MATRICES = [
    matrix("a column of no agent", "lines.csv", "x2[2]", "x3", "lines.csv", "x3", "row"),
    matrix("a product of the matrix", "problem.toml", "2*matrix", "matrix*matrix", "matrix", "numbers only"),
    matrix("a matrix that is not named", "problem.toml", "2*matrix", "2*x1", "line 5", "matrix", "numbers only"),
    matrix("half a row", "lines.csv", p.MATRIX["lines.csv"], "row,agent,component,weight\n1,1,1,1\n1.5,2,1,2\n", "lines.csv", "line 3", "row", "integers"),
    matrix("a component that no agent has", "lines.csv", p.MATRIX["lines.csv"], "row,agent,component,weight\n1,1,1,1\n2,2,3,2\n", "lines.csv", "line 3", "component"),
    matrix("more than the matrix", "problem.toml", "2*matrix", "matrix + x1", "matrix", "constraint"),
    matrix("too few bounds of a matrix", "problem.toml", "[7, 9]", "[7, 9, 6]", "2", "3"),
    matrix("a row without weights", "lines.csv", "0.5,2,-1", "0,0,0", "row", "2"),
    matrix("a weight of an agent that is not there", "lines.csv", p.MATRIX["lines.csv"], "row,agent,component,weight\n1,1,1,1\n2,7,1,2\n", "lines.csv", "line 3", "agent"),
    matrix("a row 0", "lines.csv", p.MATRIX["lines.csv"], "row,agent,component,weight\n0,1,1,1\n2,2,1,2\n", "lines.csv", "line 2", "row"),
    matrix("a matrix that is missing", "problem.toml", '"lines.csv"', '"none.csv"', "none.csv", "exist"),
]  # fmt: skip


@pytest.mark.parametrize("row", listed(DOCUMENTS + FLEETS + MATRICES))
def test_what_a_file_says_wrongly_is_refused_with_its_place(row: Refusal, tmp_path: Path) -> None:
    check(row, tmp_path)


def saved_code(folder: Path) -> None:
    p.coded().save(folder / "code")


def saved_over(folder: Path) -> None:
    p.write_folder(folder, p.BAKERIES)
    p.readme().save(folder)


def saved_in_a_file(folder: Path) -> None:
    (folder / "file").write_text("")
    p.readme().save(folder / "file" / "deeper")


SAVING = [
    Refusal("code", saved_code, PROBLEM, ("press", "code", "formula")),
    Refusal("another problem over one", saved_over, PROBLEM, ("problem.toml", "exists", "new")),
    Refusal("a folder in a file", saved_in_a_file, PROBLEM, ("file", "folder")),
    Refusal("agents that are not there", lambda f: p.readme().save(f, agents=[9]), sv.SottovoceError, ("agent", "9|3")),
]  # fmt: skip


@pytest.mark.parametrize("row", listed(SAVING))
def test_what_cannot_be_written_is_refused_by_name(row: Refusal, tmp_path: Path) -> None:
    check(row, tmp_path)


# Formulas in files

FORMULAS = {
    "an unknown name": ("north + noth", "noth", "north"),
    "an unknown function": ("sin(north)", "sin", "exp"),
    "a function without brackets": ("exp + north", "exp", "exp(...)"),
    "too many arguments": ("abs(north, 2)", "abs", "one", "2"),
    "no argument": ("sqrt()", "')'"),
    "a number called": ("2(north)", "*"),
    "a missing operator": ("2north", "north", "*"),
    "a bracket that stays open": ("(north + 2", "')'", "end"),
    "a bracket too many": ("north + 2)", "')'"),
    "nothing": ("", "empty"),
    "an end too early": ("north +", "end"),
    "a component of a number": ("north[1]", "north", "component"),
    "a component that is no number": ("north[x]", "'x'"),
    "a comparison in an objective": ("north <= 3", "comparison"),
    "a floor division": ("north // 2", "'/'"),
    "a complex literal": ("north + 2j", "j", "*"),
    "a power of powers": ("north**north", "exponent", "north"),
    "an exponent out of range": ("north**100000", "exponent", "100000"),
    "a number too large": ("north*1e400", "number|large", "1.7e308|double"),
    "a number too small": ("north*1e-400", "number|zero", "2.3e-308|double"),
    "too many digits": ("north*" + "9" * 5_000, "digits|bits|characters", "1e40|most"),
    "a tower of powers": ("north + 9**9**9**9", "9", "exponent|large|bits"),
    "a logarithm of a negative number": ("north + log(-1)", "log", "positive", "-1"),
    "a division by zero": ("north + 1/0", "0", "divi"),
    "Python's internals": ("north.__class__", "'.'"),
    "an import": ("__import__('os')", "'|quote|_"),
    "a lambda": ("(lambda: north)()", "lambda|')'"),
    "a list": ("[north]", "'['"),
    "a comprehension": ("sum(x for x in north)", "operator|for|x"),
    "an f-string": ("f'{north}'", "f|'"),
    "a statement": ("north; import os", "';'"),
    "an assignment": ("north := 3", "':'"),
    "a backslash": ("north \\\n + 1", "\\"),
    "a comment": ("north # 3", "'#'"),
    "and": ("north and 3", "and"),
    "a minus that is a dash": ("north \N{MINUS SIGN} 3", "-"),
    "a superscript": ("north\N{SUPERSCRIPT TWO}", "**2"),
    "a no-break space": ("north\N{NO-BREAK SPACE}+ 1", "U+00A0"),
    "a Cyrillic letter": ("n\N{CYRILLIC SMALL LETTER O}rth", "CYRILLIC"),
    "fullwidth digits": ("north + \N{FULLWIDTH DIGIT TWO}", "FULLWIDTH"),
    "a zero-width joiner": ("nor\N{ZERO WIDTH JOINER}th", "ZERO WIDTH"),
    "text from right to left": ("north \N{RIGHT-TO-LEFT OVERRIDE}+ 1", "RIGHT-TO-LEFT"),
    "a multiplication sign": ("2\N{MULTIPLICATION SIGN}north", "*"),
    "a NUL": ("north\\u0000", "U+0000"),
}  # fmt: skip


def north(folder: Path, formula: str) -> Path:
    quoted = formula if "\\u" in formula else formula.replace("\\", "\\\\")
    body = quoted.replace("\n", "\\n").replace('"', '\\"')
    return p.write_folder(folder, p.BAKERIES | {AGENT: f'objective = "{body}"\n'})


@pytest.mark.parametrize("name", FORMULAS)
def test_a_text_that_is_no_formula_is_refused_with_its_place(name: str, tmp_path: Path) -> None:
    formula, *words = FORMULAS[name]
    with pytest.raises(PROBLEM) as caught:
        sv.Problem.load(north(tmp_path, formula))
    message = str(caught.value)
    place = ("1.toml",) if "\\u" in formula else ("1.toml", "line 1")
    assert not missing(message, (*place, *words)), message
    assert len(message) < 1_000


HOSTILE: dict[str, Callable[[int], str]] = {
    "brackets": lambda n: "(" * n + "north" + ")" * n,
    "calls": lambda n: "exp(" * n + "north" + ")" * n,
    "signs": lambda n: "-" * n + "north",
    "powers": lambda n: "north" + "**2" * n,
    "a sum": lambda n: "north" + " + north" * n,
    "a product of sums": lambda n: "*".join(["(north + 1)"] * n),
    "a long name": lambda n: "n" * n,
    "a long number": lambda n: "9" * n,
    "a long tail of blanks": lambda n: "north" + " " * n + "$",
    "open brackets": lambda n: "(" * n,
    "components": lambda n: "north" + "[1]" * n,
    "nested maxima": lambda n: "max(north, " * n + "1" + ")" * n,
}


@pytest.mark.parametrize(
    ("size", "seconds"), [(10_000, 2.0), pytest.param(100_000, 10.0, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_formula_is_refused_in_bounded_time(
    kind: str, size: int, seconds: float, tmp_path: Path
) -> None:
    folder = north(tmp_path, HOSTILE[kind](size))
    began = time.process_time()
    with pytest.raises(PROBLEM) as caught:
        sv.Problem.load(folder)
    assert time.process_time() - began < seconds
    assert not missing(str(caught.value), ("1.toml", "line 1"))
    assert len(str(caught.value)) < 1_000


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for number, formula in enumerate(
        [f"open('{trace}', 'w')", f"__import__('pathlib').Path('{trace}').touch()"]
    ):
        with pytest.raises(PROBLEM):
            sv.Problem.load(north(tmp_path / str(number), formula))
        with pytest.raises(sv.SottovoceError):
            sv.total(formula)
    assert not trace.exists()


def test_a_cloud_and_a_device_are_refused_as_everybody_is(tmp_path: Path) -> None:
    wrong = p.write_folder(tmp_path, p.BAKERIES | {PUBLIC: HEAD.replace("upper", "uper", 1)})
    messages = set()
    for agents in (None, [], [1]):
        with pytest.raises(PROBLEM) as caught:
            sv.Problem.load(wrong, agents=agents)
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_private_numbers_stay_out_of_refusals(tmp_path: Path) -> None:
    private = "17.12345"
    text = p.FLEET["agents/fleet-ev.csv"]
    for number, wrong_number in enumerate((f"{private}x", f"{private},7", "inf")):
        files = {"agents/fleet-ev.csv": text.replace("1,6", f"1,{wrong_number}", 1)}
        with pytest.raises(PROBLEM) as caught:
            sv.Problem.load(p.write_folder(tmp_path / str(number), p.FLEET | files))
        assert private not in str(caught.value)
        assert caught.value.__cause__ is None
    wrong = {
        "start": f'objective = "(north - {private})**2"\nstart = 1{private}\n',
        "fallback": f'objective = "0"\nlocal = ["north <= 1"]\nfallback = {private}\n',
    }
    for name, text in wrong.items():
        folder = p.write_folder(tmp_path / name, p.BAKERIES | {AGENT: text})
        with pytest.raises(PROBLEM) as caught:
            sv.Problem.load(folder)
        assert private not in str(caught.value)


def test_the_words_that_formulas_know_all_read(tmp_path: Path) -> None:
    text = (
        "exp(north/9) - ln(north + 1) - log(north + 2) - sqrt(north + 1) + logsumexp(north, 1) + "
        "abs(north - 2) + max(north, 3) - min(north, 3) + pos(north - 1) + norm(north, 1) + "
        "huber(north, 2) + pi*north + exp(1)*north + north^2 + 2**(north/9) + 1e-3 + .5"
    )
    problem = sv.Problem.load(north(tmp_path, text))
    at = 5.0
    by_hand = (
        math.exp(at / 9) - math.log(at + 1) - math.log(at + 2) - math.sqrt(at + 1)
        + math.log(math.exp(at) + math.e) + abs(at - 2) + max(at, 3) - min(at, 3) + (at - 1)
        + math.hypot(at, 1) + 2 * (2 * at - 2) + math.pi * at + math.e * at + at**2 + 2 ** (at / 9)
        + 1e-3 + 0.5
    )  # fmt: skip
    value = problem.evaluate([at, 12.0, 10.0]).objective
    assert value == pytest.approx(by_hand, rel=1e-12)
    assert isinstance(problem, sv.Problem)
