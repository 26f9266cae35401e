"""The batch union: which experts a chunk needs, and who selected them."""

import numpy as np

from diskmoe.engine.model.union import union_of


def test_union_lists_unique_experts_ascending_with_their_selections():
    union = union_of(np.array([[3, 1], [1, 7], [3, 0]], np.int32), 9)
    assert union.experts.tolist() == [0, 1, 3, 7]
    assert union.begins.tolist() == [0, 1, 3, 5, 6]
    row_begin, selections = union.selections(np.arange(4, dtype=np.int32))
    assert row_begin.tolist() == [0, 1, 3, 5, 6]
    assert selections.tolist() == [5, 1, 2, 0, 4, 3]
    assert all(a.dtype == np.int32 for a in (union.experts, union.order, row_begin, selections))


def test_a_batch_of_some_experts_gets_the_selections_of_those():
    union = union_of(np.array([[3, 1], [1, 7], [3, 0]], np.int32), 9)
    row_begin, selections = union.selections(np.array([3, 1], np.int32))
    assert row_begin.tolist() == [0, 1, 3]
    assert selections.tolist() == [3, 1, 2]


def test_batches_together_cover_every_selection_once():
    rng = np.random.default_rng(0)
    ids = np.array([rng.permutation(32)[:6] for _ in range(40)], np.int32)
    union = union_of(ids, 32)
    shuffled = rng.permutation(len(union.experts)).astype(np.int32)
    seen = []
    for part in np.array_split(shuffled, 5):
        row_begin, selections = union.selections(part)
        seen += selections.tolist()
        for j, position in enumerate(part):
            mine = selections[row_begin[j] : row_begin[j + 1]]
            assert (ids.reshape(-1)[mine] == union.experts[position]).all()
            assert (np.diff(mine) > 0).all()
    assert sorted(seen) == list(range(240))
