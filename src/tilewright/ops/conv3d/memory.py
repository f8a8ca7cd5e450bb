"""Bytes of conv3d's weights in each rung's layout, besides the float32 copy that every `Packed` has of them.

The tests compare each figure with the arrays that `prepare` makes.
"""

from tilewright.ops.conv3d.problem import Problem
from tilewright.ops.core.ladder import Memory
from tilewright.ops.gemm.memory import padded

DEPTH = 16  # products of a tile of `tile.channels`
LEAST, MOST_IN, MOST_OUT = 16, 32, 64  # channels of a tile of `tile.taps_limbs`


def whole(problem: Problem) -> Memory:
    """float32, all taps in another order or on a GPU."""
    return Memory(4 * problem.O * problem.C * problem.KD * problem.KH * problem.KW)


def folded(problem: Problem) -> Memory:
    """As `whole`, without the planes that equal an earlier one."""
    planes = problem.KD - problem.KD // 2
    return Memory(4 * problem.O * problem.C * planes * problem.KH * problem.KW)


def at_launch(problem: Problem) -> Memory:
    """None: each launch passes the weights as constants."""
    return Memory()


def channels(problem: Problem) -> Memory:
    """float32 (depth, O) and int32 (4, depth), the depth whole tiles; first on the host, then on the GPU."""
    depth = padded(problem.C * problem.KD * problem.KH * problem.KW, DEPTH)
    own = 4 * depth * problem.O + 16 * depth
    return Memory(own, own)


def limbs(problem: Problem) -> Memory:
    """Two bfloat16 limbs of (taps, O, C), channels padded to whole tiles; made of the padded float32 weights."""
    O = padded(problem.O, tile_channels(problem.O, MOST_OUT))
    C = padded(problem.C, tile_channels(problem.C, MOST_IN))
    own = 4 * problem.KD * problem.KH * problem.KW * O * C
    return Memory(own, whole(problem).prepared + 3 * own)


def tile_channels(count: int, most: int) -> int:
    """Channels of a tile of `tile.taps_limbs` where there are `count`."""
    return min(most, max(LEAST, 1 << (count - 1).bit_length()))


def factors(problem: Problem) -> Memory:
    """Three float32 vectors on a GPU."""
    return Memory(4 * (problem.KD + problem.KH + problem.KW))
