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
from collections.abc import Sequence
from contextlib import suppress
from importlib import _bootstrap  # type: ignore[attr-defined]
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

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
        self.imported = False  # True from the end of `import torch` until they are executed

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """None leaves the module to Python's own finders."""
        if self.imported and name.startswith("torch."):
            self.execute_all()
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if spec:  # one of them has imported it; Python would execute it again
                spec.loader = _Loaded(spec.loader)
                return spec
        self.execute(name.rpartition(".")[0])  # a package is executed before its modules
        if name != "torch" and name not in DELAYED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def execute_all(self) -> None:
        """Execute the modules in their usual order, which they need among themselves, once PyTorch is imported."""
        if self.imported:
            self.imported = False  # from now on, imports by these modules take their usual course
            for name in tuple(self.waiting):
                self.execute(name)

    def execute(self, name: str) -> None:
        """Execute a module if it has been delayed, and wait if another thread is executing it.

        Python's own lock of the module tells if two threads wait for each other, as two imports may. Then the other
        thread executes it.
        """
        if name not in self.waiting:
            return
        with suppress(_bootstrap._DeadlockError), _bootstrap._ModuleLockManager(name):  # type: ignore[attr-defined]
            module, loader = self.waiting.pop(name, (None, None))
            if module is None or loader is None:
                return
            first_access = module.__dict__.pop("__getattr__")
            try:
                loader.exec_module(module)
            except BaseException:
                module.__dict__["__getattr__"], self.waiting[name] = first_access, (module, loader)
                raise


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
            if name.startswith("__") and name != "__all__":
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            self.finder.execute_all()
            self.finder.execute(module.__name__)  # if PyTorch itself needs it while it is imported
            return getattr(module, name)

        module.__dict__["__getattr__"] = first_access  # Python calls it for attributes that the module lacks
        self.finder.waiting[module.__name__] = module, self.loader


class _Loaded(Loader):
    """Gives the module that is in `sys.modules` already, once. loader: the module's own, which it gets back."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module."""
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Do not execute it again."""
        if module.__spec__:
            module.__spec__.loader = self.loader
