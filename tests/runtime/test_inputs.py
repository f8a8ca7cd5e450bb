"""How large shards are: as the records want it, and where there are several workers, so that each has as many."""

import pytest

from tilewright.generation.sampling import SamplingParams
from tilewright.runtime.inputs import PIECES, Sizing
from tilewright.runtime.verbs.generate.task import sizing_for


def shards(total, sizing):
    return -(-total // sizing.a_shard(total))


def test_one_worker_has_shards_of_the_size_that_is_best():
    assert Sizing(1000, 100).for_workers(1).a_shard(50) == 1000


@pytest.mark.parametrize(("tokens", "total", "a_shard", "count"), [
    (8, 100, 1024, 1), (8, 1500, 1024, 2), (64, 1500, 512, 3), (8, 20_000, 1250, 16), (8, 1_000_000, 8192, 123),
    (64, 1_000_000, 1024, 977), (1024, 1500, 256, 6),
])  # fmt: skip
def test_a_small_job_of_one_worker_has_small_shards(tokens, total, a_shard, count):
    """As small as costs nothing, and at most so many of them."""
    sizing = sizing_for("cpu", SamplingParams(temperature=0, max_tokens=tokens)).for_workers(1)
    assert (sizing.a_shard(total), shards(total, sizing)) == (a_shard, count)


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("total", [1, 7, 99, 100, 101, 350, 799, 1600, 12_345, 1_000_000])
def test_several_workers_have_as_many_shards_each(workers, total):
    sizing = Sizing(1000, 100).for_workers(workers)
    part, count = -(-total // workers), shards(total, sizing)
    assert sizing.a_shard(total) <= 1000
    if total >= workers * 100:
        assert sizing.a_shard(total) >= 100
    if part <= PIECES * 100:
        assert count <= workers * max(part // 100, 1)  # none is left for a turn in which the others wait
    assert count >= min(total, workers) - 1 or part == 1


def test_what_a_gpu_continues():
    """Seconds of work: 51,200 prompts are four shards for four workers, and not twenty."""
    sizing = sizing_for("cuda", SamplingParams(temperature=0, max_tokens=128))
    assert sizing.for_workers(4).a_shard(51_200) == 12_800
    assert shards(1_000_000, sizing.for_workers(4)) == 4 * PIECES
    assert sizing.for_workers(1).a_shard(51_200) == 65_536
    assert sizing_for("cuda", SamplingParams(temperature=0, max_tokens=8)).for_workers(4).a_shard(51_200) == 12_800
