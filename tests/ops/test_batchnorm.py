"""What batchnorm promises beside its numbers: folded into the layer before it, it computes the same."""

import numpy as np
import pytest

from compare import compare
from tilewright.errors import UsageError
from tilewright.ops.batchnorm import batchnorm, fold, ladder
from tilewright.ops.batchnorm.reference import batchnorm as truth
from tilewright.ops.conv1d.reference import conv1d
from tilewright.ops.conv_transpose2d.reference import conv_transpose2d


def statistics(rng, C: int) -> dict:
    gamma, beta, mean, variance = rng.standard_normal((4, C), dtype=np.float32)
    return {"gamma": gamma, "beta": beta, "mean": mean, "variance": variance**2 + np.float32(0.1)}


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("layer", ["matrix", "conv_transpose2d", "conv1d"])
def test_a_folded_layer_computes_what_the_two_did(layer, with_bias, rng):
    C, O = 6, 9
    bn, bias = statistics(rng, O), rng.standard_normal(O, dtype=np.float32) if with_bias else None
    x = rng.standard_normal((2, 4, 3, C), dtype=np.float32)
    shape, axis, apply = {
        "matrix": ((C, O), 1, lambda w: x @ w.astype(np.float64)),
        "conv_transpose2d": ((5, 5, O, C), -2, lambda w: conv_transpose2d(x, w, 2, ((1, 2), (1, 2)))),
        "conv1d": ((O, C, 2), 0, lambda w: conv1d(x[:, 0].swapaxes(1, 2), w).swapaxes(1, 2)),
    }[layer]
    weights = rng.standard_normal(shape, dtype=np.float32)
    folded, new_bias = fold(weights, bias, **bn, axis=axis)
    assert folded.dtype == new_bias.dtype == np.float32
    before = apply(weights) + (0 if bias is None else bias.astype(np.float64))
    sizes = truth(np.abs(before), np.abs(bn["gamma"]), np.abs(bn["beta"]), -np.abs(bn["mean"]), bn["variance"])
    error = np.abs(apply(folded) + new_bias - truth(before, **bn))
    assert (error <= 1e-6 * (sizes + 10 * sizes.mean())).all()


def test_fold_rounds_once(rng):
    """Weights scaled in float64: each is the float32 nearest to the exact product."""
    bn, weights = statistics(rng, 50), rng.standard_normal((7, 50), dtype=np.float32)
    scale = bn["gamma"].astype(np.float64) / np.sqrt(bn["variance"].astype(np.float64) + 1e-5)
    assert np.array_equal(fold(weights, None, **bn, axis=1)[0], (weights * scale).astype(np.float32))


@pytest.mark.parametrize("rung", [name for name in ladder.rungs if name.startswith("cpu.")])
def test_in_place_and_into_strides(rung, rng):
    from tilewright.ops.core.ladder import using

    bn, x = statistics(rng, 21), rng.standard_normal((300, 21), dtype=np.float32)
    with using(batchnorm=rung):
        wanted = batchnorm(x, **bn, activation="tanh")
        wide = np.zeros((300, 42), np.float32)
        batchnorm(x, **bn, activation="tanh", out=wide[:, ::2])
        batchnorm(x, **bn, activation="tanh", out=x)
    assert x.tobytes() == wanted.tobytes() == np.ascontiguousarray(wide[:, ::2]).tobytes()
    assert not wide[:, 1::2].any()


def test_against_torch(rng):
    torch = pytest.importorskip("torch")
    bn, x = statistics(rng, 12), rng.standard_normal((3, 5, 4, 12), dtype=np.float32)
    mean, variance, gamma, beta = (torch.from_numpy(bn[name]) for name in ("mean", "variance", "gamma", "beta"))
    y = torch.nn.functional.batch_norm(torch.from_numpy(x).movedim(-1, 1), mean, variance, gamma, beta, eps=1e-3)
    compare(batchnorm(x, **bn, eps=1e-3), y.movedim(1, -1).numpy().astype(np.float64), 1e-5)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gamma": np.ones(4, np.float32)}, "gamma has shape (4,); (5,) is wanted"),
        ({"variance": np.float32([1, 1, -2, 1, 1])}, "variance[2] is -2"),
        ({"variance": np.float32([1, np.nan, 1, 1, 1])}, "variance[1] is nan"),
        ({"eps": -1.0}, "eps is -1.0"),
        ({"mean": np.ones(5)}, "mean is float64"),
    ],
)
def test_what_does_not_fit_is_named(changed, message, rng):
    arguments = {**statistics(rng, 5), **changed}
    for call in (lambda: batchnorm(np.ones((2, 5), np.float32), **arguments),
                 lambda: fold(np.ones((3, 5), np.float32), None, **arguments, axis=1)):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            call()
        assert message in str(caught.value)


def test_fold_names_a_wrong_axis_and_bias(rng):
    bn, weights = statistics(rng, 5), np.ones((3, 5), np.float32)
    for options, message in (
        ({"axis": 2}, "axis is 2"),
        ({"axis": "1"}, "axis is '1'"),
        ({"axis": 0}, "(3,) is wanted"),
    ):
        with pytest.raises(UsageError, match=message.replace("(", r"\(").replace(")", r"\)")):
            fold(weights, None, **bn, **options)
    with pytest.raises(UsageError, match="fold: bias has shape"):
        fold(weights, np.ones(4, np.float32), **bn, axis=1)


def test_an_unknown_activation_and_a_number_are_refused(rng):
    with pytest.raises(UsageError, match="batchnorm: activation is 'sigmoid'"):
        batchnorm(np.ones((2, 5), np.float32), **statistics(rng, 5), activation="sigmoid")
    with pytest.raises(UsageError, match="x is a single number"):
        batchnorm(np.float32(3), **statistics(rng, 1))
