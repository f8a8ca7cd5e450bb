"""Parts of PyTorch that a job on a GPU does not need are executed only when something needs them."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")
START = """
import sys
from tilewright.runtime.process import delayed_imports
delayed_imports.delay()
delayed_imports.delay()
import torch
(finder,) = [f for f in sys.meta_path if isinstance(f, delayed_imports._Finder)]
assert set(finder.waiting) == set(delayed_imports.DELAYED) & set(sys.modules), finder.waiting
assert len(finder.waiting) >= 5 and "torch._prims" not in sys.modules
x = torch.arange(6.0).reshape(2, 3)
assert torch.equal(torch.nn.functional.relu(x).cpu(), x) and not hasattr(torch.export, "__wrapped__")
assert len(finder.waiting) >= 5
"""
USES = {
    "an attribute": "assert torch.distributions.Normal(0.0, 1.0).mean == 0 and not finder.waiting",
    "every name": "from torch.masked import *; assert callable(masked_tensor)",
    "compiling": "f = lambda x: x.softmax(-1) * 2; assert torch.equal(torch.compile(f, backend='eager')(x), f(x))",
    "shapes without data": "import torch._prims; assert torch.empty(4, 5, device='meta').cumsum(0).shape == (4, 5)",
    "exporting": "assert torch.export.export(torch.nn.Linear(3, 2), (x,)).module()(x).shape == (2, 2)",
    "two threads": "import threading; uses = (lambda: __import__('torch._prims'), lambda: torch.distributions.Normal); "
    "both = [threading.Thread(target=use) for use in uses]; [one.start() for one in both]; "
    "[one.join() for one in both]; assert not finder.waiting",
    "quantization": "assert torch.nn.quantized.dynamic.Linear(3, 2)(x).shape == (2, 2)",
}  # fmt: skip


WATCHED = """
import _imp, threading
class Watched:
    def __init__(self, loader):
        self.loader = loader
    def exec_module(self, module):
        locked.append(_imp.lock_held())
        started.set()
        waiting.wait()
        self.loader.exec_module(module)
locked, started, waiting = [], threading.Event(), threading.Event()
for name, (module, loader) in finder.waiting.items():
    finder.waiting[name] = module, Watched(loader)
"""


@pytest.mark.parametrize("use", ["import torch._prims", "torch.export.Dim", "import torch.distributions.normal"])
def test_other_threads_can_import_while_delayed_modules_are_executed(use):
    """Python finds modules under a lock that stops the imports of all threads: nothing may be executed there."""
    run(WATCHED + f"waiting.set()\n{use}\nassert len(locked) >= 5 and not any(locked), locked")


def test_a_thread_waits_for_a_module_that_another_thread_executes():
    """One thread executes `torch.distributions` and is held up there, while another needs an attribute of it."""
    run(
        WATCHED
        + """
module, watched = finder.waiting["torch.distributions"]
finder.waiting = {name: (module, loader.loader) for name, (module, loader) in finder.waiting.items()}
finder.waiting["torch.distributions"] = module, watched
first = threading.Thread(target=finder.execute, args=("torch.distributions",))
first.start()
started.wait()
finder.execute_all()
threading.Timer(0.2, waiting.set).start()
assert torch.distributions.Normal(0.0, 1.0).mean == 0
first.join()
"""
    )


def run(code):
    done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("use", USES)
def test_delayed_modules_are_executed_when_they_are_used(use):
    run(USES[use])


def test_nothing_is_delayed_after_pytorch():
    code = (
        "import sys, torch; from tilewright.runtime.process import delayed_imports; before = list(sys.meta_path); "
        "delayed_imports.delay(); assert sys.meta_path == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_program_that_calls_the_command_line_has_its_imports_as_usual():
    code = (
        "import sys; from types import SimpleNamespace as Options; from tilewright.cli import _jobs; "
        "from tilewright.runtime.process import delayed_imports, startup; "
        "found = lambda: any(isinstance(f, delayed_imports._Finder) for f in sys.meta_path); "
        "options = Options(engine=None, workers=None, device='cuda'); _jobs._start_gpu(options); assert not found(); "
        "startup.prepare(); _jobs._start_gpu(options); assert found()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
