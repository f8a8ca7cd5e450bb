"""8-bit pixels and marks of images are the same on both backends."""

import numpy as np
import pytest

from gpu import PLACE
from tilewright.backends.pixels import to_pixels
from tilewright.formats.images import pixels as converted

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("simulated_gpu")


def images():
    """float32 (3, 4, 5, 3); the second is not finite."""
    values = np.random.default_rng(0).uniform(-1, 1, (3, 4, 5, 3)).astype(np.float32)
    values[0, 0, 0] = -1, 0, 1
    values[1, 2, 3, 1] = np.nan
    return values


def test_on_the_cpu():
    values = images()
    pixels, invalid = np.empty(values.shape, np.uint8), np.empty(3, np.uint8)
    to_pixels(values, pixels, invalid)
    assert invalid.tolist() == [0, 1, 0]
    assert np.array_equal(pixels[::2], converted(values[::2]))
    invalid[:] = 7
    to_pixels(values, None, invalid)
    assert invalid.tolist() == [0, 1, 0]


def test_on_a_gpu():
    values = torch.from_numpy(images()).to(PLACE)
    pixels = torch.empty(values.shape, dtype=torch.uint8, device=PLACE)
    invalid = torch.full((3,), 7, dtype=torch.uint8, device=PLACE)
    to_pixels(values, pixels, invalid)
    assert invalid.tolist() == [0, 1, 0]
    assert np.array_equal(pixels[::2].cpu().numpy(), converted(images()[::2]))
    to_pixels(values, None, invalid)
    assert invalid.tolist() == [0, 1, 0]
