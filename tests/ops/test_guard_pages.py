"""No kernel reads or writes beside its operands: they lie directly before and after pages that nobody may touch.

TILEWRIGHT_PROBLEMS sets how many problems of each rung the long test runs.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from guard_pages import PAGE, SIDES, fenced
from random_cases import RANDOM
from tilewright.hardware.cpu import cpu

PROGRAM = Path(__file__).parent.parent / "guard_pages.py"
MANY = int(os.environ.get("TILEWRIGHT_PROBLEMS", "100"))


def run(*arguments: str) -> str:
    """The last line of the program in a process of its own, which must end well."""
    path = os.pathsep.join([str(PROGRAM.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    last = done.stdout.strip().rpartition("\n")[2]
    assert done.returncode == 0, f"exit {done.returncode} at: {last}\n{done.stderr[-2000:]}"
    return last


@pytest.mark.parametrize(("op", "rung"), [("conv_transpose2d", "cpu.columns"), ("matmul", "cpu.packed")])
def test_a_few_problems(op, rung):
    assert run(op, rung, "--count", "4").endswith("beside guard pages, 0 findings")


@pytest.mark.long
@pytest.mark.parametrize("op", RANDOM)
@pytest.mark.parametrize("lanes", [lanes for lanes in (16, 8, 4) if lanes <= cpu().lanes])
def test_many_problems(op, lanes):
    assert run(op, "--count", str(MANY), "--lanes", str(lanes)).endswith("beside guard pages, 0 findings")


@pytest.mark.parametrize("side", SIDES)
def test_a_byte_beside_an_array_ends_the_process(side):
    """The saboteur: it reads one byte before the start, or after the end."""
    offset = -1 if side == "start" else 5 * 4
    program = f"""
import ctypes, numpy as np
from guard_pages import fenced
x = fenced(np.ones(5, np.float32), {side!r})
assert x.sum() == 5
ctypes.string_at(x.ctypes.data + {offset}, 1)
"""
    path = os.pathsep.join([str(PROGRAM.parent), *sys.path])
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": path}, capture_output=True)
    assert done.returncode == -11, done.stderr


@pytest.mark.parametrize("side", SIDES)
def test_a_fenced_array_lies_at_its_page(side, rng):
    x = rng.standard_normal((7, 9)).astype(np.float32)[::2, ::-3]
    copy = fenced(x, side)
    low, high = np.lib.array_utils.byte_bounds(copy)
    assert copy.strides == x.strides and np.array_equal(copy, x)
    assert (low if side == "start" else high) % PAGE == 0
