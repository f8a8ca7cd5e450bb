"""What layernorm promises beside its numbers: rows far from zero, constant rows, rows that know nothing of others."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch

from compare import Guarded, compare
from tilewright.bench.sizes import layernorm as spec
from tilewright.errors import UsageError
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import threads
from tilewright.ops.core.rows import ALONE
from tilewright.ops.layernorm import ladder, layernorm
from tilewright.ops.layernorm.cpu import vectors
from tilewright.ops.layernorm.reference import layernorm as truth

RUNGS = [name for name in ladder.rungs if name.startswith("cpu.")]


def test_it_is_what_torch_computes(rng):
    x, weight, bias = (rng.standard_normal(shape, dtype=np.float32) for shape in ((4, 6, 33), 33, 33))
    peer = torch.nn.functional.layer_norm(*map(torch.from_numpy, (x,)), (33,), *map(torch.from_numpy, (weight, bias)))
    compare(layernorm(x, weight, bias), peer.numpy().astype(np.float64), 1e-5)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("C", [5, 33, 64])
def test_a_bfloat16_out_is_the_result_rounded(rung, C, rng):
    x, weight, bias = (rng.standard_normal(shape, dtype=np.float32) for shape in ((7, C), C, C))
    out = np.zeros((7, C + 1), ml_dtypes.bfloat16)
    with using(layernorm=rung):
        wanted = layernorm(x, weight, bias)
        layernorm(x, weight, bias, out=out[:, :C])
    assert out[:, :C].tobytes() == wanted.astype(ml_dtypes.bfloat16).tobytes() and not out[:, C].any()


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("value", [0.1, 1e4, -3e-20])
def test_a_constant_row_becomes_the_bias(rung, value):
    """Every addition of such a sum rounds the same way: what is left of the mean is all there is to see."""
    case = spec.Case((1, 1600))
    inputs = {"x": np.full((1, 1600), value, np.float32), "weight": np.ones(1600, np.float32), "eps": 1e-5}
    inputs["bias"] = np.full(1600, 0.5, np.float32)
    with using(layernorm=rung):
        compare(layernorm(**inputs), truth(**inputs), spec.bound(case, inputs, truth(**inputs)))


@pytest.mark.parametrize("rung", RUNGS)
def test_digits_survive_far_from_zero(rung):
    """mean(x**2) - mean**2 would have nothing left: the square of 4096 has 24 bits, the variance is 1."""
    x = np.float32([[4095.0, 4097.0] * 20])
    with using(layernorm=rung):
        y = layernorm(x, np.ones(40, np.float32), np.zeros(40, np.float32), eps=0.0)
    assert y.tolist() == [[-1.0, 1.0] * 20]


@pytest.mark.parametrize("rung", RUNGS)
def test_no_variance_and_no_eps_is_nan_as_in_numpy(rung):
    with using(layernorm=rung):
        assert np.isnan(layernorm(np.ones((2, 37), np.float32), *np.ones((2, 37), np.float32), eps=0)).all()


@pytest.mark.parametrize("lanes", [4, pytest.param(8, marks=pytest.mark.long)])
def test_narrower_vectors(lanes, rng, monkeypatch):
    """What a machine without AVX-512 runs."""
    monkeypatch.setattr(vectors, "cpu", lambda: SimpleNamespace(lanes=lanes))
    for C in (1, lanes - 1, lanes, 4 * lanes + 3, 100):
        case = spec.Case((3, C))
        inputs, out = spec.make(case, rng), Guarded((3, C))
        layernorm(**inputs, out=out.array)
        out.check()
        compare(np.ascontiguousarray(out.array), truth(**inputs), spec.bound(case, inputs, truth(**inputs)))


def test_a_row_knows_nothing_of_the_others(rng):
    """The same bits alone, among others, behind a poisoned row, in place, on one thread and two."""
    x = rng.standard_normal((2 * ALONE // 100, 100), dtype=np.float32)
    weight, bias = rng.standard_normal((2, 100), dtype=np.float32)
    with threads(2):
        whole = layernorm(x, weight, bias)
    with threads(1):
        assert layernorm(x, weight, bias).tobytes() == whole.tobytes()
    poisoned = x.copy()
    poisoned[::2] = np.nan
    assert layernorm(poisoned, weight, bias)[1::2].tobytes() == whole[1::2].tobytes()
    for i in (0, 1, len(x) - 1):
        assert layernorm(x[i], weight, bias).tobytes() == whole[i].tobytes()
    place = x.copy()
    assert layernorm(place, weight, bias, out=place) is place
    assert place.tobytes() == whole.tobytes()
    shifted = np.concatenate([x, x[:1]])
    layernorm(shifted[:-1], weight, bias, out=shifted[1:])
    assert shifted[1:].tobytes() == whole.tobytes()


@pytest.mark.parametrize(("rows", "tasks"), [(1, 1), (512, 64)])
def test_threads_are_woken_for_work_that_is_worth_it(rows, tasks, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "tilewright.ops.core.rows.launch", lambda *_, tasks, words, alone: asked.append(1 if alone else tasks)
    )
    with using(layernorm="cpu.vectors"):
        layernorm(np.ones((rows, 1024), np.float32), *np.ones((2, 1024), np.float32))
    assert asked == [tasks]


def test_what_is_written_to_and_read_from(rng):
    """An out of any strides, bfloat16 widened, a torch tensor in and out, nothing at all."""
    x = rng.standard_normal((5, 12), dtype=np.float32)
    weight, bias = rng.standard_normal((2, 12), dtype=np.float32)
    wanted = layernorm(x, weight, bias)
    out = np.zeros((12, 10), np.float32)
    layernorm(x, weight, bias, out=out[:, ::2].T)
    assert out[:, ::2].T.tobytes() == wanted.tobytes()
    assert not out[:, 1::2].any()
    narrow = x.astype(ml_dtypes.bfloat16)
    assert layernorm(narrow, weight, bias).tobytes() == layernorm(narrow.astype(np.float32), weight, bias).tobytes()
    assert torch.equal(layernorm(torch.from_numpy(x), weight, bias), torch.from_numpy(wanted))
    assert layernorm(np.empty((3, 0), np.float32), weight[:0], bias[:0]).shape == (3, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, w: layernorm(x, w[:2], w), r"weight has shape \(2,\); \(3,\) is wanted"),
        (lambda x, w: layernorm(x, w, w[None]), r"bias has shape \(1, 3\)"),
        (lambda x, w: layernorm(x[0, 0], w, w), "x is a single number"),
        (lambda x, w: layernorm(x, w, w, eps=-1), "eps is -1"),
        (lambda x, w: layernorm(x, w, w, eps=float("nan")), "eps is nan"),
        (lambda x, w: layernorm(x, w.astype(np.float64), w), "weight is float64"),
        (lambda x, w: layernorm(x, w, w, out=x[:1]), r"out is float32 \(1, 3\)"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(UsageError, match=message):
        call(np.zeros((2, 3), np.float32), np.ones(3, np.float32))
