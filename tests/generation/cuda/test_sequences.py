"""Sequences as columns: their order, what is computed once, and the rows of a pass over their prompts."""

import numpy as np

from tilewright.generation.cuda.sequences import Queue, Sequences

V = 257


def test_rows_of_prompts():
    prompts = [np.array(ids) for ids in ([1, 2, 5, 6], [1, 2, 3], [1, 2, 3], [1, 2], [256], [255, 0], [1, 2, 3])]
    part = Sequences.of(prompts, np.arange(7))
    part.kind[2] = 1
    part, twins = part.once()
    assert part.request.tolist() == [3, 1, 2, 0, 5, 4] and twins == [[1, 6]]
    part.slot, part.apart = np.array([4, 2, 3, 1, 0, 5]), np.arange(6) == 3
    ids, positions, spans = part.rows()
    assert ids.tolist() == [1, 2, 3, 3, 1, 2, 5, 6, 255, 0, 256]
    assert positions.tolist() == [0, 1, 2, 2, 0, 1, 2, 3, 0, 1, 0]
    assert spans.tolist() == [
        [4, 0, 2, 0, -1], [2, 2, 1, 2, 4], [3, 2, 1, 3, 2], [1, 0, 4, 4, -1], [0, 0, 2, 8, -1], [5, 0, 1, 10, -1],
    ]  # fmt: skip
    assert part.shares.tolist() == [False, True, True, False, False, False]


def test_beginnings_are_copied_where_that_saves_something(rng):
    ids = rng.integers(0, V, (20, 16))
    ids[:, 0] = np.arange(20) // 2  # one row of 32 would be saved
    part = Sequences.of(list(ids), np.arange(20)).ordered()
    assert not part.shares.any() and len(part.rows()[0]) == 320 and not part.shares.any()
    ids[:, 1] = ids[:, 0]
    part = Sequences.of(list(ids), np.arange(20)).ordered()
    assert len(part.rows()[0]) == 300 and part.shares.sum() == 10


def test_a_beginning_is_not_copied_where_a_graph_is_faster(rng):
    ids = rng.integers(0, V, (20, 16))
    ids[:, :2] = np.arange(20)[:, None] // 2  # 20 rows of 320 would be saved
    part = Sequences.of(list(ids), np.arange(20)).ordered()
    assert len(part.rows(worth=21)[0]) == 320 and not part.shares.any()
    assert len(part.rows(worth=20)[0]) == 300 and part.shares.sum() == 10
    part.count[0] -= 1  # of another length: the pass is not replayed as a graph in any case
    assert len(part.rows(worth=21)[0]) == 299


def test_a_queue_gives_what_fits_and_merges_greedy_twins_alone():
    prompts = [np.array(ids) for ids in ([5, 6], [1], [5, 6], [7, 8, 9])]
    for sampled in (False, True):
        queue = Queue(sampled)
        queue.add(Sequences.of(prompts, np.arange(4)))
        queue.order()
        assert queue.others == ({} if sampled else {0: [2]}) and len(queue) == 3 + sampled
        assert len(queue.take(9, 0)) == 0
        first = queue.take(9, 2)
        assert first.request.tolist() == [1, 0, 2][: 2 + sampled] and queue.sequences.request.tolist() == [3]
        assert len(queue.take(0, 9)) == 0 and queue.take(9, 9).request.tolist() == [3] and not len(queue)
