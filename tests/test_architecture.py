from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import sottovoce as sv

SOURCE = Path(sv.__file__).parent

# Imports point only towards the left.
LAYERS = [
    "errors", "arguments", "database", "tables", "progress", "formula", "problem", "certificate",
    "privacy", "algorithm", "kernels", "simulation", "network", "paper", "study", "cli",
]  # fmt: skip

PUBLIC = [
    "Agent", "Cloud", "DualAveraging", "Everything", "Ledger", "Objective", "Offset", "Problem",
    "Result", "SottovoceError", "SplitCloud", "Trajectory", "accuracy_limit", "advise", "agents",
    "audit", "certify", "compare", "errors", "exp", "from_cvxpy", "gallery", "hard", "huber",
    "log", "logsumexp", "maximum", "minimum", "network", "norm", "paper", "plan", "pos",
    "reference_optimum", "simulate", "sqrt", "sum_squares", "total",
]  # fmt: skip


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.startswith("sottovoce.")}


def test_imports_point_only_towards_the_left() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        layer = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if layer == "__init__":
            continue
        for module in imports(path):
            if LAYERS.index(layer_of(module)) > LAYERS.index(layer):
                wrong.append(f"{path.relative_to(SOURCE)} imports {module}")
    assert wrong == []


def test_the_public_names_are_these() -> None:
    assert sorted(sv.__all__) == PUBLIC
    assert all(hasattr(sv, name) for name in sv.__all__)


def test_no_two_modules_types_or_public_functions_share_a_name() -> None:
    places: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        if path.name == "__init__.py":
            continue
        where = str(path.relative_to(SOURCE))
        places["module", path.stem].append(where)
        if path.parent.name == "core":
            continue  # one namespace of its own: its add and exp are the machine's
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                places["class", node.name].append(where)
            elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                places["function", node.name].append(where)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_every_public_function_has_a_docstring() -> None:
    without = []
    for path in SOURCE.rglob("*.py"):
        for node in parsed(path).body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            if not node.name.startswith("_") and not ast.get_docstring(node):
                without.append(f"{path.relative_to(SOURCE)}: {node.name}")
    assert without == []


def test_the_package_says_it_is_typed() -> None:
    assert (SOURCE / "py.typed").exists()


def shell_texts(path: Path) -> list[ast.expr]:
    """The texts that a file gives to a shell: ["sh", "-c", text], or ``shell=True``."""
    source = path.read_text(encoding="utf-8")
    if '"-c"' not in source and "shell=" not in source:
        return []  # parsing every file takes seconds
    texts: list[ast.expr] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.List):
            words = [word.value if isinstance(word, ast.Constant) else None for word in node.elts]
            if tuple(words[:2]) in (("sh", "-c"), ("bash", "-c")):
                texts.append(node.elts[2])
        elif isinstance(node, ast.keyword) and node.arg == "shell":
            texts.append(node.value)
    return texts


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
