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
from tilewright.ops.matmul.problem import ACTIVATIONS
from tilewright.ops.gemm.tile.product import add_parts
from tilewright.ops.gemm.tile.records import Extras, Form, Sizes

parts, out, bias = torch.zeros(3, 19, 45), torch.zeros(19, 45), torch.zeros(45)
for activation in ACTIVATIONS:
    for added, residual in ((None, None), (bias, out)):
        form, extras = Form(3, "stores", activation, 6), Extras(added, None, None)
        add_parts.warmup(parts, out, extras, residual, Sizes(19, 45, 192, 45), form, 3, 64, grid=(19,), num_warps=2)
"""
STEP_PLAIN = """
from tilewright.ops.attention.tile.launch import PLAIN
from tilewright.ops.attention.tile.records import Block, Cache, Form, Rows, RowSizes, Targets
from tilewright.ops.attention.tile.step import step_plain

x, out, cache = torch.zeros(8, 96), torch.zeros(8, 32), torch.zeros(8, 2, 80, 16)
one = torch.zeros(8, dtype=torch.int32)
for BN in (16, 64):
    made = step_plain.warmup(
        Rows(x, x, x), Cache(cache, cache), out, Targets(one, one), RowSizes(2, 80, 96, 96, 96, 32), 0.25,
        Block(16, BN, 16, 16), Form(True, False), grid=(16,), **PLAIN)
    named = 2 * (BN // 16 + 5)  # twice: weights, four elements of a sum, the total
    assert made.asm["ptx"].count("fma.rn.f32") == named, BN
"""


@pytest.mark.parametrize("code", [ADD_PARTS, STEP_PLAIN], ids=["add_parts", "step_plain"])
def test_the_compiler_accepts(code):
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", HOPPER + code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
