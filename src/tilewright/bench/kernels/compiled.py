"""Run a rung once, and record which kernels it launches and what the compiler made of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tilewright.bench.climb import GpuSubject, Subject, parts
from tilewright.bench.kernels.loops import Loop, inner_loop
from tilewright.bench.kernels.occupancy import Block, Limits, limits, occupancy
from tilewright.errors import InternalError
from tilewright.ops.core.ladder import Rung
from tilewright.ops.core.launch import threads

ROWS = 16  # the kernels of a CPU do not depend on the number of rows


@dataclass(frozen=True)
class Compiled:
    """One compiled kernel. loop: see `inner_loop`. The other fields are of GPU kernels only. registers: per thread.
    local: bytes per thread, for registers that did not fit and for arrays. shared: bytes per block. threads: per block.
    occupancy: the share of a multiprocessor's threads that can be resident at once."""

    name: str
    loop: Loop | None
    registers: int | None = None
    local: int | None = None
    shared: int | None = None
    threads: int | None = None
    occupancy: float | None = None


def compiled_kernels(op: str, rung: Rung, case: Any) -> list[Compiled]:
    """The kernels that the rung launches for the case, in their order. Kernels that rearrange weights come first.

    All but Triton's kernels are compiled again, which takes seconds, because the cache has no assembly. Raises
    InternalError if a kernel was loaded from the cache before.
    """
    ladder, spec = parts(op)
    if case.device != "cpu":
        subject: Subject = GpuSubject(ladder, spec, case)
        started: dict[str, Compiled] = {}
        with patch.dict(os.environ, TILEWRIGHT_CACHE="off"), _numba_cuda(started), _triton(started):
            subject.forced(rung)()
            subject.finish()
        return list(started.values())
    subject = Subject(ladder, spec, spec.with_rows(case, min(ROWS, spec.rows(case))))
    return list(_on_cpu(subject.forced, rung))


def _on_cpu(forced: Callable[[Rung], Callable], rung: Rung) -> Iterator[Compiled]:
    from tilewright.simd import Kernel

    started: dict[str, Kernel] = {}
    call = Kernel.__call__

    def noted(kernel: Kernel, *args: Any) -> Any:
        started[kernel.name] = kernel
        return call(kernel, *args)

    with patch.dict(os.environ, TILEWRIGHT_CACHE="off"), patch.object(Kernel, "__call__", noted), threads(1):
        forced(rung)()
    for name, kernel in started.items():
        assembly = "\n".join(kernel.compiled().inspect_asm().values())
        if not assembly:
            raise InternalError(f"kernel {name} was loaded from the cache, which holds no assembly")
        yield Compiled(name, inner_loop(assembly))


@contextmanager
def _numba_cuda(started: dict[str, Compiled]) -> Iterator[None]:
    """Record the kernels that numba-cuda launches."""
    from numba import cuda
    from numba.cuda.dispatcher import _Kernel

    launch = _Kernel.launch

    def noted(kernel: Any, args: Any, grid: Any, block: tuple, stream: Any = 0, dynamic: int = 0) -> Any:
        name = f"{kernel.py_func.__module__.removeprefix('tilewright.ops.')}:{kernel.py_func.__qualname__}"
        name = name.replace(".<locals>", "")
        if name not in started:
            device = cuda.get_current_device()
            count, shared = block[0] * block[1] * block[2], kernel.shared_mem_per_block + dynamic
            ptx = kernel.inspect_asm(device.compute_capability)
            started[name] = _on_gpu(
                name, ptx, Block(count, kernel.regs_per_thread, shared), kernel.local_mem_per_thread
            )
        return launch(kernel, args, grid, block, stream, dynamic)

    with patch.object(_Kernel, "launch", noted):
        yield


@contextmanager
def _triton(started: dict[str, Compiled]) -> Iterator[None]:
    """Record the kernels that Triton, Gluon and `gemm.tile.start` launch."""
    from triton.runtime.jit import JITFunction

    from tilewright.ops.gemm.tile import start

    run = JITFunction.run

    def noted(function: Any, *args: Any, **options: Any) -> Any:
        kernel = run(function, *args, **options)
        name = f"{function.fn.__module__.removeprefix('tilewright.ops.')}:{function.fn.__name__}"
        if kernel is not None and name not in started:
            block = Block(kernel.metadata.num_warps * limits_here().warp, kernel.n_regs, kernel.metadata.shared)
            started[name] = _on_gpu(name, kernel.asm["ptx"], block, 4 * kernel.n_spills)
        return kernel

    with patch.dict(start._compiled, clear=True), patch.object(JITFunction, "run", noted):
        yield


def _on_gpu(name: str, ptx: str, block: Block, local: int) -> Compiled:
    share = occupancy(block, limits_here())
    return Compiled(name, inner_loop(ptx), block.registers, local, block.shared, block.threads, share)


def limits_here() -> Limits:
    """Limits of a multiprocessor of the current GPU."""
    import torch

    return limits(torch.cuda.get_device_properties(torch.cuda.current_device()))
