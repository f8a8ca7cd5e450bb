"""The mean of the rows of each text: from hidden states to one vector per text.

from tilewright.ops.pool import pool
y = pool(x, begin, end)                             # (R, C), (n,), (n,) -> (n, C)
"""

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core.arguments import HOST, Arguments, arguments_of
from tilewright.ops.core.arrays import as_numpy, put_back, rows_for, target_for
from tilewright.ops.core.gpu.rows import kinds_of
from tilewright.ops.core.gpu.tensors import FLOATS, INTEGERS, overlaps
from tilewright.ops.core.problems import row_problem
from tilewright.ops.core.rows import as_rows
from tilewright.ops.pool.ladder import ladder
from tilewright.ops.pool.problem import Problem

__all__ = ["Problem", "ladder", "pool"]


def pool(x, begin, end, out=None):
    """out[i] = the mean of the rows begin[i] to end[i] - 1 of x, with sums in float64.

    x: (R, C), float32 or bfloat16, NumPy or any array with DLPack. begin, end: integers (n,), 0 <= begin < end <= R.
    out: a float32 array of the result's shape to write to. Arrays on a GPU stay there; x may then be float16, too, out
    of any float dtype, and a range that is not inside x makes its row NaN, because the host would have to wait to check
    it. Returns float32 (n, C), the same kind of array as x, or out. A row's bits depend on the rows of its text alone.
    Raises UsageError naming the argument that does not fit. Source: Reimers and Gurevych, "Sentence-BERT", 2019.
    """
    arguments = arguments_of(x)
    rows = arguments.take("pool", "x", x)
    if rows.ndim != 2:
        raise UsageError(f"pool: x is {arguments.name(rows)}; (rows, C) is wanted")
    ranges = _ranges(arguments, begin, end, len(rows))
    arguments.same_device("pool", "x", rows, begin=ranges[0], end=ranges[1])
    dtypes = ("float32",) if arguments is HOST else FLOATS
    result = arguments.result("pool", out, (len(ranges[0]), rows.shape[1]), rows, dtypes)
    if 0 in result.shape:
        return arguments.finish(x, result, result)
    run = _run_on_host if arguments is HOST else _run_on_device
    return arguments.finish(x, result, run(rows, *ranges, result))


def _ranges(arguments: Arguments, begin, end, R: int) -> list:
    """(begin, end), checked: integers (n,); on the CPU int64, and ranges of x's rows."""
    found = []
    for name, value in (("begin", begin), ("end", end)):
        here = arguments is HOST
        array = as_numpy(f"pool: {name}", value) if here else arguments.take("pool", name, value, INTEGERS)
        if array.ndim != 1 or (here and array.dtype.kind not in "iu"):
            raise UsageError(f"pool: {name} is {arguments.name(array)}; integers (n,) are wanted")
        found.append(np.ascontiguousarray(array, np.int64) if isinstance(array, np.ndarray) else array.contiguous())
    if found[0].shape != found[1].shape:
        raise UsageError(f"pool: begin has {len(found[0])} elements, end {len(found[1])}; they must have as many")
    if arguments is HOST and len(found[0]):
        wrong = (found[0] < 0) | (found[0] >= found[1]) | (found[1] > R)
        if wrong.any():
            i = int(np.argmax(wrong))
            rule = f"ranges of at least one of the {R} rows of x are wanted"
            raise UsageError(f"pool: range {i} is {found[0][i]} to {found[1][i]}; {rule}")
    return found


def _run_on_host(x: np.ndarray, begin: np.ndarray, end: np.ndarray, result: np.ndarray) -> np.ndarray:
    """The array that the chosen rung wrote: result, or a buffer of its shape."""
    target = target_for(result, x)
    flat = rows_for(target)
    ladder.choose(row_problem(x.shape[1], "float32", "cpu")).run(as_rows(x), begin, end, flat)
    put_back(target, flat)
    return target


def _run_on_device(x, begin, end, result):
    """The same for tensors."""
    x = x if x.stride(1) == 1 else x.contiguous()
    usable = result.stride(1) == 1 and not overlaps(result, x, begin, end)
    target = result if usable else result.new_empty(result.shape)
    ladder.choose(row_problem(x.shape[1], kinds_of(x, target), "cuda")).run(x, begin, end, target)
    return target
