"""What is timed beside ours computes the same: OpenVINO's images, and a convolution of sentences as one product."""

import numpy as np
import pytest

from tilewright.bench.workloads import dcgan, dcgan_peers, sentiment
from tilewright.models.dcgan import DCGANConfig
from tilewright.models.noise import noise

torch = pytest.importorskip("torch")


@pytest.mark.long
def test_openvino_draws_pytorchs_images():
    pytest.importorskip("openvino")
    config = DCGANConfig()
    weights, z = dcgan.random_weights(config, 1), noise(1, 0, 3, config.z_size)
    theirs = dcgan_peers.torch_generator(config, weights, "float32", "cpu")(torch.from_numpy(z)).numpy()
    assert dcgan_peers.openvino_generator(config, weights, "float32")(z) == pytest.approx(theirs, abs=1e-4)


def test_windows_are_a_convolution(rng):
    shapes = (3, 16, 8), (5, 8, 3), 5
    x, filters, bias = (torch.from_numpy(rng.standard_normal(shape, np.float32)) for shape in shapes)
    with torch.inference_mode():
        found = sentiment.torch_windows(torch, filters, bias)(x)
    wanted = torch.nn.functional.conv1d(x.transpose(1, 2), filters, bias)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
