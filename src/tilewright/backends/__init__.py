"""Backends: the CPU and the GPU behind one Protocol, so that a model is written once for both.

`backend(device, dtype)` returns the backend of a device. protocol.py says what each offers; cpu.py and cuda.py are the
two implementations.
"""

from tilewright.backends.protocol import Backend
from tilewright.errors import UsageError
from tilewright.hardware.gpu import start_ahead
from tilewright.switches import Without


def backend(device: str | Backend, dtype: str = "float32", without: Without = frozenset()) -> Backend:
    """The backend for "cpu" or "cuda". A backend is returned unchanged.

    dtype: accuracy class of the products. without: optimisations that are switched off, see `switches`. Raises
    UsageError for another device, and if `without` is given with a backend, which has its own. On a GPU it also raises
    it for a class that the GPU does not support.
    """
    if not isinstance(device, str):
        if without:
            raise UsageError(f"without is {sorted(without)}; a backend has its own: make the backend with it")
        return device
    if device == "cpu":
        from tilewright.backends.cpu import Cpu

        return Cpu(without)
    if device != "cuda":
        raise UsageError(f"device is {device!r}; it must be cpu or cuda")
    start_ahead(context=True)  # while the kernels' libraries are imported
    from tilewright.backends.cuda import Cuda

    return Cuda(dtype, without=without)
