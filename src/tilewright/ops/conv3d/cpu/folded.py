"""For a kernel that is symmetric along z: two planes with equal taps (elements of the filter) are added first, and
multiplied once.

    w[a] * x[z + a] + w[a'] * x[z + a'] = w[a] * (x[z + a] + x[z + a'])        a' = KD - 1 - a, w[a'] = w[a]

x (C, D, H, W) and w (O, C, KD, KH, KW) are float32. The code is that of `rows`, the rung below, with (KD + 1) // 2
planes of products in place of KD. The sums are computed once per row of blocks. They serve all shifts and rows of the
kernel and all output channels. The limit is still the rate of multiply-adds.

It is slow with KD = 3: the additions cost as much as the products that they replace. The sum of two values above 1.7e38
overflows; the six loops multiply first and may not.
"""

import functools

from tilewright import simd


@functools.cache
def folder(rows: int, lanes: int):
    """The inline function that adds planes for one row of blocks of rows x lanes outputs."""

    @simd.inline
    def fold(z, y, columns, scratch, job):
        """Add planes z + a and z + KD - 1 - a of the ring, from row y on, for each a < half, and store them after it.

        columns: outputs of a row. job: `tiles.March`.
        """
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
