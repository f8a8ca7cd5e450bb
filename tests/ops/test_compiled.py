"""Kernels compiled for a Hopper GPU without one: Triton's interpreter accepts more than its compiler."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
HOPPER = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class Hopper:
    def __getattr__(self, name):
        return lambda *given: {"get_current_target": GPUTarget("cuda", 90, 32)}.get(name, 0)

driver.set_active(Hopper())
"""
ADD_PARTS = """
from tilewright.ops.gemm.tile.product import add_parts
from tilewright.ops.gemm.tile.records import Extras, Form, Sizes
from tilewright.ops.matmul.problem import ACTIVATIONS

for M in (1, 19):
    parts, out, bias, peaks = torch.zeros(3, M, 45), torch.zeros(M, 45), torch.zeros(45), torch.zeros(M, 8)
    for activation in ACTIVATIONS:
        for extras, residual in ((Extras(None, None, None), None), (Extras(bias, None, peaks), out)):
            form, sizes = Form(3, "stores", activation, 6), Sizes(M, 45, 192, 45)
            add_parts.warmup(parts, out, extras, residual, sizes, form, 3, 64, grid=(M,), num_warps=2)
"""
LAYERNORM = """
from tilewright.ops.layernorm.tile import registers as one

for C in (1, 5, 768, 2048):
    x, w, block = torch.zeros(4, C), torch.zeros(C), one.block_for(C)
    made = one.registers.warmup(x, w, w, x, 4, 1e-5, block, grid=(4,), num_warps=one.WARPS, maxnreg=one.REGISTERS)
    code = made.asm["ptx"]
    assert code.index("prefetch.global") < code.index("griddepcontrol.wait") < code.index("ld.global"), C
"""


@pytest.mark.parametrize("code", [ADD_PARTS, LAYERNORM], ids=["add_parts", "layernorm"])
def test_the_compiler_accepts(code):
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", HOPPER + code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
