"""bfloat16 against ml_dtypes: rounding of every upper half, pairs, limbs, and the pair products."""

import ml_dtypes
import numpy as np
import pytest
from numba import types

from compare import compare
from tilewright import simd
from tilewright.hardware import cpu

LANES = 16
WORDS = types.void(simd.INPUT, simd.OUTPUT, types.int64)


@simd.kernel(WORDS, name="test.rounded")
def rounded(source, words, count):
    for i in range(0, words.size, LANES):
        simd.store(words, i, simd.load_rounded(source, 2 * i, count - 2 * i, LANES))


@simd.kernel(WORDS, name="test.remainder")
def remainder(source, words, count):
    for i in range(0, words.size, LANES):
        simd.store(words, i, simd.load_remainder(source, 2 * i, count - 2 * i, LANES))


@simd.kernel(types.void(simd.INPUT, simd.INPUT, simd.OUTPUT, simd.OUTPUT), name="test.pairs")
def pairs(low, high, first, second):
    for i in range(0, low.size, LANES):
        x, y = simd.load(low, i, LANES), simd.load(high, i, LANES)
        simd.store(first, i, simd.pair_rounded(x, y))
        simd.store(second, i, simd.pair_remainder(x, y))


def every_upper_half() -> np.ndarray:
    """float32 with all 65,536 upper halves, and lower halves around the ties."""
    upper = np.arange(65536, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (upper[:, None] | lower).reshape(-1).view(np.float32)


def as_bfloat16(words: np.ndarray) -> np.ndarray:
    return words.view(ml_dtypes.bfloat16)


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    both_nan = np.isnan(found.astype(np.float32)) & np.isnan(expected.astype(np.float32))
    return bool(((found.view(np.uint16) == expected.view(np.uint16)) | both_nan).all())


def test_rounding_of_every_upper_half():
    numbers = every_upper_half()
    words = np.zeros(numbers.size // 2, np.float32)
    rounded(numbers, words, numbers.size)
    with np.errstate(invalid="ignore"):
        assert same(as_bfloat16(words), numbers.astype(ml_dtypes.bfloat16))


def test_elements_after_the_count_are_zero(rng):
    numbers = rng.standard_normal(128, dtype=np.float32)
    for count in (0, 1, 31, 32, 33, 63, 64):
        words = np.full(64, np.nan, np.float32)
        rounded(numbers, words, count)
        expected = np.where(np.arange(128) < count, numbers, 0).astype(ml_dtypes.bfloat16)
        assert same(as_bfloat16(words), expected), count


def test_two_limbs_hold_seventeen_bits(rng):
    numbers = (rng.standard_normal(4096) * 10.0 ** rng.integers(-20, 20, 4096)).astype(np.float32)
    high, low = np.zeros(2048, np.float32), np.zeros(2048, np.float32)
    rounded(numbers, high, numbers.size)
    remainder(numbers, low, numbers.size)
    total = as_bfloat16(high).astype(np.float64) + as_bfloat16(low).astype(np.float64)
    assert (np.abs(total - numbers) <= np.abs(numbers) * 2.0**-17).all()


def test_infinities_and_nans_have_no_remainder():
    numbers = np.resize(np.array([np.nan, np.inf, -np.inf, 3.4e38], np.float32), 64)
    words = np.full(32, 1, np.float32)
    remainder(numbers, words, 64)
    assert (as_bfloat16(words).astype(np.float32) == 0).all()


def test_pairs_of_two_vectors(rng):
    low, high = rng.standard_normal((2, 64), dtype=np.float32)
    first, second = np.zeros(64, np.float32), np.zeros(64, np.float32)
    pairs(low, high, first, second)
    woven = np.stack([low, high], axis=1).reshape(-1)
    expected = woven.astype(ml_dtypes.bfloat16)
    assert same(as_bfloat16(first), expected)
    rest = (woven - expected.astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert same(as_bfloat16(second), rest)


@pytest.mark.parametrize("name", ["block_widened_pair", "block_mixed_pair", "block_dot_pair"])
def test_a_block_of_pair_products(name, rng):
    if name == "block_dot_pair" and not cpu().has("avx512bf16"):
        pytest.skip("this CPU has no avx512bf16")
    product, rows, depth = getattr(simd, name), 12, 9
    numbers = 2 if name == "block_mixed_pair" else 1

    @simd.kernel(types.void(simd.INPUT, simd.INPUT, simd.OUTPUT_2D), name=f"test.{name}")
    def multiplied(a, b, c):
        block = simd.block_zeros(rows, 2, LANES)
        for p in range(depth):
            block = product(block, a, p * rows * numbers, b, p * 2 * LANES)
        simd.block_store(block, c, 0, c.shape[1], 2 * LANES)

    a = rng.standard_normal((depth, rows, 2)).astype(ml_dtypes.bfloat16)
    b = rng.standard_normal((depth, 2 * LANES, 2)).astype(ml_dtypes.bfloat16)
    c = np.full((rows, 2 * LANES), np.nan, np.float32)
    apart = a.transpose(0, 2, 1).astype(np.float32).reshape(-1)
    multiplied(apart if numbers == 2 else a.reshape(-1).view(np.float32), b.reshape(-1).view(np.float32), c)
    reference = np.einsum("pik,pjk->ij", a.astype(np.float64), b.astype(np.float64))
    size = np.einsum("pik,pjk->ij", np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
    compare(c, reference, np.finfo(np.float32).eps * 5 * size)


def test_rounded_store(rng):
    @simd.kernel(types.void(simd.INPUT, types.Array(types.uint16, 1, "C")), name="test.rounded_store")
    def stored(x, out):
        simd.store_rounded(out, 1, simd.load(x, 0, LANES))

    x, out = rng.standard_normal(LANES, dtype=np.float32), np.zeros(LANES + 2, np.uint16)
    stored(x, out)
    assert (out[1:-1] == x.astype(ml_dtypes.bfloat16).view(np.uint16)).all() and out[0] == out[-1] == 0


@pytest.mark.skipif(not cpu().has("avx512bf16"), reason="this CPU has no avx512bf16")
def test_converted_store_rounds_to_nearest_even_and_takes_denormals_for_zero():
    """Ties, infinities, NaN and the largest finite value; only denormals differ from `store_rounded`."""

    @simd.kernel(types.void(simd.INPUT, types.Array(types.uint16, 1, "C")), name="test.converted_store")
    def converted(x, out):
        simd.store_converted(out, 0, simd.load(x, 0, 16))

    bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x80000000, 0x00800000]
    x = np.array([*bits, 0x00400000, 0x80000001, 0x7FC00000, *bits[:5]], np.uint32).view(np.float32)
    out = np.zeros(16, np.uint16)
    converted(x, out)
    wanted = np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x).astype(
        ml_dtypes.bfloat16
    )
    number = ~np.isnan(x)
    assert (out[number] == wanted.view(np.uint16)[number]).all() and np.isnan(
        out.view(ml_dtypes.bfloat16)[~number]
    ).all()
