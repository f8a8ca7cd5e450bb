"""Attention of long spans: the kernel for Hopper, which runs on such a GPU only, and the order of tiles."""

import numpy as np
import pytest

from gpu import ON_GPU, PLACE
from tilewright.ops.attention import DeviceCache, Problem, append, attend, ladder, span
from tilewright.ops.attention.spans import LONG, SORTED, WIDE, Queues, by_size, in_queues, in_tiles
from tilewright.ops.attention.tile import launch
from tilewright.ops.core.ladder import using

torch = pytest.importorskip("torch")

H = 2


def chunks(lengths: list[int], firsts: list[int]) -> list:
    """Spans of sequences one after the other, in slots of their own; each continues one of so many positions."""
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    return [span(i, first, n, at) for i, (first, n, at) in enumerate(zip(firsts, lengths, starts, strict=True))]


@pytest.mark.skipif(not ON_GPU, reason="Gluon kernels cannot be interpreted")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("causal", "programs"), [(False, 132), (True, 132), (True, 1)])
def test_long_spans_have_the_same_bits_in_the_kernel_for_hopper(dtype, causal, programs, rng, monkeypatch):
    """Beside short ones, from the cache and from the batch's rows, at every position in a block. What lies after a
    sequence is NaN or another one. programs: with few, each takes tile after tile."""
    calls = []
    monkeypatch.setattr(launch, "multiprocessors", lambda: programs)
    monkeypatch.setattr(launch, "attend_long", lambda *a, f=launch.attend_long, **k: calls.append(f(*a, **k)))
    if why := ladder.rungs["tile.specialized"].refuses(Problem(64, dtype, "cuda")):
        pytest.skip("; ".join(why))
    lengths = [1024, 70, 513, 16, 576, 640, 700, 1]
    wide = torch.from_numpy(rng.standard_normal((sum(lengths), 3 * H * 64), dtype=np.float32))
    q, k, v = wide.to(getattr(torch, dtype)).to(PLACE).split(H * 64, dim=1)
    q, first = q.contiguous(), [0] * len(lengths)
    for firsts, keep in ((first, True), (first, False), ([0, 3, 10, 0, 64, 63, 127, 900], True)):
        found = []
        for name in ("tile.direct", "tile.specialized"):
            cache = DeviceCache.on(PLACE, len(lengths), H, 1100, 64, dtype)
            cache.keys.fill_(torch.nan)
            cache.values.fill_(torch.nan)
            before = [n for n in range(len(lengths)) if firsts[n]]
            append(k[:900], v[:900], cache, [span(n, 0, firsts[n], 0) for n in before])
            out = torch.full_like(q, torch.nan)
            with using(attention=name):
                attend(q, cache, chunks(lengths, firsts), causal=causal, new=(k, v), keep=keep, out=out)
            found.append(out)
        assert torch.equal(*found) and not torch.isnan(found[0]).any(), (firsts, keep)
    assert len(calls) == 3


def test_tiles_of_most_keys_are_first_where_rows_are_few():
    """With many rows a sequence's tiles stay together. Long spans have wide tiles where these are asked for."""
    few = np.array(chunks([300, 100, LONG], [0, 500, 0]), np.int64)
    ((_, _, tiles),) = by_size(few, (64,))
    assert (np.diff(tiles[:, 1] + tiles[:, 2]) <= 0).all() and tiles[:, 2].sum() == 300 + 100 + LONG
    many = np.array(chunks([SORTED, 300], [0, 0]), np.int64)
    ((_, _, tiles),) = by_size(many, (64,))
    assert tiles[0].tolist() == [1, 256, 44, SORTED + 256, 300] and (np.diff(tiles[:, 0]) <= 0).all()
    for queues, wanted in ((None, {64: 15}), (3, {64: 7, WIDE: 6}), (22, {64: 7, WIDE: LONG // WIDE})):
        found = in_tiles(few, queues and Queues(queues, True))
        assert {size: len(tiles) for size, _, tiles in found if len(tiles)} == wanted


def test_queues_hold_every_tile_once_and_about_as_many_keys():
    """Queues without a last tile have an empty one. Without causality all tiles are alike and keep their order."""
    ((_, _, tiles),) = by_size(np.array(chunks([1024] * 8, [0] * 8), np.int64), (WIDE,))
    queues = in_queues(tiles, Queues(22, True))
    assert sorted(map(tuple, queues[queues[:, 2] > 0])) == sorted(map(tuple, tiles))
    turns = queues.reshape(3, 22, 5)
    assert turns[:2, :, 2].all() and np.ptp((turns[:, :, 1] + turns[:, :, 2]).sum(0)) <= 2 * WIDE
    assert (in_queues(tiles, Queues(22, False))[: len(tiles)] == tiles).all()
