"""How often each token occurs under each tap: counted by the kernel, and counted one by one."""

import numpy as np
import pytest

from tilewright.ops.core.launch import threads
from tilewright.ops.embedding_conv1d.cpu.gather_add import occurrences


def one_by_one(ids, kernels, vocabulary):
    rows = []
    for K in kernels:
        for tap in range(K):
            columns = ids[:, tap : tap + ids.shape[1] - K + 1]
            rows.append([int((columns == token).sum()) for token in range(vocabulary)])
    return rows


@pytest.mark.parametrize(("sentences", "length", "kernels"), [
    (5, 9, (3, 5, 7, 9)), (1, 4, (4,)), (3, 4, (3, 1)), (40, 16, (2, 3)), (2, 1, (1, 1)), (0, 5, (2,)),
])  # fmt: skip
@pytest.mark.parametrize("count", [1, 2])
def test_counts(sentences, length, kernels, count, rng):
    ids = rng.integers(0, 11, (sentences, length), dtype=np.int32)
    with threads(count):
        found = occurrences(ids, kernels, 11)
    assert found.dtype == np.int32 and found.tolist() == one_by_one(ids, kernels, 11)
