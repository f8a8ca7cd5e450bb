"""Tiles: a tiled volume equals the whole one by bits, the plan keeps its memory, reading and writing run beside."""

import itertools
import threading
from contextlib import closing

import numpy as np
import pytest

from tilewright.errors import ResourceError
from tilewright.formats.volumes import ArrayVolume
from tilewright.ops.conv3d import conv3d, prepare, prepare_separable
from tilewright.ops.correlate import correlate
from tilewright.runtime.verbs.convolve.kernels import Kernel, applied
from tilewright.runtime.verbs.convolve.tiles import (
    MODES,
    Blocks,
    Tile,
    Tiling,
    cheapest,
    needed_bytes,
    overlapped,
    tilings,
)

FLOAT32 = np.dtype(np.float32)


def buffers_for(tiling, dtype=FLOAT32):
    return [np.empty(np.prod(tiling.tile), dtype) for _ in range(2)]


def tiled(array, kernel, tiling, mode, cval, dtype=FLOAT32, slabs=((0, None),), axis=0):
    """slabs: (first plane along `axis`, number; None: all), one after the other with the same blocks."""
    out = np.full(array.shape, np.nan, dtype)
    blocks = Blocks(ArrayVolume("v", array), tiling, mode=mode, cval=cval, dtype=dtype)

    def write(tile, values):
        out[tuple(slice(a, a + n) for a, n in zip(*tile, strict=True))] = values

    for first, count in slabs:
        start, shape = [0, 0, 0], list(array.shape)
        start[axis], shape[axis] = first, shape[axis] if count is None else count
        tiles = list(tiling.tiles(Tile(tuple(start), tuple(shape))))
        assert len(tiles) == tiling.count(Tile(tuple(start), tuple(shape)))
        run(tiles, buffers_for(tiling, dtype), blocks.read, applied(kernel, dtype), write)
    return out


def random_case(rng, most=14):
    shape = tuple(int(n) for n in rng.integers(1, most, 3))
    K = tuple(int(rng.choice([k for k in (1, 2, 3, 5) if k <= n])) for n in shape)
    tile = tuple(int(rng.integers(max(1, n // 3), n + 1)) for n in shape)
    mode, cval = MODES[rng.integers(0, len(MODES))], float(rng.integers(0, 2)) * 1.5
    array = rng.standard_normal(shape).astype(np.float32)
    lines = tuple(rng.standard_normal(n) for n in K)
    dense = rng.random() < 0.6
    kernel = Kernel("k", rng.standard_normal(K)) if dense else Kernel("k", lines=lines)
    tiling = Tiling(shape, tile, *kernel.halo, layer=int(rng.integers(1, 6)))
    return array, kernel, tiling, mode, cval


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_random_tilings_equal_the_whole(rng, count):
    for _ in range(count):
        array, kernel, tiling, mode, cval = random_case(rng)
        packed = prepare(kernel.weights.astype(np.float32)) if kernel.lines is None else prepare_separable(kernel.lines)
        whole = conv3d(array, packed, mode=mode, cval=cval)
        found = tiled(array, kernel, tiling, mode, cval)
        assert found.tobytes() == whole.tobytes(), (tiling, kernel.shape, mode)


@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.long)])
def test_slabs_in_any_order_equal_the_whole(rng, count):
    for _ in range(count):
        array, kernel, tiling, mode, cval = random_case(rng)
        axis = int(rng.choice((0, 2)))
        cuts = np.unique(np.append(rng.integers(0, array.shape[axis], 3), (0, array.shape[axis])))
        slabs = [(int(a), int(b - a)) for a, b in itertools.pairwise(cuts)]
        if rng.random() < 0.5:
            rng.shuffle(slabs)
        packed = prepare(kernel.weights.astype(np.float32)) if kernel.lines is None else prepare_separable(kernel.lines)
        whole = conv3d(array, packed, mode=mode, cval=cval)
        assert tiled(array, kernel, tiling, mode, cval, slabs=slabs, axis=axis).tobytes() == whole.tobytes()


def test_larger_tilings_equal_the_whole(rng):
    array = rng.standard_normal((33, 70, 150)).astype(np.float32)
    for K, tile in [((5, 5, 5), (7, 33, 64)), ((3, 3, 3), (33, 16, 150)), ((7, 4, 9), (1, 70, 50))]:
        kernel = Kernel("k", rng.standard_normal(K))
        whole = conv3d(array, kernel.weights.astype(np.float32), mode="mirror")
        assert tiled(array, kernel, Tiling(array.shape, tile, *kernel.halo), "mirror", 0).tobytes() == whole.tobytes()


@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.long)])
def test_float64_tilings_equal_the_whole(rng, count):
    for _ in range(count):
        array, kernel, tiling, mode, cval = random_case(rng)
        array = array.astype(np.float64)
        one = Tiling(array.shape, array.shape, *kernel.halo)
        whole = tiled(array, kernel, one, mode, cval, np.dtype(np.float64))
        assert tiled(array, kernel, tiling, mode, cval, np.dtype(np.float64)).tobytes() == whole.tobytes()
        if kernel.lines is None:
            assert np.abs(whole - correlate(array, kernel.weights, mode=mode, cval=cval)).max() < 1e-12


def test_blocks_are_padded_volumes(rng):
    """A block is what numpy.pad has there, however much of it was kept from the block before."""
    names = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge", "wrap": "wrap", "constant": "constant"}
    for _ in range(200):
        array, kernel, tiling, mode, _ = random_case(rng)
        mode = mode.removeprefix("grid-") if mode != "grid-mirror" else "reflect"
        widths = list(zip(*kernel.halo, strict=True))
        padded = np.pad(array, widths, names[mode])
        blocks = Blocks(ArrayVolume("v", array), tiling, mode=mode, cval=0, dtype=np.dtype(np.float32))
        for tile in tiling.tiles():
            box = tuple(slice(a, a + n + b + c) for a, n, (b, c) in zip(tile.start, tile.shape, widths, strict=True))
            block = blocks.read(tile)
            assert block.flags.c_contiguous and np.array_equal(block, padded[box])


class Counting(ArrayVolume):
    """Counts how often each voxel is read."""

    def __init__(self, array):
        super().__init__("v", array)
        self.count = np.zeros(array.shape, int)

    def read_into(self, start, target):
        self.count[tuple(slice(a, a + n) for a, n in zip(start, target.shape, strict=True))] += 1
        super().read_into(start, target)


@pytest.mark.parametrize("layer", [1, 4])
def test_along_z_nothing_is_read_twice(rng, layer):
    volume = Counting(rng.standard_normal((21, 8, 9)).astype(np.float32))
    tiling = Tiling((21, 8, 9), (4, 8, 9), (2, 2, 2), (2, 2, 2), layer)
    blocks = Blocks(volume, tiling, mode="reflect", cval=0, dtype=np.dtype(np.float32))
    for tile in tiling.tiles():
        blocks.read(tile)
    assert (volume.count == 1).all()


def test_planes_of_a_layer_are_read_together(rng):
    reads = []

    class Noting(ArrayVolume):
        def read_into(self, start, target):
            reads.append((start[0], start[0] + target.shape[0]))
            super().read_into(start, target)

    volume = Noting("v", rng.standard_normal((21, 4, 4)).astype(np.float32))
    tiling = Tiling((21, 4, 4), (4, 4, 4), (1, 0, 0), (1, 0, 0), 4)
    blocks = Blocks(volume, tiling, mode="constant", cval=0, dtype=np.dtype(np.float32))
    for tile in tiling.tiles():
        blocks.read(tile)
    assert reads == [(0, 8), (8, 12), (12, 16), (16, 20), (20, 21)]


def test_tiles_fill_the_volume(rng):
    for _ in range(100):
        _, _, tiling, _, _ = random_case(rng)
        count = np.zeros(tiling.shape, int)
        for tile in tiling.tiles():
            count[tuple(slice(a, a + n) for a, n in zip(*tile, strict=True))] += 1
        assert (count == 1).all() and tiling.count() == len(list(tiling.tiles()))


def run(tiles, buffers, read, compute, write, done=lambda tile: None):
    """What the worker does with the tiles of a shard."""
    with closing(overlapped(tiles, buffers, read, write)) as blocks:
        for tile, block, out in blocks:
            compute(block, out)
            done(tile)


def plan(shape, halo, units, memory, spare_blocks=0):
    """The cheapest tiling of float32 voxels within so much memory."""
    candidates = tilings(shape, halo, units, shape)
    needed = [needed_bytes(tiling, 4, spare_blocks) for tiling in candidates]
    return cheapest(candidates, needed, memory, shape, units[0])


@pytest.mark.parametrize("memory", [1 << 20, 10 << 20, 100 << 20, 1 << 30])
def test_a_plan_keeps_its_memory_and_writes_whole_chunks(rng, memory):
    for _ in range(30):
        shape = tuple(int(n) for n in rng.integers(1, 2000, 3))
        reading, writing = (tuple(int(n) for n in rng.integers(1, 20, 3)) for _ in range(2))
        K = tuple(int(n) for n in rng.integers(0, 4, 3))
        tiling = plan(shape, (K, K), (reading, writing), memory, spare_blocks=1)
        assert needed_bytes(tiling, 4, 1) <= memory
        assert all(t % w == 0 or t == n for t, w, n in zip(tiling.tile, writing, shape, strict=True))
        assert needed_bytes(tiling, 4) == 8 * (np.prod(tiling.block) + np.prod(tiling.tile))


def test_a_plan_that_does_not_fit():
    halo = (1, 1, 1), (1, 1, 1)
    with pytest.raises(ResourceError, match=r"the smallest tiles, \(64, 64, 64\) .*take 6,.* bytes; 1,000 are left"):
        plan((640, 640, 640), halo, ((64, 64, 64), (64, 64, 64)), 1000)


def test_reading_and_writing_run_beside_the_computation():
    """Each side waits until the others have begun: in one thread, that would be for ever."""
    tiling = Tiling((6, 1, 1), (1, 1, 1), (0, 0, 0), (0, 0, 0))
    begun = {"read": [], "compute": [], "write": []}
    changed = threading.Condition()

    def note(kind, z):
        with changed:
            begun[kind].append(z)
            changed.notify_all()

    def wait(kind, z):
        with changed:
            assert changed.wait_for(lambda: z in begun[kind] or not 0 <= z < 6, timeout=300)

    def read(tile):
        note("read", tile.start[0])
        return np.full((1, 1, 1), tile.start[0], np.float32)

    def compute(block, out):
        z = int(block[0, 0, 0])
        note("compute", z)
        wait("read", z + 1)
        wait("write", z - 1)
        out[...] = block

    def write(tile, out):
        note("write", tile.start[0])
        wait("compute", tile.start[0] + 1)
        assert out[0, 0, 0] == tile.start[0]

    run(list(tiling.tiles()), buffers_for(tiling), read, compute, write)
    assert begun["write"] == list(range(6))


@pytest.mark.parametrize("side", ["read", "compute", "write", "done"])
@pytest.mark.parametrize("at", [0, 2, 5])
def test_an_error_of_any_side_ends_it(side, at):
    tiling = Tiling((6, 1, 1), (1, 1, 1), (0, 0, 0), (0, 0, 0))
    calls = dict.fromkeys(("read", "compute", "write", "done"), 0)

    def part(name):
        def act(*arguments):
            calls[name] += 1
            if name == side and calls[name] == at + 1:
                raise ZeroDivisionError(name)
            return np.zeros((1, 1, 1), np.float32) if name == "read" else None

        return act

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError, match=side):
        run(list(tiling.tiles()), buffers_for(tiling), part("read"), part("compute"), part("write"), part("done"))
    assert threading.active_count() == before
    assert all(count <= at + 3 for count in calls.values())
