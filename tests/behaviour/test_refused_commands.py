"""Everything that commands refuse: one line on standard error, and the exit code of its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import problems as p
import pytest
from commands import run_cli
from refusals import missing

pytestmark = pytest.mark.core

PROMISE = ("--epsilon", "1", "--delta", "0.01", "--radius", "1")
KEYS = ("--keys", "{tmp}/nokeys", "--store", "{tmp}/run.db")

ROWS: dict[str, tuple[tuple[Any, ...], int, tuple[str, ...]]] = {
    "a folder that is not there": (("check", "{tmp}/nowhere"), 2, ("problem.toml", "exist")),
    "an unknown command": (("slove", "{bakeries}"), 2, ("slove",)),
    "an unknown option": (("plan", "{bakeries}", "--epsilom", "1"), 2, ("--epsilom",)),
    "no folder": (("check",), 2, ("FOLDER|folder|argument",)),
    "epsilon that is negative": (("plan", "{bakeries}", "--epsilon", "-1"), 2, ("epsilon", "positive", "-1")),
    "epsilon that is code": (("plan", "{bakeries}", "--epsilon", "__import__('os')"), 2, ("--epsilon",)),
    "too few radii": (("plan", "{bakeries}", "--radius", "1,2"), 2, ("radius", "3", "2")),
    "an unknown kind": (("plan", "{bakeries}", "--hide", "nearby"), 2, ("hide", "offset", "nearby")),
    "no epsilon anywhere": (("plan", "{plain}"), 2, ("epsilon", "--epsilon", "[privacy]")),
    "no delta anywhere": (("plan", "{plain}", "--epsilon", "1"), 2, ("delta", "--delta", "[privacy]")),
    "an offset without rounds": (("plan", "{plain}", *PROMISE, "--hide", "offset"), 2, ("rounds",)),
    "a method that is not known": (("plan", "{bakeries}", "--method", "laplace"), 2, ("method", "joint", "laplace")),
    "each row without feasible": (("plan", "{bakeries}", "--each-row"), 2, ("--each-row", "--feasible")),
    "no room": (("plan", "{bakeries}", "--hide", "everything", "--feasible", "0.95"), 2, ("feasible", "room", "epsilon")),
    "a useless answer where that is strict": (("plan", "{bakeries}", "--hide", "everything", "--rounds", "2000", "--strict"), 2, ("answer", "connection|noise")),
    "a plan for what is not convex": (("plan", "{valleys}", *PROMISE), 2, ("valve", "convex")),
    "a hard row without a margin": (("plan", "{hard}"), 2, ("connection", "hard", "feasible")),
    "the paper's method for a fleet": (("plan", "{fleet}", "--method", "paper"), 2, ("paper", "fleet", "joint")),
    "half a round": (("simulate", "{bakeries}", "--rounds", "1.5"), 2, ("--rounds", "1.5|integer|whole")),
    "an unknown algorithm": (("simulate", "{bakeries}", "--algorithm", "newton"), 2, ("algorithm", "tikhonov", "newton")),
    "a file in place of a folder": (("simulate", "{bakeries}", "--rounds", "5", "--out", "{bakeries}/problem.toml"), 2, ("--out", "folder", "problem.toml")),
    "no scheduler": (("simulate", "{bakeries}", "--rounds", "5", "--cluster", "nowhere"), 2, ("--cluster", "nowhere")),
    "rounds to compare that are no numbers": (("compare", "{bakeries}", "--rounds", "0,abc"), 2, ("--rounds", "0,abc")),
    "a comparison with a rival that there is not": (("compare", "{bakeries}", "--with", "paper,hsu"), 2, ("hsu", "hhrw", "hindsight")),
    "an audit of no agent": (("audit", "{bakeries}", "--agent", "8"), 2, ("agent", "3", "8")),
    "an audit as no party": (("audit", "{bakeries}", "--view", "spy"), 2, ("--view", "outside", "spy")),
    "an audit of a store with games": (("audit", "{bakeries}", "--store", "{tmp}/run.db", "--runs", "200"), 2, ("--runs", "--store")),
    "an audit of no store": (("audit", "{bakeries}", "--store", "{tmp}/run.db"), 2, ("run.db", "exist")),
    "a figure of no result": (("plot", "{tmp}/result.npz"), 2, ("result.npz", "exist")),
    "advice for no problem of the gallery": (("advise", "gallery:hs1"), 2, ("hs1", "hs10")),
    "advice for several radii": (("advise", "{bakeries}", "--radius", "1,2,3"), 2, ("radius", "one number", "1,2,3")),
    "the status of nothing": (("status", "{tmp}/none.db"), 2, ("none.db", "exist")),
    "the status of another file": (("status", "{bakeries}/problem.toml"), 2, ("problem.toml", "store")),
    "a ledger that is not there": (("ledger", "show", "{tmp}/none.db"), 2, ("none.db", "grant")),
    "a grant of two radii": (("ledger", "grant", "{tmp}/b.db", "--agent", "x1", "--epsilon", "1", "--delta", "0.1", "--hide", "offset", "--radius", "1,2"), 2, ("radius", "one number", "1,2")),
    "a grant that says nothing of what to hide": (("ledger", "grant", "{tmp}/b.db", "--agent", "x1", "--epsilon", "1", "--delta", "0.1"), 2, ("--hide", "lifetime", "none")),
    "a grant by period of another adjacency": (("ledger", "grant", "{tmp}/b.db", "--agent", "x1", "--epsilon", "1", "--delta", "0.1", "--hide", "offset", "--per", "day"), 2, ("--hide", "left out", "--per")),
    "a grant by period alone": (("ledger", "grant", "{tmp}/b.db", "--agent", "x1", "--epsilon", "1", "--delta", "0.1", "--per", "day"), 2, ("x1", "lifetime", "none")),
    "a forecast of no ledger": (("ledger", "forecast", "{tmp}/none.db", "gallery:paper"), 2, ("none.db", "grant")),
    "a grant without a radius": (("ledger", "grant", "{tmp}/b.db", "--agent", "x1", "--epsilon", "1", "--delta", "0.1", "--hide", "offset"), 2, ("radius", "offset")),
    "keys for no agents": (("identity", "init", "--dir", "{tmp}/k", "--agents", "0"), 2, ("agents", "1")),
    "keys over keys": (("identity", "init", "--dir", "{keys}", "--agents", "1"), 2, ("authority", "issue|new")),
    "an issue for no party": (("identity", "issue", "--dir", "{keys}"), 2, ("--agents", "--host")),
    "an issue from no authority": (("identity", "issue", "--dir", "{tmp}", "--agents", "1"), 2, ("ca.pem", "ca.key")),
    "an issue for a range that is none": (("identity", "issue", "--dir", "{keys}", "--agents", "5-2"), 2, ("agents", "5-2")),
    "a revocation of nothing": (("identity", "revoke", "--dir", "{keys}"), 2, ("--serial", "certificate")),
    "a revocation of no certificate": (("identity", "revoke", "{bakeries}/problem.toml", "--dir", "{keys}"), 2, ("certificate", "problem.toml")),
    "a revocation of a number never issued": (("identity", "revoke", "--serial", "123", "--dir", "{keys}"), 2, ("serial", "issued.txt", "123")),
    "a cloud without keys": (("cloud", "{bakeries}", *KEYS), 2, ("nokeys", "identity")),
    "a cloud at no address": (("cloud", "{bakeries}", *KEYS, "--listen", "8443"), 2, ("listen", "address:port", "8443")),
    "a cloud that holds under a trajectory": (("cloud", "{bakeries}", *KEYS, "--straggler", "hold", "--deadline", "1s"), 2, ("straggler", "wait", "Offset|offset")),
    "a deadline in minutes": (("cloud", "{bakeries}", *KEYS, "--straggler", "hold", "--deadline", "1m"), 2, ("deadline", "seconds", "1m")),
    "an agent without keys": (("agent", "{bakeries}/agents/1.toml", "--keys", "{tmp}/nokeys", "--cloud", "wss://127.0.0.1:1"), 2, ("nokeys", "identity")),
    "an agent at no address": (("agent", "{bakeries}/agents/1.toml", "--keys", "{keys}/agents/1", "--cloud", "127.0.0.1:1"), 2, ("cloud", "wss://", "127.0.0.1:1")),
    "an agent of another file": (("agent", "{bakeries}/problem.toml", "--keys", "{keys}/agents/1", "--cloud", "wss://127.0.0.1:1"), 2, ("1.toml", "problem.toml")),
    "a gateway of agents that are none": (("gateway", "{bakeries}", "--agents", "3-1", "--keys", "{keys}/agents/1", "--cloud", "wss://127.0.0.1:1"), 2, ("agents", "3-1")),
    "a demo of a folder and a fleet": (("demo", "--folder", "{bakeries}", "--fleet", "3"), 2, ("folder", "--fleet")),
    "a demo of a split fleet": (("demo", "--split", "--fleet", "3"), 2, ("--split", "--fleet")),
    "an assumption that fails": (("check", "{valleys}"), 1, ("",)),
}  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("places")
    p.write_folder(root / "bakeries", p.BAKERIES)
    plain = p.BAKERIES_TOML.partition("[privacy]")[0]
    p.write_folder(root / "plain", p.BAKERIES | {"problem.toml": plain})
    hard = p.BAKERIES_TOML.replace('name = "connection"', 'name = "connection"\nhard = true')
    p.write_folder(root / "hard", p.BAKERIES | {"problem.toml": hard})
    p.write_folder(root / "fleet", p.FLEET)
    p.valves(convex=False).save(root / "valleys")
    assert run_cli("identity", "init", "--dir", root / "keys", "--agents", "3").code == 0
    names = ("bakeries", "plain", "hard", "fleet", "valleys", "keys")
    return {name: str(root / name) for name in names}


@pytest.mark.parametrize("name", ROWS)
def test_a_command_refuses_in_one_line_with_its_exit_code(
    name: str, places: dict[str, str], tmp_path: Path
) -> None:
    command, code, words = ROWS[name]
    here = places | {"tmp": str(tmp_path)}
    done = run_cli(*[word.format(**here) if "{" in word else word for word in command])
    assert done.code == code, done.out + done.err
    assert "Traceback" not in done.err
    output = " ".join(done.err.replace("│", " ").split())
    assert not missing(output, words), output
