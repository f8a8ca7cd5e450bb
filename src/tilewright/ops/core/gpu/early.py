"""Kernels that start before the kernels ahead of them have ended: CUDA's "programmatic dependent launch", for GPUs of
compute capability 9.0 and later.

The programs of such a kernel are assigned to multiprocessors while the last programs of the kernel ahead still run.
Then they wait until all kernels ahead have ended and their results are visible. This hides the launch time. For few
rows, launching takes a large part of a kernel's time. Every kernel launched this way waits before it writes arrays, or
reads any but prepared weights. So if a kernel has ended, all kernels ahead of it have ended, too. Weights may be read
earlier, because the kernel ahead does not write them: see `gemm.tile.launch.settled`.
"""

from functools import cache

import triton
import triton.language as tl
from triton.language import target_info
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilewright.hardware.gpu import gpus

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
CAPABILITY = 9, 0
ROWS = 256  # the most for which a kernel starts early; with 1,024 and more rows, GPT-2 is up to 4 % slower on an H100


@triton.jit
def wait_for_inputs():
    """Wait for all kernels ahead, then let the next kernel start. The first statement of a kernel that may start
    early; in other launches, and on other GPUs, it has no effect."""
    if not INTERPRETED and target_info.cuda_capability_geq(9, 0):
        gdc_wait()
        gdc_launch_dependents()


def early(rows: int) -> dict[str, bool]:
    """Launch options of a kernel for this number of rows. The kernel must begin with `wait_for_inputs`; in a
    kernel for Hopper, each warp that touches arrays must, except the one that loads weights."""
    return {"launch_pdl": True} if rows <= ROWS and _possible() else {}


@cache
def _possible() -> bool:
    return not INTERPRETED.value and bool(gpus()) and gpus()[0].capability >= CAPABILITY
