from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sottovoce.formula.connected import connected

NODES = 8
EDGES = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)))


@given(EDGES)
def test_nodes_share_a_part_if_and_only_if_a_path_joins_them(edges: list[tuple[int, int]]) -> None:
    reached = [{node} for node in range(NODES)]
    for _ in range(NODES):
        for a, b in edges:
            reached[a] = reached[b] = reached[a] | reached[b]
    found = connected(NODES, [a for a, _ in edges], [b for _, b in edges]).tolist()
    assert [[found[i] == found[j] for j in range(NODES)] for i in range(NODES)] == [
        [j in reached[i] for j in range(NODES)] for i in range(NODES)
    ]


@given(EDGES)
def test_parts_are_numbered_by_their_first_nodes(edges: list[tuple[int, int]]) -> None:
    found = connected(NODES, [a for a, _ in edges], [b for _, b in edges]).tolist()
    assert list(dict.fromkeys(found)) == list(range(max(found) + 1))
