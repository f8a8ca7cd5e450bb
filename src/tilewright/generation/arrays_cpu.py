"""The CPU's arrays are NumPy's."""

from __future__ import annotations

import numpy as np

from tilewright.ops.core.arrays import BFLOAT16
from tilewright.ops.core.memory import empty


class Workspace:
    """Named buffers: first-touch page faults cost more than the writes themselves, so memory is reused."""

    def __init__(self) -> None:
        self.buffers: dict[str, np.ndarray] = {}

    def take(self, name: str, rows: int, columns: int, dtype: str = "float32") -> np.ndarray:
        """See `decoder.Workspace`."""
        kind = BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)
        size = rows * columns * kind.itemsize
        if name not in self.buffers or self.buffers[name].size < size:
            self.buffers[name] = empty(size, np.uint8)
        return self.buffers[name][:size].view(kind).reshape(rows, columns)


class Cpu:
    """The CPU, see `decoder.Backend`."""

    name = device = "cpu"

    def array(self, values: np.ndarray) -> np.ndarray:
        """The values themselves: mapped weights stay mapped until they are prepared."""
        return values

    def vector(self, values: np.ndarray) -> np.ndarray:
        """A float32 copy."""
        return np.array(values, np.float32)

    def workspace(self) -> Workspace:
        """Named buffers."""
        return Workspace()

    def numpy(self, values: np.ndarray) -> np.ndarray:
        """The values themselves."""
        return values
