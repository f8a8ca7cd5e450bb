"""Tests of conv3d beyond those of every rung: scipy and PyTorch agree, tiles have the bits of the whole result, values
that are not finite stay in their windows, bad arguments are named."""

from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.ndimage
import torch

from compare import Guarded, compare
from course_volumes import CASES, TOLERANCE, course_case, rand
from ops.cases import cases_of
from tilewright.bench.sizes import conv3d as spec
from tilewright.errors import Refused, UsageError
from tilewright.hardware import CPU
from tilewright.ops.conv3d import conv3d, ladder, prepare, prepare_separable
from tilewright.ops.conv3d.cpu import rows as in_rows
from tilewright.ops.conv3d.cpu import tiles
from tilewright.ops.conv3d.operands import index_map
from tilewright.ops.conv3d.problem import EPS32, MODES
from tilewright.ops.conv3d.rank_one import TOLERANCE as NEAR
from tilewright.ops.conv3d.rank_one import factors_of, product_of
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import threads
from tilewright.ops.core.memory import LINE

SOBEL = np.einsum("a,b,t->abt", [-1, 0, 1], [1, 2, 1], [1, 2, 1]).astype(np.float32)
LAPLACE = np.float32(
    [[[0, 0, 0], [0, 1, 0], [0, 0, 0]], [[0, 1, 0], [1, -6, 1], [0, 1, 0]], [[0, 0, 0], [0, 1, 0], [0, 0, 0]]]
)
PREFERRED = tuple(name for name in ladder.prefer if name.startswith("cpu."))
SHORTER = [pytest.param(name, marks=[pytest.mark.long] * (i > 0)) for i, name in enumerate(PREFERRED)]
TILED = ("cpu.naive", "cpu.taps", "cpu.vectors", "cpu.rows", "cpu.folded", "cpu.separable")  # all but the FFT


def normal(rng, *shape) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def gaussian(K: int) -> np.ndarray:
    """One factor of a kernel K long."""
    at = np.arange(K) - K // 2
    return np.exp(-0.5 * (at / (K / 8)) ** 2)


def weights_for(rung: str, rng, sizes=(5, 5, 5)) -> np.ndarray:
    """A kernel that the rung takes."""
    if rung == "cpu.separable":
        return np.einsum("a,b,t->abt", *(normal(rng, K).astype(np.float64) for K in sizes)).astype(np.float32)
    weights = normal(rng, *sizes)
    return weights + weights[::-1] if rung == "cpu.folded" else weights


def bound(x, weights, **border) -> np.ndarray:
    size = scipy.ndimage.correlate(np.abs(x).astype(np.float64), np.abs(weights).astype(np.float64), **border)
    return 4 * EPS32 * np.sqrt(weights.size) * size + 1e-37


@pytest.mark.parametrize("rung", TILED)
def test_planes_and_rows_may_run_backwards(rung, rng):
    """Rows are contiguous, but start below x's first element: nothing is copied, and the bits are those of a copy."""
    x, weights = normal(rng, 9, 11, 40), weights_for(rung, rng)
    with using(conv3d=rung):
        for flipped in (x[::-1], x[:, ::-1], x[::-1, ::-1]):
            for mode in ("reflect", "constant"):
                wanted = conv3d(np.ascontiguousarray(flipped), weights, mode=mode, cval=3)
                assert conv3d(flipped, weights, mode=mode, cval=3).tobytes() == wanted.tobytes()


def test_scipy_computes_the_same(rng):
    """Sizes, even kernels, borders and origins at random, on the rung that is chosen."""
    seen = set()
    for _ in range(150):
        x, sizes = normal(rng, *rng.integers(1, 24, 3)), rng.integers(1, 7, 3)
        weights = weights_for(rng.choice(TILED), rng, sizes)
        origin = tuple(int(rng.integers(-(K // 2), (K - 1) // 2 + 1)) for K in sizes)
        border = {"mode": str(rng.choice(MODES)), "origin": origin, "cval": float(rng.standard_normal())}
        packed = prepare(weights)
        seen.add(packed.rung)
        expected = scipy.ndimage.correlate(x.astype(np.float64), weights.astype(np.float64), **border)
        compare(conv3d(x, packed, **border), expected, bound(x, weights, **{**border, "cval": abs(border["cval"])}))
    assert seen == set(PREFERRED)


@pytest.mark.parametrize("mode", ["grid-mirror", "grid-constant", "grid-wrap"])
def test_scipys_other_names(mode, rng):
    x, weights = normal(rng, 4, 5, 6), normal(rng, 3, 4, 5)
    expected = scipy.ndimage.correlate(x.astype(np.float64), weights.astype(np.float64), mode=mode, cval=2)
    compare(conv3d(x, weights, mode=mode, cval=2), expected, bound(x, weights, mode=mode, cval=2))


def test_pytorch_computes_the_same(rng):
    for C, O, K in [(1, 1, 3), (3, 5, 3), (4, 2, 5), (2, 3, 1)]:
        x, weights = normal(rng, C, 9, 18, 20), normal(rng, O, C, K, K, K)
        tensors = torch.from_numpy(x).double()[None], torch.from_numpy(weights).double()
        sizes = np.abs(x), np.abs(weights)
        for mode, padding in (("constant", K // 2), ("valid", 0)):
            expected = torch.nn.functional.conv3d(*tensors, padding=padding)[0].numpy()
            size = torch.nn.functional.conv3d(*(torch.from_numpy(a).double() for a in sizes), padding=padding).numpy()
            result = conv3d(x, weights, mode=mode)
            compare(result, expected, EPS32 * np.sqrt(C * K**3) * size.reshape(expected.shape) + 1e-37)


def test_rand_is_that_of_c():
    assert list(islice(rand(), 5)) == [1804289383, 846930886, 1681692777, 1714636915, 1957747793]


@pytest.mark.parametrize("number", CASES)
def test_course_cases(number):
    x, weights = course_case(number)
    expected = scipy.ndimage.correlate(x.astype(np.float64), weights.astype(np.float64), mode="constant")
    result = conv3d(x, weights)
    error = np.abs(result - expected)
    assert (np.minimum(error, error / np.abs(expected)) < TOLERANCE).all()
    compare(result, expected, bound(x, weights, mode="constant"))


@pytest.mark.parametrize("rung", TILED)
def test_a_tile_is_the_whole_by_bits(rung, rng):
    """A piece of the volume with its halo, anywhere, of any size, on any threads, at any alignment."""
    x, weights = normal(rng, 40, 70, 90), weights_for(rung, rng, (5, 3, 4))
    with using(conv3d=rung):
        packed = prepare(weights)
        whole = conv3d(x, packed, mode="valid")
        for _ in range(12 if rung in PREFERRED else 3):
            low = np.array([rng.integers(0, n) for n in whole.shape])
            high = np.array([rng.integers(a + 1, n + 1) for a, n in zip(low, whole.shape, strict=True)])
            some = tuple(slice(a, b + K - 1) for a, b, K in zip(low, high, weights.shape, strict=True))
            with threads(int(rng.integers(1, 4))):
                tile = conv3d(x[some], packed, mode="valid")
            assert tile.tobytes() == whole[tuple(map(slice, low, high))].tobytes()


@pytest.mark.parametrize("rung", PREFERRED)
@pytest.mark.parametrize("mode", MODES)
def test_a_border_changes_no_bit(rung, mode, rng):
    """A volume whose border is written out has the same outputs."""
    x, weights = normal(rng, 20, 30, 40), weights_for(rung, rng, (5, 3, 4))
    origins = (1, -1, 0)
    maps = [index_map(n, K, mode, -(K // 2 + o)) for n, K, o in zip(x.shape, weights.shape, origins, strict=True)]
    wide = x[np.ix_(*maps)]
    outside = np.logical_or.outer(np.logical_or.outer(maps[0] < 0, maps[1] < 0), maps[2] < 0)
    wide[outside] = 3
    with using(conv3d=rung):
        assert (
            conv3d(x, weights, mode=mode, origin=origins, cval=3).tobytes()
            == conv3d(wide, weights, mode="valid").tobytes()
        )


@pytest.mark.parametrize("rung", PREFERRED)
@pytest.mark.parametrize("W", [1, 16, 30, 64])
def test_rows_past_the_caches(rung, W, rng, monkeypatch):
    """Streamed, at every alignment of out: the same bits, and nothing outside out is written."""
    x, weights = normal(rng, 6, 20, W), weights_for(rung, rng, (5, 3, 4))
    with using(conv3d=rung):
        packed = prepare(weights)
        expected = conv3d(x, packed)
        monkeypatch.setattr(tiles, "STREAMED", 0)
        for shift in (0, 3, 4, 15):
            out = Guarded((6, 20, W + shift))
            conv3d(x, packed, out=out.array[:, :, shift:])
            assert out.array[:, :, shift:].tobytes() == expected.tobytes()
            assert np.isnan(out.array[:, :, :shift]).all()
            out.check()


@pytest.mark.parametrize("rung", PREFERRED)
def test_small_tiles(rung, rng, monkeypatch):
    """Many tiles on each axis, as larger volumes have them, or smaller caches."""
    x, weights = normal(rng, 60, 50, 200), weights_for(rung, rng, (3, 5, 4))
    with using(conv3d=rung):
        packed = prepare(weights)
        expected = conv3d(x, packed, mode="mirror")
        monkeypatch.setattr(CPU, "l2", property(lambda self: 1 << 12), raising=False)
        monkeypatch.setattr(tiles, "TASKS", 100)
        monkeypatch.setattr(in_rows, "plan_for", in_rows.plan_for.__wrapped__)  # a cached plan has the old cache sizes
        for count in (1, 2):
            with threads(count):
                assert conv3d(x, packed, mode="mirror").tobytes() == expected.tobytes()


@pytest.mark.parametrize("lanes", [pytest.param(4, marks=pytest.mark.long), 8])
@pytest.mark.parametrize("rung", ["cpu.taps", "cpu.vectors", *SHORTER])
def test_shorter_vectors(lanes, rung, rng, monkeypatch):
    """The kernels of machines without AVX-512 and without AVX2 run anywhere."""
    monkeypatch.setattr(CPU, "lanes", lanes)
    for case in cases_of("conv3d"):
        if not ladder.rungs[rung].refuses(case.problem):
            inputs = spec.make(case, rng)
            expected = spec.reference(case, inputs)
            with using(conv3d=rung):
                result = spec.bind(case, inputs)()
            compare(result, expected, spec.bound(case, inputs, expected, ladder.rungs[rung].c))


KERNELS = {"sobel": SOBEL, "laplace": LAPLACE, "box": np.full((3, 3, 3), 0.5, np.float32)}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rung", TILED)
def test_what_is_not_finite_goes_where_six_loops_put_it(kernel, rung, rng):
    """Zero times infinity is a NaN, in a factor too. Outputs whose windows are finite have the same bits."""
    weights = KERNELS[kernel]
    x = normal(rng, 9, 40, 41)
    poisoned = x.copy()
    poisoned[2, 3, 4], poisoned[7, 20, 20], poisoned[5, 38, 40] = np.nan, np.inf, -np.inf
    poisoned[7, 21, 21] = -np.inf
    with using(conv3d="cpu.naive"):
        expected = conv3d(poisoned, weights, mode="nearest")
    with using(conv3d=rung):
        if ladder.rungs[rung].refuses(prepare_problem(weights)):
            pytest.skip(f"{rung} does not take {kernel}")
        result, clean = conv3d(poisoned, weights, mode="nearest"), conv3d(x, weights, mode="nearest")
    assert np.array_equal(np.isnan(result), np.isnan(expected))
    assert np.array_equal(result[np.isinf(result)], expected[np.isinf(expected)])
    assert np.isnan(result).any()
    assert np.isfinite(result).sum() > 0.9 * result.size
    finite = np.isfinite(expected)
    assert result[finite].tobytes() == clean[finite].tobytes()


def prepare_problem(weights):
    with using(conv3d="cpu.naive"):
        return prepare(weights).problem


def test_kernels_of_rank_one_are_found(rng):
    gauss = np.einsum("a,b,t->abt", gaussian(9), gaussian(17), gaussian(5)).astype(np.float32)
    for weights in (SOBEL, KERNELS["box"], gauss, -gauss, gauss[:, ::2], gauss[:1], np.float32(1e-20) * gauss):
        found = factors_of(weights)
        assert (np.abs(product_of(found) - weights) <= NEAR * np.abs(weights)).all()
        assert np.array_equal(product_of(found) == 0, weights == 0)
        assert prepare(weights).rung == "cpu.separable"


def test_other_kernels_are_not(rng):
    bent = np.einsum("a,b,t->abt", gaussian(9), gaussian(9), gaussian(9)).astype(np.float32)
    bent[8, 0, 3] *= 1.000002  # the smallest taps count too
    broken = np.ones((3, 3, 3), np.float32)
    broken[1, 1, 1] = np.nan
    others = [LAPLACE, bent, broken, np.zeros((3, 3, 3), np.float32), normal(rng, 3, 3, 3), normal(rng, 1, 1, 9)]
    for weights in others:
        assert factors_of(weights) is None
        assert prepare(weights).rung != "cpu.separable"
    assert prepare(LAPLACE).rung == "cpu.folded"
    assert prepare(normal(rng, 3, 3, 3)).rung == prepare(broken).rung == "cpu.rows"


def test_factors_are_rounded_once(rng):
    x, factors = normal(rng, 30, 20, 40), [gaussian(K) for K in (9, 7, 11)]
    rounded = [factor.astype(np.float32) for factor in factors]
    assert conv3d(x, prepare_separable(factors)).tobytes() == conv3d(x, prepare_separable(rounded)).tobytes()
    weights = product_of(tuple(rounded))
    expected = scipy.ndimage.correlate(x.astype(np.float64), weights, mode="constant")
    compare(conv3d(x, prepare_separable(factors)), expected, bound(x, weights, mode="constant"))


def test_other_arrays(rng):
    x, weights = normal(rng, 9, 10, 11), normal(rng, 3, 3, 3)
    expected = conv3d(x, weights)
    tensor = conv3d(torch.from_numpy(x), torch.from_numpy(weights))
    assert isinstance(tensor, torch.Tensor)
    assert np.array_equal(tensor.numpy(), expected)
    for out in (np.empty((9, 10, 22), np.float32)[:, :, ::2], np.empty((11, 10, 9), np.float32).T):
        assert conv3d(x, weights, out=out) is out
        assert np.array_equal(out, expected)
    assert conv3d(x, weights, out=x) is x
    assert np.array_equal(x, expected)


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_volume(mode):
    for sizes in ((0, 4, 5), (4, 0, 5), (4, 5, 0)):
        assert conv3d(np.empty(sizes, np.float32), np.ones((3, 3, 3), np.float32), mode=mode, cval=1e300).shape == sizes


def test_weights_are_copied(rng):
    x, weights = normal(rng, 9, 10, 11), normal(rng, 3, 3, 3)
    packed = prepare(weights)
    expected = conv3d(x, packed)
    weights[:] = 0
    assert np.array_equal(conv3d(x, packed), expected)


X, W = np.ones((4, 5, 6), np.float32), np.ones((3, 2, 3), np.float32)
C = {"x": np.ones((2, 4, 5, 6), np.float32), "weights": np.ones((7, 2, 3, 3, 3), np.float32)}
MISTAKES = [
    ({"x": X[0]}, "x is (5, 6) and weights are (3, 2, 3); x must be (D, H, W)"),
    ({"x": X.astype(np.float64)}, "x is float64; float32 or bfloat16 is wanted"),
    ({"weights": W.astype(np.float64)}, "weights is float64; float32 or bfloat16 is wanted"),
    ({"weights": W[0]}, "weights has shape (2, 3); (KD, KH, KW) or (O, C, KD, KH, KW) is wanted"),
    ({"weights": W[:0]}, "weights has shape (0, 2, 3)"),
    ({**C, "x": X}, "x is (4, 5, 6) and weights are (7, 2, 3, 3, 3); x must be (C, D, H, W) with C = 2 channels"),
    ({**C, "x": C["x"][:1]}, "x must be (C, D, H, W) with C = 2 channels"),
    ({"mode": "same"}, "mode is 'same'; it must be one of reflect, constant"),
    ({"cval": "x"}, "cval is 'x'; a number is wanted"),
    ({"origin": 1.5}, "origin is 1.5; an integer, or one for each axis, is wanted"),
    ({"origin": (0, 0)}, "origin is (0, 0); an integer, or one for each of three axes, is wanted"),
    ({"origin": 2}, "origin is 2 and the kernel is (3, 2, 3); with 3 taps it goes from -1 to 1"),
    ({"origin": (0, 1, 0)}, "with 2 taps it goes from -1 to 0"),
    ({"mode": "valid", "origin": (0, -1, 0)}, "origin is (0, -1, 0); mode 'valid' has outputs for whole windows only"),
    ({"mode": "valid", "weights": np.ones((5, 1, 1), np.float32)}, "x is (4, 5, 6) and the kernel is (5, 1, 1)"),
    ({"out": np.empty((4, 5, 7), np.float32)}, "a writeable float32 NumPy array of shape (4, 5, 6) is wanted"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES)
def test_mistakes_are_named(change, message):
    with pytest.raises(UsageError) as caught:
        conv3d(**{"x": X, "weights": W, **change})
    assert message in str(caught.value)


@pytest.mark.parametrize("factors", [(W[0, 0],) * 2, (W, W, W), (W[0, 0], W[0, 0], np.ones(0)), ([1, 2], [1], [1])])
def test_wrong_factors_are_named(factors):
    with pytest.raises(UsageError, match="three vectors of float32, float64 or bfloat16 are wanted"):
        prepare_separable(factors)


def test_a_rung_that_was_not_prepared_for():
    with using(conv3d="cpu.naive"):
        packed = prepare(W)
    with pytest.raises(UsageError, match=r"prepared for rung cpu\.naive"):
        conv3d(X, packed)
    with using(conv3d="cpu.separable"), pytest.raises(Refused, match="no outer product"):
        prepare(LAPLACE)


def test_index_maps_are_shared_and_cannot_be_written_to():
    first, again = (index_map(5, 3, "mirror", -1) for _ in range(2))
    assert first is again
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 7


def test_copies_do_not_cross_lines_where_windows_stay_in_l1(monkeypatch):
    """The volume's first column is aligned to a vector in scratch, unless three lines per row are too many for L1."""
    monkeypatch.setattr(tiles, "cpu", lambda: SimpleNamespace(lanes=16, l1d=32 << 10))
    for K, left, pad in [(3, 1, 15), (3, 0, 0), (3, 2, 14), (5, 2, 0)]:
        assert tiles.pad_of(spec.Problem(1, 1, K, K, K), 16, left) == pad
    assert tiles.pad_of(spec.Problem(32, 16, 3, 3, 3), 16, 1) == 0
    monkeypatch.setattr(tiles, "cpu", lambda: SimpleNamespace(lanes=16, l1d=48 << 10))
    assert [tiles.pad_of(spec.Problem(1, 1, K, K, K), 16, 2) for K in (3, 5)] == [14, 0]


@pytest.mark.parametrize("rung", ["cpu.rows", "cpu.folded"])
@pytest.mark.parametrize("shape", [(9, 5, 20), (5, 66, 33), (4, 20, 600), (3, 150, 17), (2, 16, 1100)])
def test_blocks_of_any_size_copy_rows(rung, shape, rng):
    """More and fewer blocks in a plane than rows to copy; rows of fewer and of more vectors than a block copies."""
    x = normal(rng, *shape)
    for sizes in ((3, 3, 3), (5, 1, 1), (2, 5, 3), (4, 2, 1)):
        weights = weights_for(rung, rng, sizes)
        with using(conv3d="cpu.naive"):
            expected = conv3d(x, weights, mode="wrap")
        with using(conv3d=rung):
            result = conv3d(x, weights, mode="wrap")
        compare(result, expected, bound(x, weights, mode="wrap"))


def test_cached_borders_change_nothing(rng):
    """Borders are cached by value: a changed object is read again, and a bad origin is refused again."""

    class Number:
        value = 1.0

        def __float__(self):
            return self.value

    x, cval = rng.standard_normal((6, 7, 8), dtype=np.float32), Number()
    weights = prepare(np.ones((3, 3, 3), np.float32))
    assert conv3d(x, weights, cval=cval).tobytes() == conv3d(x, weights, cval=1.0).tobytes()
    cval.value = 2.0
    assert conv3d(x, weights, cval=cval).tobytes() == conv3d(x, weights, cval=2.0).tobytes()
    conv3d(x, weights, origin=0)
    with pytest.raises(UsageError, match=r"origin is 0\.0"):
        conv3d(x, weights, origin=0.0)


def test_blocks_are_whole_cache_lines_where_results_are_streamed():
    """Half a line that bypasses the caches costs a read and a write of the line."""
    assert tiles.COLUMNS[16] == tiles.COLUMNS[8] == LINE // 4
    assert all(height % tiles.ROWS[lanes] == 0 for lanes in tiles.FUSED for height, _ in tiles.FUSED[lanes])
