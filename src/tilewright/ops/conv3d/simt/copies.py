"""Device functions of the marching kernels: asynchronous copies of planes from device memory to shared memory.

A block has several planes in flight, in a ring of buffers. A copy (`cp.async`) in flight needs no registers. Each
function has two versions: LLVM IR for the GPU, and NumPy for numba-cuda's simulator, which copies at once.
"""

from numba import config

from tilewright.ops.conv3d.simt.forms import QUAD, ColumnForm

OUTSIDE, NONE = -1, -2  # instead of an offset: the quad is beyond the border; the thread has fewer quads

if config.ENABLE_CUDASIM:

    def copy_for(form: ColumnForm):
        """copy(tile, at, x, base, offsets, fill): start to copy a thread's quads of a plane to the tile.

        Quad i, at x[base + offset i], goes to element at + QUAD * threads * i. It becomes `fill` where offset i is
        OUTSIDE, and is not written where it is NONE.
        """

        def copy(tile, at, x, base, offsets, fill):
            flat = x.reshape(x.size)
            for i, offset in enumerate(offsets):
                if offset != NONE:
                    quad = flat[base + offset :][:QUAD] if offset >= 0 else (fill,) * QUAD
                    tile[at + QUAD * form.threads * i :][:QUAD] = quad

        return copy

    def blank_for(form: ColumnForm):
        """blank(tile, at, offsets, fill): write `fill` for all quads of a plane that `copy` would write."""

        def blank(tile, at, offsets, fill):
            for i, offset in enumerate(offsets):
                if offset != NONE:
                    tile[at + QUAD * form.threads * i :][:QUAD] = (fill,) * QUAD

        return blank

    def copy_group_for(form: ColumnForm):
        """(commit, wait): commit() closes the group of a plane's copies; wait() waits until at most stages - 2 groups
        of this thread are in flight."""
        return lambda: None, lambda: None

else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    WORD, ADDRESS = ir.IntType(32), ir.IntType(64)
    COPY = """{
.reg .pred inside, beyond;
setp.ge.s32 inside, $2, 0;
setp.eq.s32 beyond, $2, -1;
@inside cp.async.cg.shared.global [$0], [$1], 16;
@beyond st.shared.v4.f32 [$0], {$3, $3, $3, $3};
}"""
    BLANK = "{.reg .pred own; setp.ge.s32 own, $1, -1; @own st.shared.v4.f32 [$0], {$2, $2, $2, $2};}"
    SHARED = 3  # the address space of shared memory

    def _assembly(builder, text: str, constraints: str, *values):
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
        clobbers = ",".join(filter(None, (constraints, "~{memory}")))
        builder.call(ir.InlineAsm(kind, text, clobbers, side_effect=True), values)

    def _in_shared(context, builder, kind, tile, at):
        """The address of element `at` of a tile, an integer."""
        pointer = builder.gep(context.make_array(kind)(context, builder, tile).data, [at])
        return builder.ptrtoint(builder.addrspacecast(pointer, ir.FloatType().as_pointer(SHARED)), WORD)

    def copy_for(form: ColumnForm):
        """copy(tile, at, x, base, offsets, fill): start to copy a thread's quads of a plane to the tile.

        Quad i, at x[base + offset i], goes to element at + QUAD * threads * i. It becomes `fill` where offset i is
        OUTSIDE, and is not written where it is NONE.
        """

        @intrinsic
        def copy(typing, tile, at, x, base, offsets, fill):
            def generate(context, builder, signature, args):
                tile, at, x, base, offsets, fill = args
                plane = builder.gep(context.make_array(signature.args[2])(context, builder, x).data, [base])
                to = _in_shared(context, builder, signature.args[0], tile, at)
                for i in range(form.shares):
                    offset = builder.extract_value(offsets, i)
                    start = builder.ptrtoint(builder.gep(plane, [offset]), ADDRESS)
                    target = builder.add(to, WORD(4 * QUAD * form.threads * i))
                    _assembly(builder, COPY, "r,l,r,f", target, start, offset, fill)
                return context.get_dummy_value()

            return types.void(tile, at, x, base, offsets, fill), generate

        return copy

    def blank_for(form: ColumnForm):
        """blank(tile, at, offsets, fill): write `fill` for all quads of a plane that `copy` would write."""

        @intrinsic
        def blank(typing, tile, at, offsets, fill):
            def generate(context, builder, signature, args):
                tile, at, offsets, fill = args
                to = _in_shared(context, builder, signature.args[0], tile, at)
                for i in range(form.shares):
                    target = builder.add(to, WORD(4 * QUAD * form.threads * i))
                    _assembly(builder, BLANK, "r,r,f", target, builder.extract_value(offsets, i), fill)
                return context.get_dummy_value()

            return types.void(tile, at, offsets, fill), generate

        return blank

    def copy_group_for(form: ColumnForm):
        """(commit, wait): commit() closes the group of a plane's copies; wait() waits until at most stages - 2 groups
        of this thread are in flight."""
        return _instruction("cp.async.commit_group;"), _instruction(f"cp.async.wait_group {form.stages - 2};")

    def _instruction(text: str):
        @intrinsic
        def instruction(typing):
            def generate(context, builder, signature, args):
                _assembly(builder, text, "")
                return context.get_dummy_value()

            return types.void(), generate

        return instruction
