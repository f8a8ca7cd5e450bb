"""A job on a GPU imports PyTorch without the kernels for tensors that have no data. What needs them imports them."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")
START = """
import sys
from tilewright.runtime.process import pytorch_import
pytorch_import.leave_out_meta_kernels()
pytorch_import.leave_out_meta_kernels()
assert sum(isinstance(finder, pytorch_import._Finder) for finder in sys.meta_path) == 1
import torch
assert pytorch_import.META_KERNELS not in sys.modules and not hasattr(torch, "_meta_registrations")
assert "torch._decomp" not in sys.modules and type(torch.__loader__).__name__ == "SourceFileLoader"
x = torch.arange(6.0).reshape(2, 3)
assert torch.equal(torch.nn.functional.relu(x).cpu(), x)
"""
USES = {
    "printing": "assert str(x).startswith('tensor([[0., 1., 2.]')",
    "copying": "import copy, pickle; assert torch.equal(copy.deepcopy(x), pickle.loads(pickle.dumps(x)))",
    "distributions": "assert torch.distributions.Normal(0.0, 1.0).mean == 0",
    "other modules": "import torch._prims; assert torch.empty(4, 5, device='meta').cumsum(0).shape == (4, 5)",
}
KERNELS = "import torch._meta_registrations\n"
USES_OF_KERNELS = {
    "no data": "assert torch.empty(4, 5, device='meta').cumsum(0).shape == (4, 5)",
    "compiling": "f = lambda x: x.softmax(-1) + 1; assert torch.equal(torch.compile(f, backend='eager')(x), f(x))",
    "exporting": "assert torch.export.export(torch.nn.Linear(3, 2), (x,)).module()(x).shape == (2, 2)",
    "fake tensors": "from torch._subclasses.fake_tensor import FakeTensorMode\n"
    "with FakeTensorMode() as mode: assert mode.from_tensor(x).cumsum(0).shape == (2, 3)",
}


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("use", USES)
def test_all_else_works_as_usual(use):
    run(START + USES[use])


@pytest.mark.parametrize("use", USES_OF_KERNELS)
def test_what_needs_the_kernels_works_after_their_import(use):
    run(START + KERNELS + USES_OF_KERNELS[use])


def test_nothing_changes_after_pytorch():
    run(
        "import sys, torch; from tilewright.runtime.process import pytorch_import; before = list(sys.meta_path); "
        "pytorch_import.leave_out_meta_kernels(); assert sys.meta_path == before"
    )


def test_a_program_that_calls_the_command_line_has_its_imports_as_usual():
    run(
        "import sys; from types import SimpleNamespace as Options; from tilewright.cli import _jobs; "
        "from tilewright.runtime.process import pytorch_import, startup; "
        "found = lambda: any(isinstance(f, pytorch_import._Finder) for f in sys.meta_path); "
        "options = Options(engine=None, workers=None, device='cuda'); _jobs._start_gpu(options); assert not found(); "
        "startup.prepare(); _jobs._start_gpu(options); assert found()"
    )
