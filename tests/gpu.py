"""What the tests of GPU kernels share: where they run, and what Triton's interpreter does otherwise than a GPU."""

import importlib
import os

import numpy as np
import pytest

from compare import compare
from tilewright.ops.core.ladder import trying

ON_GPU = os.environ.get("TILEWRIGHT_GPU") == "1"  # `make test-gpu`; else kernels run as Python
PLACE = "cuda" if ON_GPU else "cpu"


def widen_bfloat16(monkeypatch) -> None:
    """The interpreter keeps bfloat16 as 16-bit integers, and multiplies those: let it widen them first.

    Nothing to do on a GPU, or without Triton.
    """
    if ON_GPU:
        return
    try:
        from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
    except ImportError:
        return
    multiply = InterpreterBuilder.create_dot

    def widened(handle):
        if str(handle.dtype) != "bf16":
            return handle
        wide = (handle.data.astype(np.uint32) << 16).view(np.float32)
        return TensorHandle(wide, type(handle.dtype)("fp32"))

    def create_dot(self, a, b, *rest):
        return multiply(self, widened(a), widened(b), *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


def round_fma_once(monkeypatch) -> None:
    """Until Triton 3.8 the interpreter rounds the product of a fused multiply-add, too: let it use float64.

    Nothing to do on a GPU, or without Triton.
    """
    if ON_GPU:
        return
    try:
        from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
    except ImportError:
        return

    def create_fma(self, x, y, z):
        wide = x.data.astype(np.float64) * y.data + z.data
        return TensorHandle(wide.astype(z.data.dtype), z.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_fma", create_fma)


def accepted(ladder, problem, dtypes, *few: str):
    """A parameter (rung, class) for each rung for GPUs and each accuracy class that it takes, whatever is installed
    here; for what cannot run here one skip, with its reason.

    problem(dtype): one that such rungs take in the class. few: the rungs where there is no GPU; all of them unless
    given.
    """
    for rung in ladder.rungs.values():
        for dtype in dtypes:
            why = "; ".join(rung.refuses(problem(dtype)))
            if rung.name.startswith("cpu.") or "dtype is" in why or (few and not ON_GPU and rung.name not in few):
                continue
            marks = [pytest.mark.skip(reason=f"{rung.name}: {why}")] if why else []
            yield pytest.param(rung, dtype, id=f"{rung.name}-{dtype}", marks=marks)


def every(ladder, problem, dtypes, cases):
    """A parameter (rung, case) for each rung, class and case that it takes; one skip for what cannot run here.

    problem: as `accepted` takes it. cases(rung, dtype): cases, or pairs of one and whether only `make test-long` runs
    it.
    """
    for able in accepted(ladder, problem, dtypes):
        rung, dtype = able.values
        if able.marks:
            yield pytest.param(rung, None, id=able.id, marks=able.marks)
            continue
        for found in cases(rung, dtype):
            case, rarely = found if isinstance(found, tuple) else (found, False)
            if not rung.refuses(case.problem):
                yield pytest.param(
                    rung, case, id=f"{rung.name}-{case.name}", marks=[pytest.mark.long] if rarely else []
                )


_twice: set[tuple[str, str, str]] = set()  # operation, rung and class of what has run twice in a simulator


def check(op: str, rung, case, rng, runs: int = 0) -> None:
    """The result of a rung, which need not be in its ladder, on a case is within its bound, all of it written, and has
    the same bits in each of `runs`. By default it runs twice; in a simulator only the first case of a rung and class
    does."""
    import torch

    what = op, rung.name, case.dtype
    runs = runs or (2 if ON_GPU or what not in _twice else 1)
    _twice.add(what)
    spec = importlib.import_module(f"tilewright.bench.sizes.{op}")
    inputs = spec.make(case, rng)
    reference = spec.reference(case, inputs)
    with trying(op, rung):
        call = spec.bind_tensors(case, inputs, PLACE)
        outs = [torch.full(reference.shape, torch.nan, device=PLACE) for _ in range(runs)]
        for out in outs:
            call(out=out)
    compare(outs[0].cpu().numpy(), reference, spec.bound(case, inputs, reference, rung.c))
    bits = [out.view(torch.int32) for out in outs]  # a NaN, where one is right, equals itself
    assert all(torch.equal(bits[0], other) for other in bits[1:]), "two runs give different bits"
