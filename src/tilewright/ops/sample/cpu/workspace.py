"""A thread's memory for a row of V scores, and the keys by which they are ordered."""

from typing import NamedTuple

import numpy as np

from tilewright import simd

BLOCK = 64  # scores of which the largest is looked for
STEPS_BITS = 17  # of a float32 that do not count: 64 buckets from a power of two to the next
LEAST_STEP = (127 - 10) << 6  # distances below 2**-10 share the first bucket
BUCKETS = 18 * 64 + 2  # those from 2**8 on share the last
LINE = 16  # float32 of a cache line


class Room(NamedTuple):
    """Views of a thread's scratch. scores float32 (V,), padded with -inf to whole vectors; bits: theirs, int32.

    distances float32 (V,): how far below the best; steps: their bits. weights float64 (V,). keys int64 (V,). sums
    float64 (BUCKETS,). places int32 (V,): where in the row the scores were, if some were taken out. ends float32 (2,):
    of a bucket; end_bits: theirs.
    """

    scores: np.ndarray
    bits: np.ndarray
    distances: np.ndarray
    steps: np.ndarray
    weights: np.ndarray
    keys: np.ndarray
    sums: np.ndarray
    places: np.ndarray
    ends: np.ndarray
    end_bits: np.ndarray


def words(V: int) -> int:
    """float32 of scratch for a row."""
    return 7 * padded(V) + 2 * BUCKETS + LINE


def padded(V: int) -> int:
    """V up to whole cache lines."""
    return -(-V // LINE) * LINE


@simd.inline
def room_of(scratch, V):
    """The views of a scratch of `words(V)`."""
    step = (V + LINE - 1) // LINE * LINE
    scores, distances = scratch[:step], scratch[step : 2 * step]
    weights = scratch[2 * step : 4 * step].view(np.float64)
    keys = scratch[4 * step : 6 * step].view(np.int64)
    places = scratch[6 * step : 7 * step].view(np.int32)
    sums = scratch[7 * step : 7 * step + 2 * BUCKETS].view(np.float64)
    ends = scratch[7 * step + 2 * BUCKETS : 7 * step + 2 * BUCKETS + LINE]
    bits, steps, end_bits = scores.view(np.int32), distances.view(np.int32), ends.view(np.int32)
    return Room(scores, bits, distances, steps, weights, keys, sums, places, ends, end_bits)


@simd.inline
def key_of(bits, place):
    """The key of a score's bits (int32; no negative zero) and its place."""
    rising = np.int64(bits) if bits >= 0 else np.int64(bits) ^ np.int64(0x7FFFFFFF)
    return (~rising << np.int64(32)) | np.int64(place)


@simd.inline
def place_of(key):
    """The place in a key."""
    return key & np.int64(0xFFFFFFFF)
