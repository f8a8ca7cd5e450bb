"""What correlate promises beside its numbers: dtypes, overlap, tiles, threads, and errors that name what is wrong."""

import numpy as np
import pytest

from compare import Guarded, compare
from tilewright.bench.sizes.correlate import numbers
from tilewright.errors import UsageError
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import threads
from tilewright.ops.correlate import correlate, correlate1d, uniform1d
from tilewright.ops.correlate.frame import AXES, LEAST_TILE, TILE_NUMBERS, axes_of, tile_sizes
from tilewright.ops.correlate.operands import KINDS, line_taps
from tilewright.ops.correlate.reference import correlate as truth

TILED = ["cpu.tiles", "cpu.registers"]


@pytest.mark.parametrize("rung", TILED)
@pytest.mark.parametrize("shape", [(3000,), (70, 131), (20, 33, 45), (7, 6, 21, 40)])
def test_rungs_have_the_same_bits(rung, shape, rng):
    """A sum runs in one order, wherever a tile begins."""
    x = rng.standard_normal(shape)
    weights = rng.standard_normal((4, 3, 2, 3)[: len(shape)])
    line = rng.standard_normal(7)
    for call in (
        lambda: correlate(x, weights, mode="wrap"),
        lambda: correlate1d(x, line, 0, mode="mirror"),
        lambda: correlate1d(x, line + line[::-1], -1, cval=2.0),
        lambda: correlate1d(x, line - line[::-1], 0),
    ):
        with using(correlate="cpu.naive"):
            naive = call()
        with using(correlate=rung):
            assert call().tobytes() == naive.tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("out_kind", KINDS)
def test_any_dtype_into_any_other(kind, out_kind, rng):
    """The identity is the cast; C's and NumPy's agree on what fits."""
    x = (
        numbers(rng, (5, 33), kind)
        if kind.startswith("float")
        else numbers(rng, (5, 33), kind) & numbers(rng, (5, 33), kind)
    )
    x = np.abs(x) % 100 if kind not in ("bool", "int8") else x.astype(bool).astype(kind)
    out = np.empty((5, 66), out_kind)[:, ::2]
    assert correlate(x, [[1.0]], out=out) is out
    wanted = x.astype(np.float64).astype(np.int64) != 0 if out_kind == "bool" else x.astype(np.float64).astype(out_kind)
    assert np.array_equal(out, wanted)
    assert np.array_equal(correlate1d(x, [1.0], 0, out=np.empty((5, 33), out_kind)), wanted)


@pytest.mark.parametrize("rung", ["cpu.naive", *TILED])
def test_in_place_and_beside(rung, rng):
    x = rng.standard_normal((150, 170))
    weights, line = rng.standard_normal((3, 3)), rng.standard_normal(9)
    with using(correlate=rung):
        for call in (
            lambda a, out: correlate(a, weights, mode="nearest", out=out),
            lambda a, out: correlate1d(a, line, 0, mode="nearest", out=out),
            lambda a, out: correlate1d(a, line, 1, mode="nearest", out=out),
        ):
            wanted = call(x[:-1], None)
            place = x[:-1].copy()
            assert call(place, place) is place and place.tobytes() == wanted.tobytes()
            shared = x.copy()
            call(shared[:-1], shared[1:])
            assert shared[1:].tobytes() == wanted.tobytes()


def test_in_place_along_lines_longer_than_a_tile(rng):
    """Lines that no tile holds whole, and lines that one does, though it is larger than usual."""
    for shape, axis in (((3, 140_000), 1), ((20_000, 3), 0), ((140_000,), 0)):
        x, line = rng.standard_normal(shape), rng.standard_normal(5)
        wanted = correlate1d(x, line, axis)
        assert correlate1d(x, line, axis, out=x).tobytes() == wanted.tobytes()


def test_nothing_is_written_beside_the_output(rng):
    x = rng.standard_normal((9, 37, 41)).astype(np.float32)
    for call in (
        lambda out: correlate(x, np.ones((3, 3, 3)), out=out),
        lambda out: correlate1d(x, [1, 2, 1], 1, out=out),
        lambda out: uniform1d(x, 5, 2, out=out),
        lambda out: uniform1d(x, 5, 0, out=out),
    ):
        out = Guarded(x.shape)
        call(out.array)
        out.check()


def test_swapped_bytes_and_misaligned_arrays(rng):
    x = rng.standard_normal((6, 20))
    wanted = correlate(x, np.ones((3, 3)))
    assert np.array_equal(correlate(x.astype(">f8"), np.ones((3, 3))), wanted)
    out = np.empty(x.shape, ">f8")
    correlate(x, np.ones((3, 3)), out=out)
    assert np.array_equal(out, wanted)
    records = np.zeros(x.shape, [("byte", "u1"), ("number", "f8")])
    records["number"] = x
    assert np.array_equal(correlate(records["number"], np.ones((3, 3))), wanted)
    correlate(x, np.ones((3, 3)), out=records["number"])
    assert np.array_equal(records["number"], wanted) and not records["byte"].any()


def test_threads_do_not_change_bits(rng):
    x = rng.standard_normal((60, 70, 80))
    for call in (
        lambda: correlate(x, np.ones((3, 2, 3)) / 3),
        lambda: uniform1d(x, 7, 0),
        lambda: correlate1d(x, [0.1, 0.7, 0.1], 1),
    ):
        with threads(1):
            one = call()
        with threads(3):
            assert call().tobytes() == one.tobytes()


def test_nan_stays_under_the_window(rng):
    x = rng.standard_normal((40, 50))
    x[20, 30] = np.nan
    clean = np.nan_to_num(x)
    wrong = np.isnan(correlate(x, np.ones((3, 5))))
    assert wrong[19:22, 28:33].all() and wrong.sum() == 15
    assert not np.isnan(correlate(x, np.where(np.arange(3) == 1, 0.0, 1.0)[:, None]))[20, 30]  # a zero takes nothing
    rest = ~wrong
    assert np.array_equal(correlate(x, np.ones((3, 5)))[rest], correlate(clean, np.ones((3, 5)))[rest])


def test_tiles_fit_and_are_many():
    for shape, window in (
        ((1, 1, 256, 65536), (1, 1, 9, 1)),
        ((1, 256, 256, 256), (1, 5, 5, 5)),
        ((9, 9, 9, 9), (3,) * 4),
    ):
        sizes = tile_sizes(shape, window, False)
        held = np.prod([size + taps - 1 for size, taps in zip(sizes, window, strict=True)])
        assert held <= TILE_NUMBERS and all(size <= n for size, n in zip(sizes, shape, strict=True))
        if np.prod(shape) > 8 * LEAST_TILE:
            assert np.prod([-(-n // size) for n, size in zip(shape, sizes, strict=True)]) >= 8
    assert tile_sizes((1, 1, 30_000, 100), (1, 1, 9, 1), True)[2] == 30_000


def test_axes_that_no_tap_leaves_are_one():
    x = np.zeros((3, 4, 5, 6, 7))
    assert [axis.size for axis in axes_of(x, x, (1, 1, 3, 1, 1))] == [12, 5, 42]
    assert [axis.size for axis in axes_of(x, x, (1,) * 5)] == [x.size]
    assert [axis.size for axis in axes_of(x.T, x.T, (1, 1, 3, 1, 1))] == [12, 5, 42]
    assert [axis.size for axis in axes_of(x[:, :, :, ::2], x[:, :, :, ::2], (3, 1, 1, 1, 1))] == [3, 60, 7]


def test_a_symmetric_kernel_goes_in_pairs():
    assert (
        line_taps(np.array([1.0, 2, 1]), 0, 1).sign == 1 and len(line_taps(np.array([1.0, 2, 1]), 0, 1).partners) == 1
    )
    assert line_taps(np.array([-1.0, 2, 1]), 0, 1).sign == -1
    assert not len(line_taps(np.array([1.0, 2, 1, 2]), 0, 1).partners)
    assert not len(line_taps(np.array([1e-18, 2, 2e-18]), 0, 1).partners)  # small numbers differ too


def test_more_axes_than_loops(rng):
    x = rng.standard_normal((2, 3, 2, 3, 2, 2))
    window = (1, 3, 1, 2, 1, 1)
    weights = rng.standard_normal(window)
    compare(correlate(x, weights, mode="reflect"), truth(x, weights, "reflect"), 1e-14, dtype=np.float64)
    with pytest.raises(UsageError, match=f"at most {AXES} extents above 1"):
        correlate(x, np.ones((2,) * 6))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: correlate(x, [1.0]), r"weights has shape \(1,\) and x \(4, 5\)"),
        (lambda x: correlate(x, [[1j]]), "weights is complex128"),
        (lambda x: correlate(x, [[1.0]], mode="around"), "mode is 'around'"),
        (lambda x: correlate(x, [[1.0]], mode=["wrap"]), "mode has 1 entries; x has 2 dimensions"),
        (lambda x: correlate(x, [[1.0, 2.0]], origin=[0, 1]), "origin is 1; -1 to 0 is wanted for 2 taps"),
        (lambda x: correlate(x, [[1.0]], origin=0.0), "origin is 0.0; an integer is wanted"),
        (lambda x: correlate(x.astype(np.float16), [[1.0]], out=x), "x is float16"),
        (lambda x: correlate(x, [[1.0]], out=x[1:]), r"out is float64 \(3, 5\)"),
        (lambda x: correlate1d(x, [[1.0]]), r"weights has shape \(1, 1\)"),
        (lambda x: correlate1d(x, [1.0], 2), "axis is 2; x has 2 dimensions"),
        (lambda x: uniform1d(x, 0), "size is 0; at least 1"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(UsageError, match=message):
        call(np.zeros((4, 5)))
