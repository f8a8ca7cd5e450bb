"""Delays parts of PyTorch that no job needs, until something needs them.

`import torch` is half of a short job's time on a GPU. A third of that is spent on modules for `torch.compile`, for
`torch.export`, for quantization and for probability distributions. A command that computes on the GPU in its own
process delays them: they are in `sys.modules`, and are executed when the program accesses an attribute of one, or
imports another module of PyTorch. So `torch.compile` and fake tensors find them executed, in the usual order.

Until then `dir(module)` is nearly empty, and tensors without data (`device="meta"`) lack the kernels that PyTorch has
in Python. No job uses them.

`importlib.util.LazyLoader` was not used: it executes a module when its `__file__` is read, and the import of PyTorch
2.13 itself reads that of every module.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from importlib import _bootstrap  # type: ignore[attr-defined]
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, cast

TESTED = "2.11.", "2.13.", "2.14."  # versions of PyTorch
DELAYED = (  # PyTorch may lack any of them
    "torch.export",
    "torch._meta_registrations",
    "torch.nn.intrinsic", "torch.quantization", "torch.nn.qat", "torch.nn.quantized", "torch.nn.quantizable",
    "torch.distributions",
    "torch.masked",
)  # fmt: skip


def delay() -> None:
    """Delay these modules from now on, unless PyTorch is imported already or is a version that was not tested."""
    if "torch" in sys.modules or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    with suppress(PackageNotFoundError):
        if version("torch").startswith(TESTED):
            sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds the delayed modules as Python does, and gives them another loader."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[ModuleType, Loader]] = {}  # by name: not executed yet
        self.imported = False  # True from the end of `import torch`
        self.lock = threading.Lock()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """None leaves the module to Python's own finders. It executes nothing: Python holds a lock that stops the
        imports of all threads."""
        if name == "torch" or (name in DELAYED and not self.imported):
            kind: type[_Loader | _LaterLoader] = _Loader
        elif name.startswith("torch.") and (self.waiting if self.imported else name.rpartition(".")[0] in DELAYED):
            kind = _LaterLoader
        else:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            spec.loader = kind(spec.loader, self)
        return spec

    def execute_all(self) -> None:
        """Execute the modules in their usual order, which they need among themselves, once PyTorch is imported."""
        for name in tuple(self.waiting) if self.imported else ():
            self.execute(name)

    def execute(self, name: str) -> None:
        """Execute a module if it is still delayed. It is being imported meanwhile: Python's lock of the module lets
        other threads wait, and tells if they would wait for each other forever."""
        with ExitStack() as held:
            with self.lock:
                module, loader = self.waiting.pop(name, (None, None))
                if module is None or loader is None:
                    return
                held.enter_context(cast("Any", _bootstrap)._ModuleLockManager(name))
            first_access, spec = module.__dict__["__getattr__"], cast("Any", module.__spec__)
            spec._initializing = True
            try:
                loader.exec_module(module)
            except BaseException:
                module.__dict__["__getattr__"], self.waiting[name] = first_access, (module, loader)
                raise
            finally:
                spec._initializing = False
            if module.__dict__["__getattr__"] is first_access:  # else the module has its own
                del module.__dict__["__getattr__"]


class _Loader(Loader):
    """Executes PyTorch at once, and its delayed modules at the first access to an attribute that Python does not set
    itself."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self.loader, self.finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As Python's own loader."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute PyTorch, or delay one of its modules."""
        module.__loader__ = self.loader
        if module.__spec__:
            module.__spec__.loader = self.loader
        if module.__name__ == "torch":
            self.loader.exec_module(module)
            self.finder.imported = True
            return

        def first_access(name: str) -> Any:
            if not name.startswith("__") or name == "__all__":
                self.finder.execute_all()
                self.finder.execute(module.__name__)  # if PyTorch itself needs it while it is imported
                cast("Any", _bootstrap)._lock_unlock_module(module.__name__)  # wait if another thread is executing it
                if name in module.__dict__ or module.__dict__.get("__getattr__") is not first_access:
                    return getattr(module, name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        module.__dict__["__getattr__"] = first_access  # Python calls it for attributes that the module lacks
        self.finder.waiting[module.__name__] = module, self.loader


class _LaterLoader(Loader):
    """Executes delayed modules before another module of PyTorch, as if they had been imported first."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self.loader, self.finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module, which they may have imported already."""
        self.finder.execute_all()
        self.finder.execute(spec.name.rpartition(".")[0])  # while PyTorch is imported: a package before its modules
        if spec.name in sys.modules:
            return sys.modules[spec.name]
        spec.loader = self.loader
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Python calls it for modules that have been executed, and the module's own loader for all others."""
        if module.__spec__:
            module.__loader__ = module.__spec__.loader = self.loader
