"""Device functions of the marching kernel for outer products: rows are convolved along x in shared memory, and a thread
convolves a piece of one column along y and z.

A row of lines has 64 elements or another multiple of 32. Odd rows swap each two neighbouring quads (`column ^ QUAD`).
So eight threads that store four quads in each of two rows have no bank conflict. `factors` is wz, wy and wx in one
tuple.
"""

import numpy as np
from numba import config

from tilewright.ops.conv3d.simt.forms import PAIR, QUAD, ColumnForm

if config.ENABLE_CUDASIM:
    from tilewright.ops.conv3d.simt.window import fma_once

    def pair_for(form: ColumnForm):
        """pair(tile, at, lines, to, swapped, factors): convolve PAIR outputs along x, and store them in lines.

        at: the first quad of their windows. to: their first element in lines. swapped: QUAD in an odd row, else 0.
        """

        def pair(tile, at, lines, to, swapped, factors):
            window, total = tile[at + form.lead :], np.zeros(PAIR, np.float32)
            for t, weight in enumerate(factors[form.sizes[0] + form.sizes[1] :]):
                total = fma_once(total, weight, window[t : t + PAIR])
            lines[to + swapped :][:QUAD], lines[to + QUAD - swapped :][:QUAD] = total[:QUAD], total[QUAD:]

        return pair

    def column_step_for(form: ColumnForm):
        """step(sums, lines, even, odd, factors): shift the sums (KD, rows) and add one plane. The last `rows` are then
        finished. even, odd: the offset in lines of the thread's column in its first row, unswapped and swapped."""
        (KD, KH, _), rows, pitch = form.sizes, form.rows, form.tile[1]

        def step(sums, lines, even, odd, factors):
            column = np.array([lines[(odd if r % 2 else even) + r * pitch] for r in range(rows + KH - 1)], np.float32)
            plane = np.zeros(rows, np.float32)
            for b in range(KH):
                plane = fma_once(plane, factors[KD + b], column[b : b + rows])
            later = np.concatenate([np.zeros((1, rows), np.float32), np.float32(sums).reshape(KD, rows)[:-1]])
            return tuple(fma_once(later, np.float32(factors[:KD])[:, None], plane).ravel())

        return step

else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    from tilewright.ops.conv3d.simt.quads import INDEX, ZERO, load4, pointer, store4

    def pair_for(form: ColumnForm):
        """pair(tile, at, lines, to, swapped, factors): convolve PAIR outputs along x, and store them in lines.

        at: the first quad of their windows. to: their first element in lines. swapped: QUAD in an odd row, else 0.
        """
        KD, KH, KW = form.sizes

        @intrinsic
        def pair(typing, tile, at, lines, to, swapped, factors):
            def generate(context, builder, signature, args):
                tile, at, lines, to, swapped, factors = args
                start = pointer(context, builder, signature.args[0], tile, at)
                quads = [load4(builder, builder.gep(start, [INDEX(QUAD * q)])) for q in range(form.quads)]
                elements, totals = [one for quad in quads for one in quad][form.lead :], [ZERO] * PAIR
                for t in range(KW):
                    weight = builder.extract_value(factors, KD + KH + t)
                    totals = [builder.fma(weight, elements[t + i], totals[i]) for i in range(PAIR)]
                second = builder.sub(ir.Constant(swapped.type, QUAD), swapped)
                first = pointer(context, builder, signature.args[2], lines, to)
                for shift, values in ((swapped, totals[:QUAD]), (second, totals[QUAD:])):
                    store4(builder, builder.gep(first, [shift]), values)
                return context.get_dummy_value()

            return types.void(tile, at, lines, to, swapped, factors), generate

        return pair

    def column_step_for(form: ColumnForm):
        """step(sums, lines, even, odd, factors): shift the sums (KD, rows) and add one plane. The last `rows` are then
        finished. even, odd: the offset in lines of the thread's column in its first row, unswapped and swapped."""
        (KD, KH, _), rows, pitch = form.sizes, form.rows, form.tile[1]

        @intrinsic
        def step(typing, sums, lines, even, odd, factors):
            def generate(context, builder, signature, args):
                sums, lines, even, odd, factors = args
                starts = [pointer(context, builder, signature.args[1], lines, at) for at in (even, odd)]
                plane = [ZERO] * rows
                for r in range(rows + KH - 1):
                    element = builder.load(builder.gep(starts[r % 2], [INDEX(r * pitch)]))
                    for j in range(max(0, r - KH + 1), min(rows, r + 1)):
                        plane[j] = builder.fma(builder.extract_value(factors, KD + r - j), element, plane[j])
                old = [builder.extract_value(sums, i) for i in range(form.sums)]
                later = [[ZERO] * rows, *(old[a * rows : (a + 1) * rows] for a in range(KD - 1))]
                for a in reversed(range(KD)):  # the finished sums first, whose registers the next ones can take
                    weight = builder.extract_value(factors, a)
                    later[a] = [builder.fma(weight, one, total) for one, total in zip(plane, later[a], strict=True)]
                return context.make_tuple(builder, signature.return_type, [one for part in later for one in part])

            return sums(sums, lines, even, odd, factors), generate

        return step
