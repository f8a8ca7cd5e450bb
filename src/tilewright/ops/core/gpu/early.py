"""Kernels that start before the kernels ahead of them have ended: CUDA's "programmatic dependent launch", for GPUs of
compute capability 9.0 and later.

The programs of such a kernel are assigned to multiprocessors as soon as all programs of the kernel ahead are. Then they
wait until all kernels ahead have ended and their results are visible. This hides the launch time, which is a large part
of a kernel's time for few rows. Several kernels may wait at once. Every kernel launched this way waits before it writes
arrays, or reads any but prepared weights. So if a kernel has ended, all kernels ahead of it have ended, too. Weights
may be read earlier, because none of the waiting kernels writes them: see `gemm.tile.launch.settled`.
"""

from functools import cache

import triton
import triton.language as tl
from triton.language import target_info
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilewright.hardware.gpu import gpus

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
CAPABILITY = 9, 0
ROWS = 256  # the most that count as few: these kernels start early. With 1,024, GPT-2 is up to 4 % slower on an H100


@triton.jit
def wait_for_inputs():
    """Let the next kernel start, and wait until all kernels ahead have ended. A kernel that may start early calls it
    before it touches arrays; in other launches, and on other GPUs, it has no effect."""
    if not INTERPRETED and target_info.cuda_capability_geq(9, 0):
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch(pointers):
    """Ask for the cache lines, of 128 bytes, at these pointers to be copied from memory to the L2 cache. Nothing is
    read yet, so a kernel may do this before it waits: a later load sees what the kernels ahead have written."""
    if not INTERPRETED and target_info.cuda_capability_geq(9, 0):
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
        )


def early(rows: int) -> dict[str, bool]:
    """Launch options of a kernel for this number of rows. The kernel calls `wait_for_inputs` first; only
    `prefetch` may come before it. In a kernel for Hopper, each warp that touches arrays waits, except the one that
    loads weights."""
    return {"launch_pdl": True} if rows <= ROWS and _possible() else {}


@cache
def _possible() -> bool:
    return not INTERPRETED.value and bool(gpus()) and gpus()[0].capability >= CAPABILITY
