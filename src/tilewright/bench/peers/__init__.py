"""The libraries that others would use for an operation (its peers), and the exact result on a GPU. Each operation has
one file.

cpu(case, inputs) -> name -> call, on NumPy inputs. PyTorch runs MKL (float32 products) and oneDNN (bfloat16 products,
convolutions). gpu(case, tensors) -> name -> call, on tensors: cuBLAS, cuDNN, PyTorch's own kernels, CuPy. truth(case,
tensors) -> (exact, allowed): the first rows of the result in float64 on the GPU, and allowed(c), the allowed error of
each element for a rung whose bound has the constant c.

tilewright's kernels write to memory that is allocated. On a CPU a peer does, too, if its library has such a function:
page faults in a large new result may take longer than the kernel.

An operation without a file has no peer. Its rungs are checked against its NumPy reference.
"""

import importlib
from importlib.util import find_spec
from types import ModuleType

from tilewright.bench.measure import Call
from tilewright.ops.core.launch import thread_count


def has_peers(op: str) -> bool:
    """Whether an operation has a file here."""
    return find_spec(f"{__name__}.{op}") is not None


def peers_of(op: str) -> ModuleType | None:
    """The operation's file; None if it has none. Raises ImportError without PyTorch."""
    return importlib.import_module(f"{__name__}.{op}") if has_peers(op) else None


def cpu_peers(op: str, case, inputs: dict) -> dict[str, Call]:
    """Name -> call of every installed library that computes this case on a CPU, on `thread_count()` threads."""
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(thread_count())
    found = peers_of(op)
    return found.cpu(case, inputs) if found else {}
