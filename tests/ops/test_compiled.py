"""Kernels compiled for a Hopper GPU without one. `add_parts` runs nowhere else; layernorm's prefetch is no Python."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright

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
    options = {"grid": (4,), "num_warps": one.WARPS, "maxnreg": one.REGISTERS}
    early, late = (one.registers.warmup(x, w, w, x, 4, 1e-5, block, EARLY, **options) for EARLY in (True, False))
    assert "prefetch.global" not in late.asm["ptx"], C
    code = early.asm["ptx"]
    assert code.index("prefetch.global") < code.index("griddepcontrol.wait") < code.index("ld.global"), C
"""


@pytest.mark.parametrize("code", [ADD_PARTS, LAYERNORM], ids=["add_parts", "layernorm"])
def test_the_compiler_accepts(code):
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", HOPPER + code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_kernel_passes_a_text_of_its_form_on():
    """Triton 3.6 refuses a field that is a text as an argument. It has to be a constant of its own first."""
    bound = 0
    for path in Path(tilewright.__file__).with_name("ops").glob("*/tile/*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and any("jit" in ast.unparse(x) for x in function.decorator_list):
                for node in ast.walk(function):
                    bound += isinstance(node, ast.AnnAssign) and ast.unparse(node.value) == "form.activation"
                    given = map(ast.unparse, node.args) if isinstance(node, ast.Call) else ()
                    assert not {"form.activation", "form.end"} & {*given}, f"{path.name}: {function.name}"
    assert bound >= 3
