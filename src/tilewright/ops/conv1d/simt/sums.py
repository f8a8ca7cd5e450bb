"""Device functions of `rows`: multiply-adds with a row of x and all sums of a thread in registers.

Each function is generated for one `Form`. Sums are a tuple of float32 with compile-time indices only, so the compiler
keeps each in a register. Each function has two versions: LLVM IR for the GPU, and NumPy for numba-cuda's simulator.
Both round a multiply-add once.

Shapes: sums is (filters, positions) flattened. A tile of weights is (depth, taps, width), a tile of x (depth, rows,
pitch); offsets count elements. A tap is one position in a filter.
"""

import numpy as np

from tilewright.ops.conv1d.simt.form import QUAD, Form
from tilewright.ops.core.gpu.simt import SIMULATED

if SIMULATED:

    def add_products_for(form: Form):
        """add_products(sums, w_tile, w_at, x_tile, x_at): sums + one step of `form.depth` channels."""
        F, P, T = form.filters, form.positions, form.taps

        def add_products(sums, w_tile, w_at, x_tile, x_at):
            totals = np.float64(sums).reshape(F, P)
            for d in range(form.depth):
                row = np.float64(x_tile[x_at + d * form.rows * form.pitch :][: form.quads * QUAD])
                for t in range(T):
                    at = w_at + (d * T + t) * form.width
                    quads = [w_tile[at + q * form.groups * QUAD :][:QUAD] for q in range(F // QUAD)]
                    under = row[t * form.dilation :][: (P - 1) * form.stride + 1 : form.stride]
                    products = np.float64(np.concatenate(quads))[:, None] * under
                    totals = np.float64(np.float32(totals + products))
            return tuple(np.float32(totals).ravel())

        return add_products

    def unpack_for(form: Form):
        """unpack(sums, array): copy the sums to an array."""

        def unpack(sums, array):
            array[:] = sums

        return unpack

else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    INDEX, WORD = ir.IntType(64), ir.IntType(32)
    VECTOR = ir.VectorType(ir.FloatType(), QUAD)

    def _pointer(context, builder, kind, array, at):
        """Pointer to element `at` of an array."""
        return builder.gep(context.make_array(kind)(context, builder, array).data, [at])

    def _quads(builder, start, offsets):
        """The elements of the quads at these offsets from a pointer."""
        elements = []
        for offset in offsets:
            pointer = builder.bitcast(builder.gep(start, [INDEX(offset)]), VECTOR.as_pointer())
            vector = builder.load(pointer)
            vector.align = 16
            elements += [builder.extract_element(vector, WORD(i)) for i in range(QUAD)]
        return elements

    def add_products_for(form: Form):
        """add_products(sums, w_tile, w_at, x_tile, x_at): sums + one step of `form.depth` channels."""
        F, P, T = form.filters, form.positions, form.taps
        apart = [q * form.groups * QUAD for q in range(F // QUAD)]  # quads of filters of a thread

        @intrinsic
        def add_products(typing, sums, w_tile, w_at, x_tile, x_at):
            def generate(context, builder, signature, args):
                sums, w_tile, w_at, x_tile, x_at = args
                _, w_kind, _, x_kind, _ = signature.args
                totals = [builder.extract_value(sums, i) for i in range(form.sums)]
                w_start = _pointer(context, builder, w_kind, w_tile, w_at)
                x_start = _pointer(context, builder, x_kind, x_tile, x_at)
                for d in range(form.depth):
                    first = d * form.rows * form.pitch
                    row = _quads(builder, x_start, [first + QUAD * q for q in range(form.quads)])
                    for t in range(T):
                        weights = _quads(builder, w_start, [(d * T + t) * form.width + at for at in apart])
                        for i in range(form.sums):
                            element = row[i % P * form.stride + t * form.dilation]
                            totals[i] = builder.fma(weights[i // P], element, totals[i])
                return context.make_tuple(builder, signature.return_type, totals)

            return sums(sums, w_tile, w_at, x_tile, x_at), generate

        return add_products

    def unpack_for(form: Form):
        """unpack(sums, array): copy the sums to an array."""

        @intrinsic
        def unpack(typing, sums, array):
            def generate(context, builder, signature, args):
                (_, kind), (sums, array) = signature.args, args
                start = _pointer(context, builder, kind, array, INDEX(0))
                for i in range(form.sums):
                    builder.store(builder.extract_value(sums, i), builder.gep(start, [INDEX(i)]))
                return context.get_dummy_value()

            return types.void(sums, array), generate

        return unpack
