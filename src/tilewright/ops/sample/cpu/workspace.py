"""A thread's memory for a row of V scores, and the keys by which scores are ordered.

A key is an int64. Its upper half falls as the score rises, its lower half is the index in the row. So the keys of a row
all differ, and in rising order of keys scores fall and equal scores have rising indices.
"""

from typing import NamedTuple

import numpy as np

from tilewright import simd

BLOCK = 64  # scores per block; a block's maximum bounds them
STEPS_BITS = 17  # low bits of a float32 distance that are ignored: 64 buckets from a power of two to the next
LEAST_STEP = (127 - 10) << 6  # distances below 2**-10 share the first bucket
BUCKETS = 18 * 64 + 2  # distances from 2**8 on share the last
LINE = 16  # float32 of a cache line


class Workspace(NamedTuple):
    """Views of a thread's scratch. scores: float32 (V,), padded with -inf to whole vectors; score_bits: theirs, int32.

    distances: float32 (V,), of the scores from the best; distance_bits: theirs. weights: float64 (V,). keys: int64
    (V,). sums: float64 (BUCKETS,), of the weights of a bucket. indices: int32 (V,), where in the row the scores were
    before `compact_best`. limits: float32 (2,), the distances at which a bucket begins and ends; limit_bits: theirs.
    """

    scores: np.ndarray
    score_bits: np.ndarray
    distances: np.ndarray
    distance_bits: np.ndarray
    weights: np.ndarray
    keys: np.ndarray
    sums: np.ndarray
    indices: np.ndarray
    limits: np.ndarray
    limit_bits: np.ndarray


def scratch_words(V: int) -> int:
    """float32 of scratch for a row."""
    return 7 * (-(-V // LINE) * LINE) + 2 * BUCKETS + LINE


@simd.inline
def workspace_of(scratch, V):
    """The views of a scratch of `scratch_words(V)`."""
    step = (V + LINE - 1) // LINE * LINE
    scores, distances = scratch[:step], scratch[step : 2 * step]
    weights = scratch[2 * step : 4 * step].view(np.float64)
    keys = scratch[4 * step : 6 * step].view(np.int64)
    indices = scratch[6 * step : 7 * step].view(np.int32)
    sums = scratch[7 * step : 7 * step + 2 * BUCKETS].view(np.float64)
    limits = scratch[7 * step + 2 * BUCKETS : 7 * step + 2 * BUCKETS + LINE]
    score_bits, distance_bits, limit_bits = scores.view(np.int32), distances.view(np.int32), limits.view(np.int32)
    return Workspace(scores, score_bits, distances, distance_bits, weights, keys, sums, indices, limits, limit_bits)


@simd.inline
def key_of(bits, index):
    """The key of a score's bits (int32; no negative zero) and its index."""
    rising = np.int64(bits) if bits >= 0 else np.int64(bits) ^ np.int64(0x7FFFFFFF)
    return (~rising << np.int64(32)) | np.int64(index)


@simd.inline
def index_of(key):
    """The index in a key."""
    return key & np.int64(0xFFFFFFFF)
