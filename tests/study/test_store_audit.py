"""The noise of a run, from what agents said and what was released, both in its store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broken_samplers import Fault, Faulty, correlated_at_lag_997, honest, same_again_much_later

from plans import planned
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.cli import application
from sottovoce.errors import InputError
from sottovoce.network.config import Noise
from sottovoce.network.protocol.actions import Part, Party
from sottovoce.network.protocol.codec import pack, pack_whole
from sottovoce.network.round_arithmetic import Rounds
from sottovoce.network.setup import make_config, parties_of
from sottovoce.network.store import CloudStore
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem import gallery
from sottovoce.problem.files.save import save_problem
from sottovoce.study.noise import audit_store

PARTIES = ((1, 2, 4), (3, 5, 6, 7))


def said(parties: list[Party], generator: np.random.Generator) -> tuple[Part, ...]:
    """What two gateways may say in a round; low, as sums that no price moves make prices run."""
    parts = []
    for party in parties:
        if party.owners is not None:
            data = pack(generator.uniform(party.lower, party.upper))
        else:
            most = party.least + (party.most - party.least) // 8
            data = pack_whole(generator.integers(party.least, most))
        parts.append(Part(party=party, data=data))
    return tuple(parts)


def stored(
    path: Path,
    made: NoisePlan,
    fault: Fault = honest,
    *,
    rounds: int = 1_300,
    of: int | None = None,
    keep: bool = True,
    noise: Noise = "secure",
) -> Path:
    algorithm = DualAveraging() if made.method == "joint" else Tikhonov()
    store = CloudStore(path, keep_states=keep)
    store.pin(
        make_config(made, algorithm, rounds=of or rounds, noise=noise, run_id=store.run.run_id)
    )
    play = Rounds(made, algorithm, Faulty(made, fault), of or rounds)
    parties = list(map(parties_of(made), PARTIES))
    generator, digest = np.random.default_rng(3), bytes(32)
    for k in range(1, rounds + 1):
        record, released = play.play(k, said(parties, generator), digest, frozenset())
        store.commit(record, released)
        digest = record.digest
    store.close()
    return path


@pytest.mark.parametrize("fault", [honest, correlated_at_lag_997, same_again_much_later])
def test_broken_noise_is_found_in_a_run(tmp_path: Path, fault: Fault) -> None:
    made = planned()
    found = audit_store(made, stored(tmp_path / "run.db", made, fault))
    assert found.finished
    assert found.noise.rounds == found.committed == 1_300
    assert found.noise.passed == (fault is honest)


def test_a_run_of_the_papers_release_is_checked_from_its_states(tmp_path: Path) -> None:
    made = planned(method="paper")
    found = audit_store(made, stored(tmp_path / "run.db", made, rounds=120))
    assert found.noise.passed
    assert found.noise.outputs == len(made.outputs)


def test_a_run_that_is_not_finished_is_checked_and_said_to_be_so(tmp_path: Path) -> None:
    made = planned()
    found = audit_store(made, stored(tmp_path / "run.db", made, rounds=120, of=500))
    assert not found.finished
    assert found.noise.passed
    assert found.title == "The noise of a run that is not finished, 120 of 500"


@pytest.mark.parametrize(
    ("radius", "how", "words"),
    [
        (1.0, {"keep": False}, "only a cloud started with --keep-states keeps it"),
        (2.0, {}, "must belong to this plan, got a run of another"),
        (1.0, {"noise": "simulated"}, "must hold secure noise, got a simulated run"),
    ],
)
def test_a_store_that_tells_nothing_of_this_plan_is_refused(
    tmp_path: Path, radius: float, how: dict[str, Any], words: str
) -> None:
    path = stored(tmp_path / "run.db", planned(), rounds=3, **how)
    with pytest.raises(InputError, match=words):
        audit_store(planned(radius=radius), path)


ASKED = ["--epsilon", "ln(3)", "--delta", "0.05", "--radius", "1"]


def command(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        application()(["audit", *words])
    return int(ended.value.code or 0)


def test_the_command_checks_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "folder")
    save_problem(gallery.paper(), folder)
    hide = Trajectory(radius=0.01, rounds=120)
    with_margins = planned(hide=hide, feasible=0.9, each_row=True)
    path = str(stored(tmp_path / "margins.db", with_margins, rounds=120))
    assert command(folder, "--store", path, *ASKED[:-1], "0.01", "--json") == 0
    assert json.loads(capsys.readouterr().out)["finished"] is True
    path = str(stored(tmp_path / "run.db", planned(), rounds=150, of=200))
    assert command(folder, "--store", path, *ASKED, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is True
    assert (found["committed"], found["rounds"], found["finished"]) == (150, 200, False)
    assert command(folder, "--store", path, *ASKED) == 0
    assert "a run that is not finished, 150 of 200" in capsys.readouterr().out.replace("\n", " ")
