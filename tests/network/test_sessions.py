from __future__ import annotations

import random

from network_harness import plan_for

from sottovoce.network.protocol.sessions import CREDIT, Sessions
from sottovoce.network.setup import Parties
from sottovoce.problem.problem import Problem


def test_who_speaks_where_is_what_a_search_through_all_connections_finds(paper: Problem) -> None:
    party = Parties(plan_for(paper))
    rng = random.Random(5)  # noqa: S311
    sessions, open_ = Sessions(), dict[int, tuple[int, ...]]()
    for peer in range(400):
        agents = tuple(sorted(rng.sample(range(1, 8), rng.randint(1, 3))))
        older = {p for p, others in open_.items() if set(agents) & set(others)}
        assert sessions.speaking_for(agents) == older
        for p in older:
            moves = sessions.moves
            closed = sessions.close(p)
            assert closed is not None
            assert closed.agents == open_.pop(p)
            assert sessions.moves == moves + 1
        sessions.open(peer, range(1, 8))
        assert peer not in sessions.active()
        sessions.admit(peer, party(agents))
        open_[peer] = agents
        if rng.random() < 0.2:
            gone = rng.choice(list(open_))
            sessions.close(gone)
            del open_[gone]
        assert sessions.present == {a for others in open_.values() for a in others}
        assert sessions.connected == len(sessions.present)
        assert set(sessions.active()) == set(open_)
    assert sessions.close(-1) is None


def test_credit_is_renewed_for_everybody() -> None:
    sessions = Sessions()
    for peer in (1, 2):
        sessions.open(peer, ())
        session = sessions.get(peer)
        assert session is not None
        session.credit = 0
    sessions.renew_credit()
    for peer in sessions:
        session = sessions.get(peer)
        assert session is not None
        assert session.credit == CREDIT
