"""Finds the score at which the cumulative sum of the weights, from the largest weight down, reaches a target.

Weights fall as the distance from the best score rises, so a bucket of near distances holds large weights. Each bucket
has the sum of its weights, and only the bucket in which the target is reached is put in order. The limit is the scalar
additions to buckets. m: weights of the row, in all functions.
"""

import functools

from tilewright import simd
from tilewright.ops.sample.cpu.select import reach
from tilewright.ops.sample.cpu.workspace import BUCKETS, LEAST_STEP, STEPS_BITS, key_of

NAN_BITS = 0x7FC00000  # a limit that no distance reaches, not even infinity
SURE = 1e-9  # a share of the total: nine times the largest rounding error of a sum of a million weights


@simd.inline
def bucket_of(steps):
    """The bucket of a distance's bits."""
    return min(max((steps >> STEPS_BITS) - LEAST_STEP, 0), BUCKETS - 1)


@simd.inline
def total_of(sums):
    """The sum of all buckets, in the order in which `locate` adds them."""
    total = 0.0
    for b in range(BUCKETS):
        total += sums[b]
    return total


@simd.inline
def least_weight(total, target, m):
    """Weights below this may be left out: together they are at most half of what the total has beyond the target. 0
    where that is too close to the rounding error."""
    left = total - target
    return left / (2 * m) if left > SURE * total else 0.0


@functools.cache
def bucket_functions(lanes: int):
    """(fill_buckets, locate), for a vector width."""
    half = lanes // 2

    @simd.inline
    def fill_buckets(workspace, m, least):
        """Set workspace.sums[b] to the sum of the weights of bucket b that are at least `least`."""
        for b in range(BUCKETS):
            workspace.sums[b] = 0.0
        bound = simd.splat_double(least, half)
        for c in range(0, m, half):
            mask = simd.lanes_at_least(simd.load_double(workspace.weights, c, half), bound)
            if mask:
                for index in range(c, c + half):
                    weight = simd.fetch(workspace.weights, index)
                    workspace.sums[bucket_of(simd.fetch(workspace.distance_bits, index))] += (
                        weight if weight >= least else 0.0
                    )

    @simd.inline
    def members(workspace, m, least, b):
        """Store the keys of bucket b's members in workspace.keys[:count]. Returns count."""
        workspace.limit_bits[0] = (b + LEAST_STEP) << STEPS_BITS if b else 0
        workspace.limit_bits[1] = (b + 1 + LEAST_STEP) << STEPS_BITS if b < BUCKETS - 1 else NAN_BITS
        near, far = simd.broadcast(workspace.limits, 0, lanes), simd.broadcast(workspace.limits, 1, lanes)
        count = 0
        for c in range(0, m, lanes):
            x = simd.load(workspace.distances, c, lanes)
            mask = simd.lanes_at_least(x, near) & ~simd.lanes_at_least(x, far)
            while mask:
                index = c + simd.lowest_bit(mask)
                mask &= mask - 1
                if index < m and workspace.weights[index] >= least:
                    workspace.keys[count] = key_of(workspace.score_bits[index], index)
                    count += 1
        return count

    @simd.inline
    def locate(workspace, m, least, target):
        """(index, running sum) at which the sum of the weights of `least` or more reaches the target; the largest comes
        first."""
        run, before, chosen = 0.0, 0.0, 0
        for b in range(BUCKETS):
            mass = workspace.sums[b]
            if mass > 0:
                chosen, before = b, run
                run += mass
                if run >= target:
                    break
        count = members(workspace, m, least, chosen)
        return reach(workspace.keys, count, workspace.weights, before, target)

    return fill_buckets, locate
