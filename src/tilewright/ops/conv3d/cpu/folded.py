"""A kernel that reads the same backwards along z: planes that meet equal taps are added first, and multiplied once.

k[a] * x[a] + k[-a] * x[-a] = k[a] * (x[a] + x[-a]): of KD planes of products (KD + 1) // 2 are left. The sums are taken
once for a row of blocks, and then serve all shifts and rows of the kernel; the arithmetic is that of `rows`.

It loses with KD = 3, where adding costs as much as the third of the products that it saves. Two numbers of more than
1.7e38 overflow where the six loops, which multiply first, need not.
"""

import functools

from tilewright import simd


@functools.cache
def folder(rows: int, lanes: int):
    """The inline function that adds planes for one row of blocks."""

    @simd.inline
    def fold(z, y, columns, scratch, job):
        """Rows y to y + rows + KH - 1 of the ring, planes z + a and z + KD - 1 - a, into the planes behind it."""
        slots, high, wide = job.KD + 1, rows + job.KH - 1, columns + job.KW - 1
        to, skip = job.C * slots * job.plane, y * job.pitch + job.pad
        for c in range(job.C):
            for a in range(job.half):
                near = (c * slots + (z + a) % slots) * job.plane + skip
                far = (c * slots + (z + job.KD - 1 - a) % slots) * job.plane + skip
                for r in range(0, high * job.pitch, job.pitch):
                    for i in range(r, r + wide, lanes):
                        both = simd.add(simd.load(scratch, near + i, lanes), simd.load(scratch, far + i, lanes))
                        simd.store(scratch, to + i, both)
                to += high * job.pitch

    return fold
