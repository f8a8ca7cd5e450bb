"""Filters of ndimage that are called again with equal weights run a recorded launch, with the same bits."""

import copy

import numpy as np
import pytest
import scipy.ndimage

import tilewright.ndimage as ndi
from tilewright.ndimage import _volumes
from tilewright.ops.core.ladder import using
from tilewright.ops.core.repeat import RepeatedLaunch

WEIGHTS = np.arange(27.0).reshape(3, 3, 3) ** 2 % 7  # no outer product, and not symmetric


@pytest.fixture
def repeats(monkeypatch):
    """Gets an entry for each launch that is repeated. No weights are cached at the begin."""
    found, run = [], RepeatedLaunch.run
    monkeypatch.setattr(RepeatedLaunch, "run", lambda self, *arrays: found.append(self) or run(self, *arrays))
    _volumes._cached.cache_clear()
    return found


@pytest.mark.parametrize(
    ("function", "arguments", "count"),
    [("gaussian_filter", {"sigma": 1.5}, 3), ("correlate", {"weights": WEIGHTS}, 3), ("laplace", {}, 3),
     ("correlate", {"weights": WEIGHTS, "origin": (0, 1, 0)}, 0),
     ("correlate", {"weights": WEIGHTS, "mode": "constant", "cval": 2}, 3)],
)  # fmt: skip
def test_equal_calls_repeat_a_launch(function, arguments, count, rng, repeats, monkeypatch):
    """The third call with weights of the same content is the first that repeats one, with the same bits."""
    volumes = [rng.standard_normal((20, 33, 40), np.float32) for _ in range(5)]
    call = getattr(ndi, function)
    found = [call(volume, **copy.deepcopy(arguments)) for volume in volumes]
    assert len(repeats) == count
    monkeypatch.setattr(_volumes, "SMALL", 0)  # nothing is cached
    for volume, result in zip(volumes, found, strict=True):
        assert result.tobytes() == call(volume, **arguments).tobytes()
    assert len(repeats) == count


def test_weights_that_change_in_place(rng, repeats):
    volume, weights = rng.standard_normal((20, 33, 40), np.float32), WEIGHTS.copy()
    for _ in range(4):
        ndi.correlate(volume, weights)
    assert len(repeats) == 2
    weights[1, 1, 1] += 1
    found = ndi.correlate(volume, weights)
    assert len(repeats) == 2
    assert np.abs(found - scipy.ndimage.correlate(volume, weights)).max() < 1e-4


def test_few_small_weights_are_cached(rng, repeats, monkeypatch):
    volume, cached = rng.standard_normal((20, 33, 40), np.float32), _volumes._cached.cache_info
    for i in range(2 * _volumes.CACHED):
        ndi.correlate(volume, WEIGHTS + i)
    assert cached().currsize == _volumes.CACHED
    _volumes._cached.cache_clear()
    with using(conv3d="cpu.rows"):
        ndi.correlate(volume, WEIGHTS)
    ndi.correlate(volume, np.asfortranarray(WEIGHTS))
    monkeypatch.setattr(_volumes, "SMALL", WEIGHTS.size - 1)
    ndi.correlate(volume, WEIGHTS)
    assert cached().currsize == 0
