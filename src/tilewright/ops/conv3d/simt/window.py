"""Device functions of the marching kernels: unrolled multiply-adds with elements and sums in registers.

Each function is generated for one size of kernel. It reads weights from constant memory, as kernel parameters. Elements
and sums are tuples of float32 with compile-time indices only, so the compiler can keep each in a register. Each
function has two versions: LLVM IR for the GPU, and NumPy for numba-cuda's simulator. Both round a multiply-add once.

Shapes: a tile is a flat array in shared memory, one plane of x with its halo; offsets count its elements. `sums` is
(KD, rows, QUAD) flattened: the last rows * QUAD are finished first. On large volumes memory is the limit for K = 3, and
multiply-adds from K = 5 on (see the README).
"""

import numpy as np
from numba import config

from tilewright.ops.conv3d.simt.forms import QUAD

if config.ENABLE_CUDASIM:

    def fma_once(sums, weight, elements):
        """sums + weight x elements, float32, rounded once."""
        return (sums.astype(np.float64) + np.float64(weight) * elements.astype(np.float64)).astype(np.float32)

    def taps_for(sizes, extents):
        """taps(tile, at, weights): the sum over the window that starts at element `at` of a tile of these extents."""

        _, rows, columns = extents

        def taps(tile, at, weights):
            total = np.float32(0)
            for i, (a, b, t) in enumerate(np.ndindex(sizes)):
                element = tile[at + (a * rows + b) * columns + t]
                total = fma_once(total, weights[i], element)
            return total

        return taps

    def gather_for(form):
        """gather(x, base, offsets): the quads of x at base + offset; arbitrary elements where base or offset is
        negative."""

        def gather(x, base, offsets):
            flat = x.reshape(x.size)
            return tuple(value for offset in offsets for value in flat[max(base, 0) + max(offset, 0) :][:QUAD])

        return gather

    def store_tile_for(form):
        """store_tile(tile, at, quads, base, offsets, fill): write the gathered quads to the tile.

        Quad i goes to element at + QUAD * threads * i. Where base or offset i is negative, `fill` replaces it.
        """

        def store_tile(tile, at, quads, base, offsets, fill):
            for i, offset in enumerate(offsets):
                quad = quads[QUAD * i : QUAD * (i + 1)]
                tile[at + QUAD * form.threads * i :][:QUAD] = quad if base >= 0 <= offset else (fill,) * QUAD

        return store_tile

    def _later(form, sums):
        """Sums as an array (KD, rows, QUAD), shifted for the next plane: zeros first, the finished sums dropped."""
        sums = np.float32(sums).reshape(form.sizes[0], form.rows, QUAD)
        return np.concatenate([np.zeros_like(sums[:1]), sums[:-1]])

    def step_for(form):
        """step(sums, tile, at, weights): shift the sums and add one plane. The last rows * QUAD sums are then
        finished."""
        (_, KH, KW), Y, pitch = form.sizes, form.rows, form.across * QUAD

        def step(sums, tile, at, weights):
            sums = _later(form, sums)
            window = np.stack([tile[at + r * pitch :][: form.quads * QUAD] for r in range(Y + KH - 1)])[:, form.lead :]
            taps = np.float32(weights).reshape(form.sizes)[..., None, None]
            for b in range(KH):
                for t in range(KW):
                    sums = fma_once(sums, taps[:, b, t], window[b : b + Y, t : t + QUAD])
            return tuple(sums.ravel())

        return step

else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    from tilewright.ops.conv3d.simt.quads import INDEX, ZERO, load4, pointer, store4, unpacked

    def taps_for(sizes, extents):
        """taps(tile, at, weights): the sum over the window that starts at element `at` of a tile of these extents."""
        _, rows, columns = extents
        tap_offsets = [(a * rows + b) * columns + t for a, b, t in np.ndindex(sizes)]

        @intrinsic
        def taps(typing, tile, at, weights):
            def generate(context, builder, signature, args):
                tile, at, weights = args
                start, total = pointer(context, builder, signature.args[0], tile, at), ZERO
                for i, tap_offset in enumerate(tap_offsets):
                    element = builder.load(builder.gep(start, [INDEX(tap_offset)]))
                    total = builder.fma(builder.extract_value(weights, i), element, total)
                return total

            return types.float32(tile, at, weights), generate

        return taps

    def _below(builder, value):
        """(value < 0, max(value, 0))."""
        zero = ir.Constant(value.type, 0)
        below = builder.icmp_signed("<", value, zero)
        return below, builder.select(below, zero, value)

    def gather_for(form):
        """gather(x, base, offsets): the quads of x at base + offset; arbitrary elements where base or offset is
        negative."""

        @intrinsic
        def gather(typing, x, base, offsets):
            def generate(context, builder, signature, args):
                x, base, offsets = args
                plane = pointer(context, builder, signature.args[0], x, _below(builder, base)[1])
                values = []
                for offset in unpacked(builder, offsets, form.shares):
                    values += load4(builder, builder.gep(plane, [_below(builder, offset)[1]]))
                return context.make_tuple(builder, signature.return_type, values)

            return types.UniTuple(types.float32, QUAD * form.shares)(x, base, offsets), generate

        return gather

    def store_tile_for(form):
        """store_tile(tile, at, quads, base, offsets, fill): write the gathered quads to the tile.

        Quad i goes to element at + QUAD * threads * i. Where base or offset i is negative, `fill` replaces it.
        """

        @intrinsic
        def store_tile(typing, tile, at, quads, base, offsets, fill):
            def generate(context, builder, signature, args):
                tile, at, quads, base, offsets, fill = args
                start = pointer(context, builder, signature.args[0], tile, at)
                elements = unpacked(builder, quads, QUAD * form.shares)
                missing, _ = _below(builder, base)
                for k, offset in enumerate(unpacked(builder, offsets, form.shares)):
                    outside = builder.or_(missing, _below(builder, offset)[0])
                    quad = [builder.select(outside, fill, one) for one in elements[QUAD * k : QUAD * (k + 1)]]
                    store4(builder, builder.gep(start, [INDEX(QUAD * form.threads * k)]), quad)
                return context.get_dummy_value()

            return types.void(tile, at, quads, base, offsets, fill), generate

        return store_tile

    def _later(builder, form, sums):
        """KD lists of sums, shifted for the next plane: zeros first, the finished sums dropped."""
        old, each = unpacked(builder, sums, form.sums), form.rows * QUAD
        return [[ZERO] * each, *(old[a * each : (a + 1) * each] for a in range(form.sizes[0] - 1))]

    def step_for(form):
        """step(sums, tile, at, weights): shift the sums and add one plane. The last rows * QUAD sums are then
        finished."""

        @intrinsic
        def step(typing, sums, tile, at, weights):
            def generate(context, builder, signature, args):
                sums, tile, at, weights = args
                later, taps = _later(builder, form, sums), unpacked(builder, weights, signature.args[3].count)
                start = pointer(context, builder, signature.args[1], tile, at)
                _plane(builder, form, later, taps, start)
                return context.make_tuple(builder, signature.return_type, [total for part in later for total in part])

            return sums(sums, tile, at, weights), generate

        return step

    def _window(builder, form, start, first):
        """Elements of one row of a thread's windows, which starts `first` quads after `start`."""
        quads = [builder.gep(start, [INDEX(QUAD * (first + q))]) for q in range(form.quads)]
        return [element for quad in quads for element in load4(builder, quad)][form.lead :]

    def _plane(builder, form, sums, taps, start):
        """Add one plane to `sums`: each loaded element is multiplied by KD taps for each window row that contains
        it."""
        KD, KH, KW = form.sizes
        for r in range(form.rows + KH - 1):
            elements = _window(builder, form, start, r * form.across)
            for t in range(KW):
                for j in range(max(0, r - KH + 1), min(form.rows, r + 1)):
                    for a in reversed(range(KD)):
                        tap = taps[(a * KH + r - j) * KW + t]
                        for i in range(QUAD):
                            at = j * QUAD + i
                            sums[a][at] = builder.fma(tap, elements[t + i], sums[a][at])
