from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sparse

import sottovoce as sv
from sottovoce.errors import ProblemError

CLOUD = """
[[agents]]
name = "a"
lower = 0
upper = 5

[[fleet]]
name = "ev"
count = 2
lower = 0
upper = 1

[[agents]]
name = "b"
dim = 2
lower = 0
upper = 5

[[constraints]]
name = "lines"
expression = "2*matrix - 1 <= bound"
bound = [3, 4]
matrix = "lines.csv"

[[constraints]]
name = "fleet"
expression = "total(ev) <= 1"
"""
DENSE = "b[2],a\n1,2\n0.1,0\n"
SPARSE = "row,agent,component,weight\n1,1,1,2\n2,2,2,0.1\n1,2,2,1\n"


def write(root: Path, table: str, cloud: str = CLOUD) -> Path:
    (root / "agents").mkdir(parents=True)
    files = {"problem.toml": cloud, "lines.csv": table, "agents/1.toml": 'objective = "a**2"\n'}
    files |= {"agents/2.toml": 'objective = "b[1]**2 + b[2]**2"\n'}
    files |= {"agents/fleet-ev.toml": 'objective = "ev**2"\n'}
    for name, text in files.items():
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize("table", [DENSE, SPARSE])
def test_weights_in_a_table_are_the_rows_they_say(table: str, tmp_path: Path) -> None:
    problem = sv.Problem.load(write(tmp_path / "p", table))
    a = sv.agents(["a"], lower=0, upper=5)
    b = sv.agents(["b"], lower=0, upper=5, dim=2)
    ev = sv.agents(2, lower=0, upper=1, name="ev")
    of_a, of_b = np.array([[4.0], [0.0]]), np.array([[0.0, 2.0], [0.0, 0.2]])
    stated = sv.Problem(
        agents=[a, b, ev],
        objectives=[a[0] ** 2, b[0][0] ** 2 + b[0][1] ** 2, ev.x**2],
        constraints=[of_a @ a + of_b @ b <= [4, 5], sv.total(ev.x) <= 1],
    )
    assert problem.cloud.fingerprint == stated.cloud.fingerprint
    assert problem.cloud.row_labels() == ["lines[1]", "lines[2]", "fleet"]
    problem.save(tmp_path / "again")
    assert (tmp_path / "again/lines.csv").read_text(encoding="utf-8") == table


@pytest.mark.parametrize("share", [0.02, 0.9])
@pytest.mark.parametrize("dim", [1, 3])
def test_matrices_stated_in_python_read_back_the_same(
    share: float, dim: int, tmp_path: Path
) -> None:
    n = 60
    rng = np.random.default_rng(0)
    x = sv.agents(n, lower=-1, upper=1, dim=dim)
    W = rng.uniform(size=(7, n * dim)) * (rng.random((7, n * dim)) < share)
    W[:, 0] = 1 / 3
    stated = sv.Problem(
        agents=x,
        objectives=[sum(np.ravel(s) ** 2) for s in x],
        constraints={
            "rows": W @ x <= 1,
            "balance": sparse.csr_array(W[:1]) @ x == 0.1,
            "first": W[1:2] @ x <= 0.3,
        },
    )
    stated.save(tmp_path / "a")
    tables = sorted(file.name for file in (tmp_path / "a").glob("*.csv"))
    assert tables[0] == "rows1.csv"  # of the others, those with few weights are formulas
    assert sv.Problem.load(tmp_path / "a").fingerprint == stated.fingerprint
    stated.save(tmp_path / "cloud", agents=[])
    assert not list((tmp_path / "cloud/agents").iterdir())
    assert (
        sv.Problem.load(tmp_path / "cloud", agents=[]).cloud.fingerprint == stated.cloud.fingerprint
    )


REFUSED = {
    "a stranger": (DENSE.replace("b[2]", "c"), CLOUD, "got 'c'"),
    "a fleet": (DENSE.replace("b[2]", "ev"), CLOUD, "got 'ev'"),
    "half a row": (SPARSE.replace("2,2,2", "1.5,2,2"), CLOUD, "line 3: column 'row' must have"),
    "component 3": (SPARSE.replace("2,2,2", "2,2,3"), CLOUD, "line 3: agent and component must"),
    "agent of a fleet": (SPARSE.replace("2,2,2", "2,3,1"), CLOUD, "line 3: agent and component"),
    "an empty row": (DENSE.replace("0.1,0", "0,0"), CLOUD, "got row 2 with none"),
    "other terms": (DENSE, CLOUD.replace("2*matrix", "a + matrix"), "bound and numbers only"),
    "a product": (DENSE, CLOUD.replace("2*matrix", "matrix*matrix"), "bound and numbers only"),
    "no matrix": (DENSE, CLOUD.replace("2*matrix", "2*a"), "line 21: .* bound and numbers only"),
    "no table": (DENSE, CLOUD.replace("lines.csv", "line.csv"), "line.csv must exist"),
    "elsewhere": (DENSE, CLOUD.replace("lines.csv", "../l.csv"), "a file in the same folder"),
    "a bound too short": (DENSE, CLOUD.replace("[3, 4]", "[3, 4, 5]"), "same number of rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_where_and_what_is_wrong(case: str, tmp_path: Path) -> None:
    table, cloud, message = REFUSED[case]
    with pytest.raises(ProblemError, match=message):
        sv.Problem.load(write(tmp_path / "p", table, cloud))
