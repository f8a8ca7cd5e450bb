"""Every public function takes each documented dtype as a NumPy array and as a torch tensor, with the same bits, and
returns the caller's kind of array."""

import ml_dtypes
import numpy as np
import pytest

import tilewright.ops.attention as attention
import tilewright.ops.batchnorm as batchnorm
import tilewright.ops.conv1d as conv1d
import tilewright.ops.conv3d as conv3d
import tilewright.ops.conv_transpose2d as conv_transpose2d
import tilewright.ops.correlate as correlate
import tilewright.ops.elementwise as elementwise
import tilewright.ops.embedding as embedding
import tilewright.ops.embedding_conv1d as embedding_conv1d
import tilewright.ops.layernorm as layernorm
import tilewright.ops.logprob as logprob
import tilewright.ops.matmul as matmul
import tilewright.ops.matmul_argmax as matmul_argmax
import tilewright.ops.pool as pool
import tilewright.ops.rope as rope
import tilewright.ops.sample as sample
import tilewright.ops.softmax as softmax
from tilewright.errors import UsageError
from tilewright.ops.core.arrays import as_numpy
from tilewright.ops.core.ladder import operations

torch = pytest.importorskip("torch")
IDS = np.array([[0, 3, 1, 2], [2, 2, 0, 1]], np.int32)
GIVEN = sample.rules(np.array([0.1, 0.7]))
TURNS = rope.prepare(rope.inverse_frequencies(4, 100.0), length=9)
TOP = np.array([2, 0, 6])  # targets of logprob


def _tables(ids, table, weights, bias):
    prepared = embedding_conv1d.prepare(table, [weights], [bias], length=4)
    return embedding_conv1d.embedding_conv1d(ids, prepared)


# operation: its functions; for each the shapes of its floating-point arguments, and a call with such arrays
CALLS = {
    "attention": {"attention": ([(1, 2, 3, 8)] * 3, attention.attention)},
    "batchnorm": {
        "batchnorm": ([(5, 4), (4,), (4,), (4,), (4,)], batchnorm.batchnorm),
        "fold": ([(4, 3), (4,), (4,), (4,), (4,), (4,)], lambda *a: batchnorm.fold(*a, axis=0)),
    },
    "conv1d": {
        "conv1d": ([(2, 3, 9), (4, 3, 3), (4,)], lambda x, w, b: conv1d.conv1d(x, w, bias=b)),
        "prepare": ([(2, 3, 9), (4, 3, 3)], lambda x, w: conv1d.conv1d(x, conv1d.prepare(w))),
    },
    "conv3d": {
        "conv3d": ([(4, 5, 6), (3, 3, 3)], conv3d.conv3d),
        "prepare": ([(4, 5, 6), (3, 3, 3)], lambda x, w: conv3d.conv3d(x, conv3d.prepare(w))),
        "prepare_separable": (
            [(4, 5, 6), (3,), (3,), (3,)],
            lambda x, *factors: conv3d.conv3d(x, conv3d.prepare_separable(factors)),
        ),
    },
    "conv_transpose2d": {
        "conv_transpose2d": (
            [(2, 3, 4, 5), (3, 3, 6, 5), (6,)],
            lambda x, w, b: conv_transpose2d.conv_transpose2d(x, w, bias=b, stride=2),
        ),
        "prepare": (
            [(2, 3, 4, 5), (3, 3, 6, 5)],
            lambda x, w: conv_transpose2d.conv_transpose2d(x, conv_transpose2d.prepare(w)),
        ),
    },
    "elementwise": {
        "relu": ([(3, 7)], elementwise.relu),
        "gelu": ([(3, 7)], elementwise.gelu),
        "tanh": ([(3, 7)], elementwise.tanh),
    },
    "embedding": {"embedding": ([(4, 5)], lambda table: embedding.embedding(ids_like(table), table))},
    "embedding_conv1d": {
        "embedding_conv1d": ([(4, 5), (6, 5, 3), (6,)], lambda t, w, b: _tables(ids_like(t), t, w, b)),
    },
    "layernorm": {"layernorm": ([(3, 8), (8,), (8,)], layernorm.layernorm)},
    "logprob": {
        "logprob": ([(3, 5), (5, 7), (7,)], lambda a, b, bias: logprob.logprob(a, logprob.prepare(b, bias=bias), TOP)),
    },
    "matmul": {
        "matmul": (
            [(3, 5), (5, 7), (7,), (3, 7)],
            lambda a, b, bias, rest: matmul.matmul(a, b, bias=bias, residual=rest),
        ),
        "prepare": ([(3, 5), (5, 7)], lambda a, b: matmul.matmul(a, matmul.prepare(b))),
        "rounded": ([(3, 5), (5, 7)], lambda a, b: matmul.matmul(a, b, dtype="bfloat16")),
    },
    "matmul_argmax": {
        "matmul_argmax": ([(3, 5), (5, 7)], lambda a, b: matmul_argmax.matmul_argmax(a, matmul_argmax.prepare(b))),
    },
    "pool": {"pool": ([(5, 4)], lambda x: pool.pool(x, *ranges_like(x)))},
    "rope": {"rope": ([(3, 12)], lambda x: rope.rope(x, np.array([0, 8, 3]), TURNS, heads=2))},
    "sample": {"sample": ([(2, 9)], lambda logits: sample.sample(logits, GIVEN))},
    "softmax": {"softmax": ([(3, 9)], softmax.softmax)},
}
KINDS = {  # operation that takes other dtypes: the dtypes
    "correlate": ("bool", "int8", "uint8", "int16", "int32", "int64", "float32", "float64"),
}
NUMPYS = ("fold", "logprob", "matmul_argmax", "sample")  # their documented results are NumPy arrays
EVERY = [(op, name) for op in CALLS for name in CALLS[op]]


def ids_like(array):
    """IDS as the array's kind."""
    return torch.from_numpy(IDS) if isinstance(array, torch.Tensor) else IDS


def ranges_like(array):
    """(first, end) of two texts, as the array's kind."""
    found = np.array([0, 2]), np.array([2, 5])
    return tuple(map(torch.from_numpy, found)) if isinstance(array, torch.Tensor) else found


def operands(shapes, dtype: str, rng) -> list[np.ndarray]:
    """Positive values that bfloat16 represents exactly; one argument is a variance."""
    arrays = [rng.random(shape, np.float32).astype(ml_dtypes.bfloat16) for shape in shapes]
    return arrays if dtype == "bfloat16" else [array.astype(np.float32) for array in arrays]


def as_torch(array: np.ndarray):
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def parts(result) -> list[bytes]:
    """The bytes of each array of a result."""
    return [np.asarray(part).tobytes() for part in (result if isinstance(result, tuple) else (result,))]


def test_every_operation_is_called():
    assert sorted([*CALLS, *KINDS]) == sorted(operations())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("op", "name"), EVERY)
def test_torchs_arrays_are_numpys(op, name, dtype, rng):
    shapes, call = CALLS[op][name]
    arrays = operands(shapes, dtype, rng)
    wanted = call(*[array.astype(np.float32) for array in arrays])
    from_numpy, from_torch = call(*arrays), call(*map(as_torch, arrays))
    assert parts(from_torch) == parts(from_numpy)
    if name != "rounded" and op != "attention":  # these two compute with 16 bits if the arguments have 16
        assert parts(from_numpy) == parts(wanted)
    if name not in NUMPYS:
        assert isinstance(from_numpy, np.ndarray) and isinstance(from_torch, torch.Tensor)
        assert from_torch.dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS["correlate"])
@pytest.mark.parametrize("name", ["correlate", "correlate1d", "uniform1d"])
def test_correlations_of_torchs_arrays(name, kind, rng):
    function = getattr(correlate, name)
    x, weights = (rng.random((5, 6)) * 2).astype(kind), rng.random((3, 3))
    more = {"correlate": weights, "correlate1d": weights[0], "uniform1d": 3}[name]
    found = function(torch.from_numpy(x), torch.from_numpy(more) if name != "uniform1d" else more)
    assert isinstance(found, torch.Tensor) and parts(found) == parts(function(x, more))


@pytest.mark.parametrize(("op", "name"), EVERY)
def test_float16_is_refused_by_name(op, name, rng):
    """The CPU has no float16 class; the message names it, for NumPy and for torch."""
    shapes, call = CALLS[op][name]
    arrays = [array.astype(np.float16) for array in operands(shapes, "float32", rng)]
    for given in (arrays, [torch.from_numpy(array) for array in arrays]):
        with pytest.raises(UsageError, match="float16"):
            call(*given)


@pytest.mark.parametrize("order", ["whole", "transposed", "strided"])
def test_bfloat16_is_read_without_a_copy(order):
    tensor = torch.arange(24.0).bfloat16().reshape(4, 6)
    tensor = {"whole": tensor, "transposed": tensor.T, "strided": tensor[::2, 1::2]}[order]
    array = as_numpy("x", tensor)
    assert array.dtype == ml_dtypes.bfloat16 and array.__array_interface__["data"][0] == tensor.data_ptr()
    assert np.array_equal(array.astype(np.float32), tensor.float().numpy())


def test_a_tensor_without_memory_here_is_refused_by_name():
    with pytest.raises(UsageError, match="a is a Tensor"):
        matmul.matmul(torch.ones(2, 2, dtype=torch.bfloat16, device="meta"), np.ones((2, 2), np.float32))
