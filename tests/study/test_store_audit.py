"""The noise of a finished run, from the states and releases in its store."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from broken_samplers import Fault, Faulty, correlated_at_lag_997, honest, same_again_much_later

from sottovoce.algorithm.averaging import Averaging
from sottovoce.certify.certificate import Certificate, certify
from sottovoce.cli.app import application
from sottovoce.errors import InputError
from sottovoce.network.rounds import Rounds, first_carried
from sottovoce.network.setup import make_config
from sottovoce.network.store import Store
from sottovoce.privacy.plan import NoisePlan, plan
from sottovoce.problem import gallery
from sottovoce.problem.save import save_problem
from sottovoce.study.store_audit import audit_store


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return certify(gallery.get("hs10").cloud)


def planned(certificate: Certificate, radius: float = 0.1) -> NoisePlan:
    return plan(certificate, epsilon=math.log(3), delta=0.05, radius=radius)


def stored(
    path: Path, made: NoisePlan, fault: Fault = honest, *, rounds: int = 1_300, keep: bool = True
) -> Path:
    algorithm = Averaging()
    store = Store(path, keep_states=keep)
    store.pin(make_config(made, algorithm, rounds=rounds, noise="secure", run_id=store.run_id))
    play = Rounds(made, algorithm, Faulty(made, fault), rounds)
    carried, digest = first_carried(algorithm, made.cloud.rows), bytes(32)
    states = np.random.default_rng(3).uniform(-5, 5, (rounds, 2))
    for k, x in enumerate(states, start=1):
        record, released = play.play(k, x, carried, digest, frozenset())
        store.commit(record, released)
        carried, digest = record.carried, record.digest
    store.finish(states[-1])
    store.close()
    return path


@pytest.mark.parametrize("fault", [honest, correlated_at_lag_997, same_again_much_later])
def test_broken_noise_is_found_in_a_finished_run(
    certificate: Certificate, tmp_path: Path, fault: Fault
) -> None:
    made = planned(certificate)
    found = audit_store(made, stored(tmp_path / "run.db", made, fault))
    assert found.rounds == 1_300
    assert found.passed == (fault is honest)


def test_a_store_without_states_or_of_another_plan_is_refused(
    certificate: Certificate, tmp_path: Path
) -> None:
    made = planned(certificate)
    bare = stored(tmp_path / "bare.db", made, rounds=3, keep=False)
    with pytest.raises(InputError, match="only a cloud started with --keep-states keeps them"):
        audit_store(made, bare)
    kept = stored(tmp_path / "kept.db", made, rounds=3)
    with pytest.raises(InputError, match="must belong to this plan, got a run of another"):
        audit_store(planned(certificate, radius=0.2), kept)


def test_the_command_checks_a_store(
    certificate: Certificate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_problem(gallery.get("hs10"), tmp_path / "folder")
    made = planned(certificate)
    path = stored(tmp_path / "run.db", made, rounds=150)
    asked = ["--epsilon", "ln(3)", "--delta", "0.05", "--radius", "0.1", "--json"]
    with pytest.raises(SystemExit) as ended:
        application()(["audit", str(tmp_path / "folder"), "--store", str(path), *asked])
    assert ended.value.code in (0, None)
    assert json.loads(capsys.readouterr().out)["passed"] is True
