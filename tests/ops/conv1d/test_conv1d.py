"""What the test of every rung cannot say of conv1d: PyTorch agrees, a NaN stays, mistakes are named."""

import numpy as np
import pytest
import torch

from compare import compare
from ops.cases import cases_of
from tilewright.bench.sizes import conv1d as spec
from tilewright.errors import Refused, ResourceError, UsageError
from tilewright.hardware import CPU
from tilewright.ops.conv1d import Problem, conv1d, ladder, prepare
from tilewright.ops.conv1d.cpu.transpose import transpose
from tilewright.ops.conv1d.problem import POOLS
from tilewright.ops.core.ladder import forcing, using
from tilewright.ops.core.launch import threads
from tilewright.ops.matmul.problem import DTYPES

DEEP = spec.Case(3, 6, 128, 2731, 3)  # every rung takes it
RUNGS = [name for name in ladder.rungs if name.startswith("cpu.")]
WINDOWS = [(1, 0, 1), (2, 3, 1), (1, 4, 3), (3, 2, 2), (5, 0, 4)]


def normal(rng, *shape) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def pytorch(x, weight, bias, activation, pool, **window) -> np.ndarray:
    """The same by torch.nn.functional.conv1d, in the dtype of x."""
    y = torch.nn.functional.conv1d(torch.from_numpy(x), torch.from_numpy(weight), torch.from_numpy(bias), **window)
    y = torch.relu(y) if activation else y
    return (y.amax(dim=2) if pool else y).numpy()


@pytest.mark.parametrize(("stride", "padding", "dilation"), WINDOWS)
@pytest.mark.parametrize(("activation", "pool"), [(None, None), ("relu", None), ("relu", "max"), (None, "max")])
def test_pytorch_computes_the_same(stride, padding, dilation, activation, pool, rng):
    case = spec.Case(2, 40, 21, 10, 5, stride, padding, dilation, bias=True, activation=activation, pool=pool)
    inputs = spec.make(case, rng)
    expected = pytorch(
        **{name: x.astype(np.float64) if name in ("x", "weight", "bias") else x for name, x in inputs.items()}
    )
    compare(conv1d(**inputs), expected, spec.bound(case, inputs, expected))


def test_a_tensor_in_is_a_tensor_out(rng):
    x, weight = torch.from_numpy(normal(rng, 2, 3, 8)), torch.from_numpy(normal(rng, 4, 3, 2))
    y = conv1d(x, weight)
    assert isinstance(y, torch.Tensor)
    assert np.array_equal(y.numpy(), conv1d(x.numpy(), weight.numpy()))


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize(("activation", "pool"), [("relu", None), ("relu", "max"), (None, "max")])
def test_what_is_not_finite_goes_where_pytorch_sends_it(rung, activation, pool, rng):
    """NaN wins over everything, at the first, a middle and the last position; minus infinity becomes 0 in a ReLU."""
    B, L, O, C, K = DEEP.B, DEEP.L, DEEP.O, DEEP.C, DEEP.K
    x, weight, bias = normal(rng, B, C, L), np.abs(normal(rng, O, C, K)) + 1, normal(rng, O)
    x[0, 5, 0], x[1, 7, 3], x[2, 1, L - 1] = np.nan, -np.inf, np.nan
    with using(conv1d=rung), forcing(matmul="cpu.packed"):  # limbs make a NaN of an infinity: ops/gemm/cpu/amx.py
        result = conv1d(x, weight, bias=bias, activation=activation, pool=pool)
    expected = pytorch(x, weight, bias, activation, pool)
    assert np.array_equal(np.isnan(result), np.isnan(expected))
    assert np.isnan(result).any()
    assert not np.isnan(result).all()
    assert np.array_equal(np.isinf(result), np.isinf(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(7, 33, 20, 12, 3), (7, 9, 128, 2731, 3)])
@pytest.mark.parametrize("pool", POOLS)
def test_a_sample_is_alone(dtype, sizes, pool, rng):
    """Its bits are the same alone, in any batch, at any position, beside a poisoned neighbour, on any threads."""
    inputs = spec.make(spec.Case(*sizes, dtype=dtype, padding=1, bias=True, activation="relu", pool=pool), rng)
    x, weight = inputs.pop("x"), prepare(inputs.pop("weight"), dtype=dtype)
    call = lambda some: conv1d(some, weight, **inputs)  # noqa: E731
    with threads(1):
        alone = [call(x[b : b + 1]).tobytes() for b in range(len(x))]
    with threads(2):
        for order in ([0, 1, 2, 3, 4, 5, 6], [6, 2, 0], [3, 3, 5, 1]):
            assert [y.tobytes() for y in call(x[order])] == [alone[b] for b in order]
        x[4] = np.nan
        y = call(x)
    assert np.isnan(y[4]).any()
    assert [y[b].tobytes() for b in range(7) if b != 4] == [alone[b] for b in range(7) if b != 4]


@pytest.mark.parametrize("lanes", [4, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("rung", ["cpu.taps", "cpu.channel_tiles"])
def test_shorter_vectors(lanes, rung, rng, monkeypatch):
    """The kernels of machines without AVX-512 and without AVX2 run anywhere."""
    monkeypatch.setattr(CPU, "lanes", lanes)
    for case in cases_of("conv1d"):
        if case.dtype == "float32" and case.C < 500:
            inputs = spec.make(case, rng)
            expected = spec.reference(case, inputs)
            with using(conv1d=rung):
                compare(conv1d(**inputs), expected, spec.bound(case, inputs, expected))


@pytest.mark.parametrize("lanes", [4, pytest.param(8, marks=pytest.mark.long), 16])
def test_transpose(lanes, rng, monkeypatch):
    """(B, R, S) -> (B, S, R) for every remainder, into a part of a larger array and no further."""
    monkeypatch.setattr(CPU, "lanes", lanes)
    for R, S in [(1, 1), (3, 40), (16, 16), (17, 31), (70, 15), (33, 50)]:
        wide = normal(rng, 4, R + 2, S)
        for source in (wide[:, :R], wide[::-2, 1:-1], wide[:, :R, ::-1]):
            around = np.full((len(source), S + 2, R), np.nan, np.float32)
            transpose(source, around[:, 1:-1])
            assert np.array_equal(around[:, 1:-1], source.swapaxes(1, 2))
            assert np.isnan(around[:, [0, -1]]).all()


X, W = np.ones((2, 3, 8), np.float32), np.ones((4, 3, 5), np.float32)
MISTAKES = [
    ({"x": X[0]}, "x is (3, 8) and weight is (4, 3, 5); x must be (B, C, L) with C = 3 channels"),
    ({"x": X[:, :2]}, "x is (2, 2, 8) and weight is (4, 3, 5)"),
    ({"x": X.astype(np.float64)}, "x is float64; float32 or bfloat16 is wanted"),
    ({"x": "text"}, "x is <U4; float32 or bfloat16 is wanted"),
    ({"weight": W[0]}, "weight has shape (3, 5); (O, C, K) is wanted"),
    ({"weight": W[:, :, :0]}, "weight has shape (4, 3, 0); (O, C, K) is wanted, at least one of each"),
    ({"bias": np.ones(3, np.float32)}, "bias has shape (3,); (4,) is wanted, one value per output channel"),
    ({"bias": np.empty(0, np.float32)}, "bias has shape (0,); (4,) is wanted"),
    ({"stride": 0}, "stride is 0; at least 1 is wanted"),
    ({"dilation": 0}, "dilation is 0; at least 1 is wanted"),
    ({"padding": -1}, "padding is -1; at least 0 is wanted"),
    ({"stride": 1.5}, "stride is 1.5; an integer is wanted"),
    ({"dilation": 3}, "5 taps with dilation 3 span 13 positions; x has 8, 8 with its padding of 0 on both sides"),
    ({"x": X[:, :, :2], "padding": 1}, "5 taps with dilation 1 span 5 positions; x has 2, 4 with its padding of 1"),
    ({"activation": "gelu"}, "activation is 'gelu'; it must be one of None, relu"),
    ({"pool": "mean"}, "pool is 'mean'; it must be one of None, max"),
    ({"dtype": "float16"}, "dtype is 'float16'; it must be one of float32, bfloat16"),
    ({"weight": prepare(W), "dtype": "bfloat16"}, "dtype is 'bfloat16', but weight was prepared for float32"),
    (
        {"out": np.empty((2, 4, 5), np.float32)},
        "out is float32 (2, 4, 5); a writeable float32 NumPy array of shape (2, 4, 4)",
    ),
    ({"out": np.empty((2, 4, 4))}, "out is float64 (2, 4, 4); a writeable float32 NumPy array of shape (2, 4, 4)"),
    ({"padding": 10**10}, "padding is 10000000000; at most 2147483647 is wanted"),
    ({"pool": "max", "out": np.empty((2, 4, 1), np.float32)}, "NumPy array of shape (2, 4)"),
]


@pytest.mark.parametrize(("changed", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_mistake_is_named(changed, message):
    with pytest.raises(UsageError) as caught:
        conv1d(**{"x": X, "weight": W, **changed})
    assert message in str(caught.value)


def test_weights_of_another_rung_are_refused():
    with using(conv1d="cpu.taps"):
        packed = prepare(W)
    with pytest.raises(UsageError, match=r"prepared for rung cpu\.taps, and cpu\.channel_tiles is chosen now"):
        conv1d(X, packed)


def test_a_forced_rung_says_why_it_refuses():
    with using(conv1d="cpu.matmul"), pytest.raises(Refused, match="C \\* K is 15 and O is 4, it needs 8192 and 128"):
        conv1d(X, W)
    with using(conv1d="cpu.taps"), pytest.raises(Refused, match="dtype is bfloat16"):
        conv1d(X, W, dtype="bfloat16")


@pytest.mark.parametrize(
    ("problem", "rung"),
    [
        (Problem(1024, 4096, 3), "cpu.matmul"),
        (Problem(64, 4096, 3), "cpu.channel_tiles"),
        (Problem(1024, 512, 5), "cpu.channel_tiles"),
        (Problem(32, 1, 9), "cpu.channel_tiles"),
        (Problem(32, 1, 9, "bfloat16"), "cpu.matmul"),
    ],
)
def test_the_choice(problem, rung):
    assert ladder.choose(problem).name == rung


@pytest.mark.parametrize("pool", POOLS)
def test_out_may_lie_anywhere(pool, rng):
    x, weight = normal(rng, 3, 5, 40), normal(rng, 9, 5, 3)
    expected = conv1d(x, weight, padding=1, pool=pool)
    wide = np.full([2 * n for n in expected.shape], np.nan, np.float32)
    for out in (
        wide[::2, ::2, ::2][:, :, ::-1] if not pool else wide[::2, ::-2],
        wide.T[tuple(map(slice, expected.T.shape))].T,
    ):
        assert conv1d(x, weight, padding=1, pool=pool, out=out) is out
        assert np.array_equal(out, expected)


@pytest.mark.parametrize("rung", RUNGS)
def test_out_may_lie_on_x(rung, rng):
    """A caller may write the result over its input: every rung has read x before it writes."""
    memory, weight = normal(rng, 2 * 2731 * 6), normal(rng, 128, 2731, 3)
    for x in (memory.reshape(2, 2731, 6), memory.reshape(2, 6, 2731).swapaxes(1, 2)):
        before, out = memory.copy(), memory[: 2 * 128 * 4].reshape(2, 128, 4)
        with using(conv1d=rung):
            expected = conv1d(x, weight)
            assert np.array_equal(conv1d(x, weight, out=out), expected)
        memory[:] = before


@pytest.mark.parametrize("rung", ["cpu.naive", "cpu.taps", "cpu.channel_tiles"])
@pytest.mark.parametrize("pool", POOLS)
def test_out_may_share_memory_with_any_operand(rung, pool, rng):
    x, weight, o = normal(rng, 2, 6, 8), normal(rng, 6, 6, 3), normal(rng, 6, 6, 8)
    with using(conv1d=rung):
        for operands in ({"x": o[:2]}, {"weight": o[:, :, :3]}, {"bias": o[0, :, 0]}):
            arguments = {"x": x, "weight": weight, "padding": 1, "pool": pool, **operands}
            expected, before = conv1d(**arguments), o.copy()
            out = o.reshape(-1)[: expected.size].reshape(expected.shape)
            assert np.array_equal(conv1d(**arguments, out=out), expected)
            o[...] = before


@pytest.mark.parametrize("pool", POOLS)
def test_out_may_be_a_field(pool, rng):
    """Its strides are no multiple of an element's 4 bytes."""
    x, weight = normal(rng, 3, 5, 40), normal(rng, 9, 5, 3)
    expected = conv1d(x, weight, pool=pool)
    record = np.zeros(expected.shape[:-1], [("tag", "u1"), ("value", "<f4", expected.shape[-1:]), ("end", "u1")])
    conv1d(x, weight, pool=pool, out=record["value"])
    assert np.array_equal(record["value"], expected)
    assert not (record["tag"].any() or record["end"].any())


@pytest.mark.parametrize("pool", POOLS)
def test_what_no_memory_holds_is_refused(pool):
    with pytest.raises(ResourceError, match="conv1d: memory does not hold"):
        conv1d(np.ones((1 << 20, 3, 8), np.float32)[:], W, padding=2**31 - 1, pool=pool)


@pytest.mark.parametrize("rung", ["cpu.taps", "cpu.channel_tiles"])
def test_a_step_that_is_never_taken_costs_no_memory(rung):
    with using(conv1d=rung):
        assert np.array_equal(conv1d(X, W, stride=10**12), conv1d(X[:, :, :5], W))
        assert np.array_equal(conv1d(X, W[:, :, :1], dilation=10**12), np.full((2, 4, 8), 3, np.float32))
