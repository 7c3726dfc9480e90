from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sottovoce.formula.derive import connected

NODES = 8
EDGES = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)))


@given(EDGES)
def test_labels_are_equal_where_a_path_joins_nodes_and_count_first_nodes(
    edges: list[tuple[int, int]],
) -> None:
    reached = [{node} for node in range(NODES)]
    for _ in range(NODES):
        for a, b in edges:
            reached[a] = reached[b] = reached[a] | reached[b]
    firsts = [min(nodes) for nodes in reached]
    labels = connected(NODES, [a for a, _ in edges], [b for _, b in edges]).tolist()
    assert labels == [sorted(set(firsts)).index(first) for first in firsts]
