"""A GPU's arrays are torch tensors."""

from __future__ import annotations

import numpy as np
import torch

from tilewright.ops.core.arrays import one_of
from tilewright.ops.core.gpu.tensors import FLOATS


class Workspace:
    """Buffers on the device, each (rows, columns) view made once. grown: times that a larger buffer replaced one."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.buffers: dict[str, torch.Tensor] = {}
        self.views: dict[tuple[str, int, int, str], torch.Tensor] = {}
        self.grown = 0

    def take(self, name: str, rows: int, columns: int, dtype: str = "float32") -> torch.Tensor:
        """See `decoder.Workspace`."""
        key = name, rows, columns, dtype
        if key not in self.views:
            kind = getattr(torch, dtype)
            size = rows * columns * kind.itemsize
            if name not in self.buffers or len(self.buffers[name]) < size:
                self.views.clear()
                self.grown += 1
                self.buffers.pop(name, None)  # its memory may serve the larger one
                self.buffers[name] = torch.empty(size, dtype=torch.uint8, device=self.device)
            self.views[key] = self.buffers[name][:size].view(kind).view(rows, columns)
        return self.views[key]


class Cuda:
    """A GPU, see `decoder.Backend`. device: "cuda", or "cpu" where kernels run as Python."""

    name = "cuda"

    def __init__(self, dtype: str, device: str = "cuda") -> None:
        one_of("gpt2", "dtype", dtype, FLOATS)
        self.device = device

    def array(self, values: np.ndarray) -> torch.Tensor:
        """A float32 copy on the device."""
        return torch.from_numpy(np.array(values, np.float32)).to(self.device)

    vector = array

    def workspace(self) -> Workspace:
        """Named buffers on the device."""
        return Workspace(self.device)

    def numpy(self, values: torch.Tensor) -> np.ndarray:
        """A copy on the host, 16 bits widened to float32."""
        return (values.float() if values.is_floating_point() else values).cpu().numpy()
