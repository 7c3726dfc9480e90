from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import sottovoce as sv

SOURCE = Path(sv.__file__).parent

# Imports point only towards the left.
LAYERS = (
    "errors",
    "arguments",
    "tables",
    "progress",
    "formula",
    "kernels",
    "problem",
    "certify",
    "privacy",
    "algorithm",
    "engine",
    "network",
    "study",
    "report",
    "cli",
)


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.startswith("sottovoce.")}


def test_imports_point_only_towards_the_left() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for module in imports(path):
            if LAYERS.index(layer_of(module)) > LAYERS.index(own):
                wrong.append(f"{path.relative_to(SOURCE)} imports {module}")
    assert wrong == []


def test_the_public_names_are_these() -> None:
    assert sorted(sv.__all__) == [
        "Advice",
        "Agent",
        "Audit",
        "BudgetError",
        "Certificate",
        "CertificateError",
        "Charge",
        "Cloud",
        "Constants",
        "ConvexityError",
        "DualAveraging",
        "Everything",
        "Feasibility",
        "Feasible",
        "Guarantee",
        "Helper",
        "Household",
        "InputError",
        "Ledger",
        "Limit",
        "NetworkError",
        "NoisePlan",
        "Objective",
        "Offset",
        "OneCloud",
        "PrivacyError",
        "Problem",
        "ProblemError",
        "Protected",
        "Relay",
        "Result",
        "RollbackError",
        "SaddlePoint",
        "SecureSampler",
        "SimulatedSampler",
        "SottovoceError",
        "SplitCloud",
        "Tikhonov",
        "Trajectory",
        "UnavailableError",
        "advise",
        "audit",
        "certify",
        "exp",
        "fleet",
        "gallery",
        "hard",
        "huber",
        "limit",
        "load",
        "load_problem",
        "log",
        "logsumexp",
        "maximum",
        "minimum",
        "norm",
        "plan",
        "pos",
        "saddle_point",
        "save_problem",
        "solve",
        "sqrt",
        "states",
        "sum_squares",
        "total",
    ]
    assert all(hasattr(sv, name) for name in sv.__all__)


def test_certify_is_both_the_function_and_the_package_it_comes_from() -> None:
    # In a process of its own: what other tests have imported must not help.
    code = """
import pickle, inspect
import sottovoce.certify.saddle as s
from sottovoce.certify import certificate, saddle
import sottovoce as sv
assert s is saddle and s.saddle_point is sv.saddle_point
x = sv.states(2, lower=0, upper=1)
problem = sv.Problem(states=x, objectives=list(x), constraints=[x[0] + x[1] <= 0.5])
assert isinstance(sv.certify(problem), sv.Certificate)
assert isinstance(pickle.loads(pickle.dumps(sv.certify))(problem.cloud), sv.Certificate)
assert list(inspect.signature(sv.certify).parameters) == [
    "problem", "tighten", "tolerance", "progress"
]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_function_has_a_docstring() -> None:
    without = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            if not node.name.startswith("_") and not ast.get_docstring(node):
                without.append(f"{path.relative_to(SOURCE)}: {node.name}")
    assert without == []


def test_the_package_says_it_is_typed() -> None:
    assert (SOURCE / "py.typed").exists()


def shell_texts(path: Path) -> list[ast.expr]:
    """The texts that a file gives to a shell: ["sh", "-c", text], or ``shell=True``."""
    found: list[ast.expr] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.List):
            words = [word.value if isinstance(word, ast.Constant) else None for word in node.elts]
            if tuple(words[:2]) in (("sh", "-c"), ("bash", "-c")):
                found.append(node.elts[2])
        elif isinstance(node, ast.keyword) and node.arg == "shell":
            found.append(node.value)
    return found


def test_a_checkout_whose_path_has_a_space_is_as_good_as_any() -> None:
    root = Path(__file__).parents[1]
    texts = [
        (path.relative_to(root), text)
        for folder in ("src", "tests", "benchmarks", "examples")
        for path in (root / folder).rglob("*.py")
        for text in shell_texts(path)
    ]
    assert texts  # some test gives a shell something to do
    formatted = [place for place, text in texts if not isinstance(getattr(text, "value", 0), str)]
    assert formatted == []  # arguments of a shell are "$@", which keeps their spaces
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    assert not [
        word for word in ("$(CURDIR)", "$(PWD)", "$(abspath", "$(shell") if word in makefile
    ]
