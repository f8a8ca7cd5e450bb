"""Every kernel that may start before the kernel ahead has ended waits first. Nothing else shows a kernel that does not:
its results are wrong only now and then."""

import ast
import inspect
import textwrap
from pathlib import Path

import pytest

import tilewright
from tilewright.ops.core.gpu import early

pytest.importorskip("triton")

from tilewright.generation.cuda import advance
from tilewright.ops.attention.tile import step
from tilewright.ops.embedding.tile import rows
from tilewright.ops.gemm.tile import launch, product
from tilewright.ops.layernorm.tile import registers
from tilewright.ops.matmul_argmax.tile import best

KERNELS = [
    advance.store_tokens, rows.gather, registers.registers, product.product, product.split, product.add_parts,
    best.best_product, best.best_tile, step.step, step.step_heads, step.step_blocks, step.step_plain,
]  # fmt: skip
LAUNCHES = 12  # of the kernels above, and of three for Hopper


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.fn.__name__)
def test_a_kernel_waits_before_it_touches_arrays(kernel):
    text = textwrap.dedent(inspect.getsource(kernel.fn))
    body = ast.parse(text).body[0].body[1:]  # without the docstring
    before, waited, _ = "\n".join(map(ast.unparse, body)).partition("wait_for_inputs()")
    called = [call for call in ast.walk(ast.parse(before)) if isinstance(call, ast.Call)]
    assert waited and {ast.unparse(call.func) for call in called} <= {"prefetch", "tl.arange", "tl.minimum", "max"}


WARPS = {"gemm/tile/hopper.py": ["load_tiles", "multiply_tiles"], "gemm/tile/hopper_ends.py": ["move_tiles"],
         "gemm/tile/hopper_few.py": ["multiply_tiles"],
         "matmul_argmax/tile/hopper.py": ["search_tiles"]}  # fmt: skip


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, names in WARPS.items() for name in names])
def test_the_warps_of_a_kernel_for_hopper_wait_before_they_touch_arrays(path, name):
    """The warp that loads weights does not, and no other."""
    tree = ast.parse(Path(tilewright.__file__).with_name("ops").joinpath(path).read_text())
    function = next(part for part in tree.body if getattr(part, "name", "") == name)
    text = "\n".join(ast.unparse(part) for part in function.body[1:])  # without the docstring
    before, waited, _ = text.partition("wait_for_inputs()")
    assert waited and not any(
        word in before for word in ("for ", "while ", "copy_in(", "copy_out(", "store", "gl.load")
    )
    assert before.rstrip().endswith("if WAIT:") == (name == "load_tiles")


def test_weights_that_are_loaded_early_are_settled():
    """Else a product could load them while the kernel ahead still writes them."""
    tree = ast.parse(inspect.getsource(launch))
    made = [call for call in ast.walk(tree) if isinstance(call, ast.Call) and ast.unparse(call.func) == "Packed"]
    assert len(made) == 2 and all(ast.unparse(call.args[-1]) == "settled(data)" for call in made)


KERNELS_FOR_HOPPER = {
    "gemm/tile/hopper.py": "b",
    "matmul_argmax/tile/hopper.py": "b",
    "gemm/tile/hopper_few.py": "weights",
}
SHARED_ALONE = {"split_rows"}  # warps that read and write shared memory only


@pytest.mark.parametrize(("path", "weights"), KERNELS_FOR_HOPPER.items())
def test_a_kernel_for_hopper_has_no_other_warps(path, weights):
    text = Path(tilewright.__file__).with_name("ops").joinpath(path).read_text()
    calls = [
        call.args[0]
        for call in ast.walk(ast.parse(text))
        if getattr(getattr(call, "func", 0), "attr", "") == "warp_specialize"
    ]
    assert calls
    for jobs in calls:
        assert {job.elts[0].id for job in jobs.elts} <= {
            name for names in WARPS.values() for name in names
        } | SHARED_ALONE
        (early_one,) = [job for job in jobs.elts if job.elts[0].id == "load_tiles" and not job.elts[1].elts[-1].value]
        assert early_one.elts[1].elts[0].id == weights


def test_no_other_kernel_starts_early():
    files = Path(tilewright.__file__).parent.rglob("*.py")
    assert sum(path.read_text().count("**early(") for path in files) == LAUNCHES


def test_few_rows_start_early_on_a_gpu_that_can(monkeypatch):
    monkeypatch.setattr(early, "_possible", lambda: True)
    assert early.early(early.ROWS) == {"launch_pdl": True} and early.early(early.ROWS + 1) == {}
    monkeypatch.setattr(early, "_possible", lambda: False)
    assert early.early(1) == {}
