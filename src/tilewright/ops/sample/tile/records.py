"""What the tile kernels of sample pass around, and what they do with one row of scores.

The order of a row's tokens is by falling score, equal scores by rising id. Scores are compared as integer keys that
grow with them. A point of the order is a key and the number of a token among those of that key.

Triton 3.6 cannot read a field named `values` or `type` of a record, so no record here has one.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

NO_KEY = tl.constexpr(2147483647)  # above the key of every score
LOG2E = tl.constexpr(1.4426950408889634)
LEAST_TEMPERATURE = tl.constexpr(1e-200)  # only the best score has a weight there, and the reciprocal is finite
WAITS = tl.constexpr(-2)  # instead of a token: another kernel draws it


class Sizes(NamedTuple):
    """V: scores of a row. stride: elements from a row of logits, or of scores, to the next one. groups: elements of a
    row of peaks, or None."""

    V: Any
    stride: Any
    groups: Any = None


class Point(NamedTuple):
    """A point of the order of a row. key: int64. tie: which of the tokens of that key, from 1, int64. weight: float64,
    the sum of the weights up to it."""

    key: Any
    tie: Any
    weight: Any


class Limits(NamedTuple):
    """The rules of a row, see `operands.Rules`: u, temperature, top_p and min_p float64, top_k int64."""

    u: Any
    temperature: Any
    top_p: Any
    min_p: Any
    top_k: Any


class Tokens(NamedTuple):
    """Tokens in registers. ids: int32 (SIZE,). keys: int32 (SIZE,). weights: float64 (SIZE,). valid: bool (SIZE,),
    True for the tokens that count."""

    ids: Any
    keys: Any
    weights: Any
    valid: Any


@triton.jit
def limits_of(floats, integers, i):
    """The `Limits` of row i. floats, integers: pointers to the arrays of `Rules`, (n, 5) each."""
    row = floats + 5 * i
    return Limits(tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3), tl.load(integers + 5 * i))


@triton.jit
def scale_of(limits):
    """log2(e) / temperature, float64: what a difference of scores is multiplied with."""
    return LOG2E / tl.maximum(limits.temperature, LEAST_TEMPERATURE)


@triton.jit
def key_of(x):
    """int32 keys of float32 values, in their order; 0.0 and -0.0 have the same key."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def load_scores(row, first, V, SIZE: tl.constexpr):
    """(ids, scores) of SIZE tokens of the row at pointer `row`, from id `first` on; scores are -inf from id V on."""
    ids = first + tl.arange(0, SIZE)
    return ids, tl.load(row + ids, mask=ids < V, other=-float("inf"))
