"""Sums over a window as straight runs of multiply-adds, their numbers in registers, their weights in constant memory.

Functions made for one size of kernel. A tuple of float32 is so many registers: nothing indexes it at run time, so
nothing can move it to memory. Each exists twice: as LLVM IR for the GPU, and in NumPy for numba-cuda's simulator, where
a product and its sum are rounded once, too.
"""

from dataclasses import dataclass

import numpy as np
from numba import config

QUAD = 4  # numbers in 16 bytes, and outputs of a thread along x


@dataclass(frozen=True)
class Form:
    """What a marching kernel is compiled for.

    sizes: (KD, KH, KW) of the kernel. lead: numbers of a window's first quad that lie before the window. rows: of
    outputs a thread, along y. lanes: threads along x. threads: of a block. registers: at most so many a
    thread. adds: results are added to what is there.
    """

    sizes: tuple[int, int, int]
    lead: int
    rows: int
    lanes: int
    threads: int
    registers: int
    adds: bool = False

    @property
    def tile(self) -> tuple[int, int]:
        """(rows, columns) of outputs."""
        return self.threads // self.lanes * self.rows, self.lanes * QUAD

    @property
    def quads(self) -> int:
        """In a row of a window."""
        return -(-(self.lead + QUAD + self.sizes[2] - 1) // QUAD)

    @property
    def across(self) -> int:
        """Quads in a row of a plane with its halo."""
        return self.lanes + self.quads - 1

    @property
    def shares(self) -> int:
        """Quads of a plane with its halo that a thread loads."""
        return -(-(self.tile[0] + self.sizes[1] - 1) * self.across // self.threads)

    @property
    def sums(self) -> int:
        """A thread's: KD for each of its outputs."""
        return self.sizes[0] * self.rows * QUAD


if config.ENABLE_CUDASIM:

    def _fma(sums, weight, numbers):
        return (sums.astype(np.float64) + np.float64(weight) * numbers.astype(np.float64)).astype(np.float32)

    def taps_for(sizes, extents):
        """taps(tile, at, weights): the sum over a window that begins at number `at` of a tile of these extents."""

        _, rows, columns = extents

        def taps(tile, at, weights):
            total = np.float32(0)
            for i, (a, b, t) in enumerate(np.ndindex(sizes)):
                number = tile[at + (a * rows + b) * columns + t]
                total = _fma(total, weights[i], number)
            return total

        return taps

    def gather_for(form):
        """gather(x, base, offsets): quads of x from numbers base + offset on; of anything where one is below 0."""

        def gather(x, base, offsets):
            flat = x.reshape(x.size)
            return tuple(value for offset in offsets for value in flat[max(base, 0) + max(offset, 0) :][:QUAD])

        return gather

    def stow_for(form):
        """stow(tile, at, quads, base, offsets, fill): write what was gathered, or `fill` where base or offset is below
        0, to the tile from number `at` on, a block's threads apart."""

        def stow(tile, at, quads, base, offsets, fill):
            for i, offset in enumerate(offsets):
                quad = quads[QUAD * i : QUAD * (i + 1)]
                tile[at + QUAD * form.threads * i :][:QUAD] = quad if base >= 0 <= offset else (fill,) * QUAD

        return stow

    def _later(form, sums):
        """Sums as an array (KD, rows, QUAD), one plane later."""
        sums = np.float32(sums).reshape(form.sizes[0], form.rows, QUAD)
        return np.concatenate([np.zeros_like(sums[:1]), sums[:-1]])

    def step_for(form):
        """step(sums, tile, at, weights): sums one plane further; those of finished outputs are the last."""
        (_, KH, KW), Y, pitch = form.sizes, form.rows, form.across * QUAD

        def step(sums, tile, at, weights):
            sums = _later(form, sums)
            window = np.stack([tile[at + r * pitch :][: form.quads * QUAD] for r in range(Y + KH - 1)])[:, form.lead :]
            taps = np.float32(weights).reshape(form.sizes)[..., None, None]
            for b in range(KH):
                for t in range(KW):
                    sums = _fma(sums, taps[:, b, t], window[b : b + Y, t : t + QUAD])
            return tuple(sums.ravel())

        return step

    def line_for(form):
        """line(tile, at, factors): a quad convolved along x."""

        def line(tile, at, factors):
            window, total = tile[at + form.lead :], np.zeros(QUAD, np.float32)
            for t, weight in enumerate(factors[form.sizes[0] + form.sizes[1] :]):
                total = _fma(total, weight, window[t : t + QUAD])
            return tuple(total)

        return line

    def separable_step_for(form):
        """step(sums, lines, at, factors): sums one plane further, from its lines."""
        (KD, KH, _), Y, pitch = form.sizes, form.rows, form.tile[1]

        def step(sums, lines, at, factors):
            plane = np.zeros((Y, QUAD), np.float32)
            for b in range(KH):
                window = np.stack([lines[at + (b + j) * pitch :][:QUAD] for j in range(Y)])
                plane = _fma(plane, factors[KD + b], window)
            return tuple(_fma(_later(form, sums), np.float32(factors[:KD])[:, None, None], plane).ravel())

        return step

else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    FLOAT, INDEX, WORD = ir.FloatType(), ir.IntType(64), ir.IntType(32)
    VECTOR = ir.VectorType(FLOAT, QUAD)
    ZERO = ir.Constant(FLOAT, 0.0)

    def _pointer(context, builder, kind, array, at):
        """To number `at` of an array."""
        return builder.gep(context.make_array(kind)(context, builder, array).data, [at])

    def _load4(builder, pointer):
        vector = builder.load(builder.bitcast(pointer, VECTOR.as_pointer()))
        vector.align = 16
        return [builder.extract_element(vector, WORD(i)) for i in range(QUAD)]

    def _unpacked(builder, value, count):
        return [builder.extract_value(value, i) for i in range(count)]

    def taps_for(sizes, extents):
        """taps(tile, at, weights): the sum over a window that begins at number `at` of a tile of these extents."""
        _, rows, columns = extents
        tap_offsets = [(a * rows + b) * columns + t for a, b, t in np.ndindex(sizes)]

        @intrinsic
        def taps(typing, tile, at, weights):
            def generate(context, builder, signature, args):
                tile, at, weights = args
                start, total = _pointer(context, builder, signature.args[0], tile, at), ZERO
                for i, tap_offset in enumerate(tap_offsets):
                    number = builder.load(builder.gep(start, [INDEX(tap_offset)]))
                    total = builder.fma(builder.extract_value(weights, i), number, total)
                return total

            return types.float32(tile, at, weights), generate

        return taps

    def _below(builder, value):
        """Whether it is below 0, and the larger of both."""
        zero = ir.Constant(value.type, 0)
        below = builder.icmp_signed("<", value, zero)
        return below, builder.select(below, zero, value)

    def gather_for(form):
        """gather(x, base, offsets): quads of x from numbers base + offset on; of anything where one is below 0."""

        @intrinsic
        def gather(typing, x, base, offsets):
            def generate(context, builder, signature, args):
                x, base, offsets = args
                plane = _pointer(context, builder, signature.args[0], x, _below(builder, base)[1])
                values = []
                for offset in _unpacked(builder, offsets, form.shares):
                    values += _load4(builder, builder.gep(plane, [_below(builder, offset)[1]]))
                return context.make_tuple(builder, signature.return_type, values)

            return types.UniTuple(types.float32, QUAD * form.shares)(x, base, offsets), generate

        return gather

    def stow_for(form):
        """stow(tile, at, quads, base, offsets, fill): write what was gathered, or `fill` where base or offset is below
        0, to the tile from number `at` on, a block's threads apart."""

        @intrinsic
        def stow(typing, tile, at, quads, base, offsets, fill):
            def generate(context, builder, signature, args):
                tile, at, quads, base, offsets, fill = args
                start = _pointer(context, builder, signature.args[0], tile, at)
                numbers = _unpacked(builder, quads, QUAD * form.shares)
                missing, _ = _below(builder, base)
                for k, offset in enumerate(_unpacked(builder, offsets, form.shares)):
                    outside = builder.or_(missing, _below(builder, offset)[0])
                    vector = ir.Constant(VECTOR, ir.Undefined)
                    for i in range(QUAD):
                        number = builder.select(outside, fill, numbers[QUAD * k + i])
                        vector = builder.insert_element(vector, number, WORD(i))
                    pointer = builder.gep(start, [INDEX(QUAD * form.threads * k)])
                    builder.store(vector, builder.bitcast(pointer, VECTOR.as_pointer())).align = 16
                return context.get_dummy_value()

            return types.void(tile, at, quads, base, offsets, fill), generate

        return stow

    def _later(builder, form, sums):
        """A list of KD lists of sums, one plane later."""
        old, each = _unpacked(builder, sums, form.sums), form.rows * QUAD
        return [[ZERO] * each, *(old[a * each : (a + 1) * each] for a in range(form.sizes[0] - 1))]

    def step_for(form):
        """step(sums, tile, at, weights): sums one plane further; those of finished outputs are the last."""

        @intrinsic
        def step(typing, sums, tile, at, weights):
            def generate(context, builder, signature, args):
                sums, tile, at, weights = args
                later, taps = _later(builder, form, sums), _unpacked(builder, weights, signature.args[3].count)
                start = _pointer(context, builder, signature.args[1], tile, at)
                _plane(builder, form, later, taps, start)
                return context.make_tuple(builder, signature.return_type, [total for part in later for total in part])

            return sums(sums, tile, at, weights), generate

        return step

    def _window(builder, form, start, first):
        """Numbers of a row of a thread's window, from quad `first` of the tile on."""
        quads = [builder.gep(start, [INDEX(QUAD * (first + q))]) for q in range(form.quads)]
        return [number for quad in quads for number in _load4(builder, quad)][form.lead :]

    def _plane(builder, form, sums, taps, start):
        """A number of a row meets the KD taps of all windows over it, and feeds as many sums."""
        KD, KH, KW = form.sizes
        for r in range(form.rows + KH - 1):
            numbers = _window(builder, form, start, r * form.across)
            for t in range(KW):
                for j in range(max(0, r - KH + 1), min(form.rows, r + 1)):
                    for a in reversed(range(KD)):
                        tap = taps[(a * KH + r - j) * KW + t]
                        for i in range(QUAD):
                            at = j * QUAD + i
                            sums[a][at] = builder.fma(tap, numbers[t + i], sums[a][at])

    def line_for(form):
        """line(tile, at, factors): a quad convolved along x."""

        @intrinsic
        def line(typing, tile, at, factors):
            def generate(context, builder, signature, args):
                tile, at, factors = args
                numbers = _window(builder, form, _pointer(context, builder, signature.args[0], tile, at), 0)
                totals = [ZERO] * QUAD
                for t, weight in enumerate(_unpacked(builder, factors, sum(form.sizes))[-form.sizes[2] :]):
                    totals = [builder.fma(weight, numbers[t + i], totals[i]) for i in range(QUAD)]
                return context.make_tuple(builder, signature.return_type, totals)

            return types.UniTuple(types.float32, QUAD)(tile, at, factors), generate

        return line

    def separable_step_for(form):
        """step(sums, lines, at, factors): sums one plane further, from its lines."""
        (KD, KH, _), rows = form.sizes, form.rows

        @intrinsic
        def step(typing, sums, lines, at, factors):
            def generate(context, builder, signature, args):
                sums, lines, at, factors = args
                weights = _unpacked(builder, factors, sum(form.sizes))
                start, plane = _pointer(context, builder, signature.args[1], lines, at), [ZERO] * (rows * QUAD)
                for r in range(rows + KH - 1):
                    numbers = _load4(builder, builder.gep(start, [INDEX(r * form.tile[1])]))
                    for j in range(max(0, r - KH + 1), min(rows, r + 1)):
                        for i in range(QUAD):
                            k = j * QUAD + i
                            plane[k] = builder.fma(weights[KD + r - j], numbers[i], plane[k])
                later = _later(builder, form, sums)
                for a in reversed(range(KD)):
                    pairs = zip(plane, later[a], strict=True)
                    later[a] = [builder.fma(weights[a], number, total) for number, total in pairs]
                return context.make_tuple(builder, signature.return_type, [total for part in later for total in part])

            return sums(sums, lines, at, factors), generate

        return step
