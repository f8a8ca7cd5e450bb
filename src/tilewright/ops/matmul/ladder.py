"""The rungs of matmul: each is declared once, here; the kernels are in `cpu/`, where rungs that
differ little share a file.

Every rung's run(rows, weights, out, epilogue) computes out (M, N) = activation(rows @ weights + residual + bias).
Kernels are imported when a rung first runs, so that listing the ladder costs nothing.
"""

import numpy as np

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.launch import threads
from tilewright.ops.core.needs import amx_tiles, at_least, cpu_feature, fast_pairs, on
from tilewright.ops.gemm.operands import Epilogue, Packed, Rows
from tilewright.ops.matmul import gpu_ladder

LIMB_DEPTH = 768  # K from which limbs are taken; the float32 bound they hold from 656 on, see cpu/amx.py

ladder = Ladder(
    "matmul",
    prefer=("cpu.limbs", "cpu.threads", "cpu.amx", "cpu.dot_pairs", "cpu.widened", *gpu_ladder.PREFER),
)
float32, bfloat16 = on("cpu", "float32"), on("cpu", "bfloat16")


def _scalar(name: str, rows: Rows, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    from tilewright.ops.gemm.cpu.epilogue import ACTIVATIONS
    from tilewright.ops.matmul.cpu import naive

    kernel = getattr(naive, name)
    kernel(rows.plain(), weights.data, out, epilogue.bias, epilogue.residual, ACTIVATIONS[epilogue.activation])


def _row_major(name: str, rows: Rows, weights: Packed, out: np.ndarray, epilogue: Epilogue) -> None:
    """A scalar kernel whose inner loop the compiler vectorises, for which it must know that rows are contiguous."""
    target = out if out.flags.c_contiguous else np.empty(out.shape, np.float32)
    a, b = np.ascontiguousarray(rows.plain()), np.ascontiguousarray(weights.data)
    _scalar(name, Rows(a, None), Packed(weights.rung, weights.K, weights.N, weights.dtype, b), target, epilogue)
    if target is not out:
        out[...] = target


@ladder.rung("cpu.memory", after=None, needs=(float32,), idea="three loops; the sum of an element is kept in memory")
def memory(rows, weights, out, epilogue):
    _scalar("memory", rows, weights, out, epilogue)


@ladder.rung("cpu.register", after="cpu.memory", needs=(float32,), idea="the sum stays in a register until it is whole")
def register(rows, weights, out, epilogue):
    _scalar("register", rows, weights, out, epilogue)


@ladder.rung(
    "cpu.reordered",
    after="cpu.register",
    needs=(float32,),
    idea="the inner loop runs along rows of b and out, not down b's columns",
)
def reordered(rows, weights, out, epilogue):
    _row_major("reordered", rows, weights, out, epilogue)


@ladder.rung(
    "cpu.blocked", after="cpu.reordered", needs=(float32,), idea="a block of b stays in cache while all rows of a pass"
)
def blocked(rows, weights, out, epilogue):
    _row_major("blocked", rows, weights, out, epilogue)


@ladder.rung(
    "cpu.vectors",
    after="cpu.blocked",
    needs=(float32,),
    idea="explicit vectors: four rows x two vectors of out stay in registers along all of K",
)
def vectors(rows, weights, out, epilogue):
    from tilewright.ops.matmul.cpu.vectors import multiply

    multiply(rows, weights, out, epilogue)


def _pack_panels(b: np.ndarray, rung: str) -> Packed:
    from tilewright.ops.gemm.cpu.pack import pack_panels

    return pack_panels(b, rung)


@ladder.rung(
    "cpu.packed",
    after="cpu.vectors",
    needs=(float32,),
    prepare=_pack_panels,
    idea="operands packed in the order of use, and a block of out in registers, 12 x 32 with AVX-512",
)
def packed(rows, weights, out, epilogue):
    with threads(1):
        all_threads(rows, weights, out, epilogue)


@ladder.rung(
    "cpu.threads", after="cpu.packed", needs=(float32,), prepare=_pack_panels, idea="threads draw blocks of out"
)
def all_threads(rows, weights, out, epilogue):
    from tilewright.ops.gemm.cpu.loops import multiply

    multiply(rows, weights, out, epilogue, kind="float32")


def _pack_words(b: np.ndarray, rung: str) -> Packed:
    from tilewright.ops.gemm.cpu.words import pack_words

    return pack_words(b, rung, limbs=1)


@ladder.rung(
    "cpu.widened",
    after="cpu.threads",
    needs=(bfloat16,),
    prepare=_pack_words,
    idea="b packed as bfloat16, half the bytes; widened in registers, a when it is packed",
)
def widened(rows, weights, out, epilogue):
    from tilewright.ops.gemm.cpu.loops import multiply

    multiply(rows, weights, out, epilogue, kind="mixed")


@ladder.rung(
    "cpu.dot_pairs",
    after="cpu.widened",
    needs=(bfloat16, cpu_feature("avx512bf16")),
    slow=(fast_pairs,),
    prepare=_pack_words,
    idea="one instruction multiplies and adds a pair of bfloat16 in each lane",
)
def dot_pairs(rows, weights, out, epilogue):
    from tilewright.ops.gemm.cpu.loops import multiply

    multiply(rows, weights, out, epilogue, kind="dot_pairs")


@ladder.rung(
    "cpu.amx",
    after="cpu.dot_pairs",
    needs=(bfloat16, amx_tiles),
    prepare=_pack_words,
    idea="one instruction multiplies 16 x 32 by 32 x 16: AMX tile registers",
)
def amx(rows, weights, out, epilogue):
    from tilewright.ops.gemm.cpu.amx import multiply

    multiply(rows, weights, out, epilogue)


def _pack_limbs(b: np.ndarray, rung: str) -> Packed:
    from tilewright.ops.gemm.cpu.words import pack_words

    return pack_words(b, rung, limbs=2)


@ladder.rung(
    "cpu.limbs",
    after="cpu.amx",
    needs=(float32, amx_tiles, at_least("K", LIMB_DEPTH)),
    prepare=_pack_limbs,
    c=10.0,
    idea="each float32 split in two bfloat16 limbs, three tile products of them",
)
def limbs(rows, weights, out, epilogue):
    from tilewright.ops.gemm.cpu.amx import multiply

    multiply(rows, weights, out, epilogue)


gpu_ladder.declare(ladder)
