"""The inner loop of a kernel, found in its assembly."""

from tilewright.bench.kernels.loops import inner_loop

X86 = """
kernel:
.LBB0_1:
	vmovups	(%rdx), %zmm7
.LBB0_2:
	vbroadcastss	-92(%r14), %zmm5
	vmovups	-192(%rdx,%r8,4), %zmm6
	vfmadd231ps	%zmm7, %zmm5, %zmm31
	vfmadd231ps	%zmm6, %zmm5, %zmm30
	vfmadd231ps	%zmm6, %zmm5, %zmm30
	jne	.LBB0_2
	jne	.LBB0_1
.LBB0_3:
	vmovaps	%zmm4, %zmm1
	vfmadd213ps	%zmm2, %zmm3, %zmm1
	vfmadd213ps	%zmm2, %zmm3, %zmm1
	vfmadd213ps	%zmm2, %zmm3, %zmm1
	vfmadd213ps	(%rax){1to16}, %zmm3, %zmm1
	jb	.LBB0_3
"""
UNFUSED = """
.LBB0_4:
	vmulss	(%rcx), %xmm1, %xmm1
	vaddss	%xmm1, %xmm0, %xmm0
	jne	.LBB0_4
.LBB0_5:
	vmulps	(%rdx,%r8,4), %ymm1, %ymm2
	vaddps	(%r14,%r8,4), %ymm2, %ymm2
	vmovups	%ymm2, (%r14,%r8,4)
	jne	.LBB0_5
"""
ARM = """
.LBB0_1:
	ldr	q4, [x8], #16
	fmla	v0.4s, v4.4s, v2.s[0]
	fmla	v1.4s, v4.4s, v2.s[1]
	cbnz	x9, .LBB0_1
"""
PTX = """
$L__BB0_2:
	ld.shared.f32 	%f3, [%r1];
	fma.rn.f32 	%f1, %f3, %f4, %f1;
	fma.rn.f32 	%f2, %f3, %f5, %f2;
	@%p1 bra 	$L__BB0_2;
"""


def test_sums_in_registers_go_before_longer_arithmetic():
    """A polynomial of an epilogue has more multiply-adds than the loop along K, but no sum outlives its pass."""
    loop = inner_loop(X86)
    assert loop.lines[0] == ".LBB0_2:" and loop.lines[-1] == "jne .LBB0_2"
    assert (loop.multiply_adds, loop.fused, loop.bits, loop.registers, loop.sums) == (3, True, 512, 5, 2)
    assert loop.described == (
        "3 512-bit multiply-adds in 6 instructions; it uses 5 vector registers, 2 of them for sums"
    )


def test_products_and_additions_that_are_not_fused_count_as_pairs():
    loop = inner_loop(UNFUSED)
    assert (loop.multiply_adds, loop.fused, loop.bits, loop.sums) == (1, False, 32, 1)
    assert "1 scalar multiplication, with an addition" in loop.described
    vectors = inner_loop(UNFUSED.partition(".LBB0_5")[1] + UNFUSED.partition(".LBB0_5")[2])
    assert (vectors.multiply_adds, vectors.bits, vectors.sums) == (1, 256, 0)


def test_arm_and_ptx():
    loop = inner_loop(ARM)
    assert (loop.multiply_adds, loop.bits, loop.registers, loop.sums) == (2, 128, 4, 2)
    loop = inner_loop(PTX)
    assert (loop.multiply_adds, loop.bits, loop.registers) == (2, 0, 0)
    assert loop.described == "2 multiply-adds in 4 instructions"


def test_a_loop_that_copies_has_none():
    assert inner_loop(".LBB0_1:\n\tvmovups\t(%rax), %zmm0\n\tjne\t.LBB0_1\n") is None
    assert inner_loop("ret") is None


def test_waiting_for_a_matrix_product_is_no_multiply_add():
    loop = inner_loop(
        "$L1:\n\twgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 0;\n"
        "\twgmma.wait_group.sync.aligned 0;\n\t@%p1 bra $L1;\n"
    )
    assert loop.multiply_adds == 1
