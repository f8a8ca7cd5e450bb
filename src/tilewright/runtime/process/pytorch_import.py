"""Imports PyTorch without its kernels for tensors that have no data (`device="meta"`).

`import torch` is half of a short job's time on a GPU. A third of that is one module, `torch._meta_registrations`, which
defines these kernels in Python, and what it imports. No job uses them. So an empty module has its name while PyTorch is
imported, and no module has it afterwards. Code that does need the kernels, as for `torch.compile`, `torch.export` and
fake tensors, imports `torch._meta_registrations` first. Otherwise these three may raise an ImportError, because modules
that import each other are then imported in another order.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

TESTED = "2.11.", "2.13.", "2.14."  # versions of PyTorch
META_KERNELS = "torch._meta_registrations"


def leave_out_meta_kernels() -> None:
    """The next `import torch` leaves them out, unless it is a version that was not tested. Does nothing if PyTorch is
    imported already."""
    if "torch" in sys.modules or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    with suppress(PackageNotFoundError):
        if version("torch").startswith(TESTED):
            sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds PyTorch as Python does, and gives it another loader."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """None leaves all other modules to Python's own finders."""
        spec = PathFinder.find_spec(name, path, target) if name == "torch" else None
        if spec and spec.loader:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Python's own loader for PyTorch, but with an empty module for META_KERNELS meanwhile."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As Python's own loader."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute PyTorch, which gets its own loader back."""
        module.__loader__ = self.loader
        if module.__spec__:
            module.__spec__.loader = self.loader
        sys.modules[META_KERNELS] = ModuleType(META_KERNELS)
        try:
            self.loader.exec_module(module)
        finally:
            del sys.modules[META_KERNELS]
        module.__dict__.pop(META_KERNELS.rpartition(".")[2], None)
