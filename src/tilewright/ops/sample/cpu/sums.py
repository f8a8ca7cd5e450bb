"""Where a running sum in falling order reaches a target: buckets by the distance from the best score, each with the sum
of its weights, and an order inside of the one in question."""

import functools

from tilewright import simd
from tilewright.ops.sample.cpu.room import BUCKETS, LEAST_STEP, STEPS_BITS, key_of
from tilewright.ops.sample.cpu.select import reach

NAN_BITS = 0x7FC00000  # no distance is at least a NaN
SURE = 1e-9  # share of the total: what rounding may do to a sum of a million weights is less than a thousandth of it


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
    """Weights below it cannot keep the running sum of the others from the target."""
    left = total - target
    return left / (2 * m) if left > SURE * total else 0.0


@functools.cache
def bucket_functions(lanes: int):
    """(fill_buckets, locate), for a vector width."""
    half = lanes // 2

    @simd.inline
    def fill_buckets(room, m, least):
        """room.sums: the weights from `least` on, by their distance."""
        for b in range(BUCKETS):
            room.sums[b] = 0.0
        bound = simd.splat_double(least, half)
        for c in range(0, m, half):
            mask = simd.lanes_at_least(simd.load_double(room.weights, c, half), bound)
            if mask:
                for place in range(c, c + half):
                    weight = simd.fetch(room.weights, place)
                    room.sums[bucket_of(simd.fetch(room.steps, place))] += weight if weight >= least else 0.0

    @simd.inline
    def members(room, m, least, b):
        """The keys of bucket b's members become room.keys[:count]; gives count."""
        room.end_bits[0] = (b + LEAST_STEP) << STEPS_BITS if b else 0
        room.end_bits[1] = (b + 1 + LEAST_STEP) << STEPS_BITS if b < BUCKETS - 1 else NAN_BITS
        near, far = simd.broadcast(room.ends, 0, lanes), simd.broadcast(room.ends, 1, lanes)
        count = 0
        for c in range(0, m, lanes):
            x = simd.load(room.distances, c, lanes)
            mask = simd.lanes_at_least(x, near) & ~simd.lanes_at_least(x, far)
            while mask:
                place = c + simd.lowest_bit(mask)
                mask &= mask - 1
                if place < m and room.weights[place] >= least:
                    room.keys[count] = key_of(room.bits[place], place)
                    count += 1
        return count

    @simd.inline
    def locate(room, m, least, target):
        """(place, running sum) where the weights from `least` on, in falling order, reach the target; in buckets."""
        run, before, chosen = 0.0, 0.0, 0
        for b in range(BUCKETS):
            mass = room.sums[b]
            if mass > 0:
                chosen, before = b, run
                run += mass
                if run >= target:
                    break
        count = members(room, m, least, chosen)
        return reach(room.keys, count, room.weights, before, target)

    return fill_buckets, locate
