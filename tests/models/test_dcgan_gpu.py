"""A generator on a GPU against the CPU's images; elsewhere the same code on tiny layers, their kernels simulated."""

import numpy as np
import pytest

from dcgan_models import SMALL, random_noise, random_weights
from gpu import ON_GPU, PLACE, widen_bfloat16
from tilewright.errors import ResourceError, UsageError
from tilewright.formats.images import pixels
from tilewright.hardware import unavailable
from tilewright.models.dcgan import BATCH, DCGAN, DCGANConfig, DCGANLayer, doubling
from tilewright.runtime.jobs.settings import Settings

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("simulated_gpu")

from tilewright.backends import cuda  # noqa: E402
from tilewright.backends.cuda import Cuda  # noqa: E402
from tilewright.ops.core.ladder import using  # noqa: E402

LAYERS = (DCGANLayer(channels=4, kernel=3, padding=(0, 1)), DCGANLayer(channels=3, kernel=2, padding=(0, 0)))
TINY = DCGANConfig(z_size=3, size=1, channels=5, layers=LAYERS)
LIMITS = {"float32": 2e-4, "tf32": 2e-2, "float16": 5e-2, "bfloat16": 0.2}
CONFIG = DCGANConfig() if ON_GPU else TINY
WEIGHTS = random_weights(CONFIG)
SLOW = {
    "matmul": "simt.register",
    "conv_transpose2d": "simt.gather",
}  # quickly simulated


@pytest.fixture(scope="module", name="course")
def _course():
    """(noise, the CPU's images)."""
    z = random_noise(CONFIG, 5)
    return z, DCGAN(CONFIG, WEIGHTS).generate(z)


def placed(dtype, batch):
    """On the GPU; without one its kernels are simulated."""
    if why := unavailable("simt" if dtype == "float32" else "tile"):
        pytest.skip(why)
    return DCGAN(CONFIG, WEIGHTS, dtype=dtype, device=Cuda(dtype, PLACE), batch=batch)


def simulated(dtype):
    """The rungs to use where there is no GPU."""
    return using(**SLOW) if dtype == "float32" and not ON_GPU else using()


@pytest.mark.parametrize("dtype", list(LIMITS) if ON_GPU else ["float32", "float16"])
def test_images_are_those_of_the_cpu(dtype, course):
    z, wanted = course
    with simulated(dtype):
        model = placed(dtype, 3)
        images = np.full_like(wanted, np.nan)
        model.generate(z, out=images)
        assert np.abs(images - wanted).max() < LIMITS[dtype]
        again = model.generate(z[::-1].copy())
    assert again[::-1].tobytes() == images.tobytes(), "an image's bits depend on its position"


def test_pixels_are_the_hosts_and_a_spoiled_image_is_marked(course, monkeypatch):
    z, _ = course
    with simulated("float32"):
        model = placed("float32", 3)
        images = model.generate(z)
        monkeypatch.setattr(model, "checked", lambda z: z)
        bad = z.copy()
        bad[1] = np.nan
        for wanted in (False, True):
            found = [tuple(map(np.copy, part)) for part in model.stream([bad[:3], z[3:]], pixels=wanted)]
            assert [invalid.tolist() for _, invalid in found] == [[0, 1, 0], [0, 0]]
            values = np.concatenate([part for part, _ in found])
            for i in (0, 2, 3, 4):
                assert np.array_equal(values[i], pixels(images[i]) if wanted else images[i])


DEEP = DCGANConfig(z_size=3, size=1, channels=32, layers=doubling((32, 64, 3), 5))  # enough products for limbs


def test_limbs_between_layers_change_no_bits(monkeypatch):
    if why := unavailable("tile"):
        pytest.skip(why)
    widen_bfloat16(monkeypatch)
    config = DCGANConfig() if ON_GPU else DEEP
    weights, z = random_weights(config), random_noise(config, 3)
    counts, found = [], []
    for forced in ({}, {"conv_transpose2d@2": "simt.gather"}):
        with using(**{} if ON_GPU else {"matmul": "simt.register"}, **forced):
            for limbs in (True, False):
                with monkeypatch.context() as patch:
                    if not limbs:
                        patch.setattr(DCGAN, "in_limbs", lambda self, i: False)
                    model = DCGAN(config, weights, device=Cuda("float32", PLACE), batch=2)
                    counts.append(sum(map(model.in_limbs, range(len(model.layers)))))
                    found.append(model.generate(z))
    assert counts[0] > counts[2] and counts[1] == counts[3] == 0  # the second layer neither takes limbs nor writes them
    assert found[0].tobytes() == found[1].tobytes() and found[2].tobytes() == found[3].tobytes()
    assert np.abs(found[0] - found[2]).max() < LIMITS["float32"]


def test_batches_follow_the_largest_layer():
    assert DCGANConfig().batch_on("cuda") == BATCH["cuda"].images
    large = DCGANConfig(size=64, channels=8, layers=(DCGANLayer(channels=3, kernel=16, stride=16, padding=(0, 0)),))
    assert large.batch_on("cuda") == BATCH["cuda"].floats // (1024 * 1024 * 3)


def test_what_a_gpu_cannot_do_is_said():
    weights = random_weights(SMALL)
    with pytest.raises(UsageError, match="device is 'tpu'"):
        DCGAN(SMALL, weights, device="tpu")
    with pytest.raises(UsageError, match=r"dtype is 'int8'; on a GPU it must be one of float32, bfloat16"):
        DCGAN(SMALL, weights, dtype="int8", device="cuda")


@pytest.mark.skipif(ON_GPU, reason="there is a GPU")
def test_a_job_without_a_gpu_is_refused(tmp_path):
    from tilewright.runtime.verbs.draw import DrawJob, draw

    with pytest.raises(ResourceError, match="GPU"):
        draw(
            DrawJob(
                model="nowhere", input=None, output=str(tmp_path / "x.npy"), count=1, settings=Settings(device="cuda")
            )
        )


def test_a_job_writes_the_same_pictures(tmp_path, monkeypatch):
    """`draw` on a GPU, or on a generator whose kernels are simulated: batches of 4, as floats and as 8-bit pixels."""
    from tilewright.runtime.convert.models import init_dcgan
    from tilewright.runtime.verbs.draw import DrawJob, draw

    init_dcgan(str(tmp_path / "model"), 3, z_size=3, size=1, channels=(4, 3), kernel=4)
    if not ON_GPU:
        monkeypatch.setattr("tilewright.runtime.devices._check_gpu", lambda: None)
        monkeypatch.setattr(cuda, "Cuda", lambda dtype, without: Cuda(dtype, PLACE, without))
    options = {"model": str(tmp_path / "model"), "input": None, "count": 7, "seed": 3}
    for name, device in (("cpu", "cpu"), ("gpu", "cuda")):
        with simulated("float32") if device == "cuda" else using():
            for output in ("npy", "png"):
                settings = Settings(device=device, batch_size=4)
                draw(DrawJob(**options, output=str(tmp_path / f"{name}.{output}"), settings=settings))
    own, wanted = (np.load(tmp_path / f"{name}.npy") for name in ("gpu", "cpu"))
    assert np.abs(own - wanted).max() < 1e-4
    from PIL import Image

    pictures = [np.asarray(Image.open(tmp_path / f"{name}.png")).astype(int) for name in ("gpu", "cpu")]
    assert np.abs(pictures[0] - pictures[1]).max() <= 1


@pytest.mark.parametrize("crops", [(1, 2), (1, 1), (2, 1)])
def test_the_benchs_peer_draws_the_same_images(crops):
    from tilewright.bench.workloads.dcgan import random_weights as weights_of
    from tilewright.bench.workloads.dcgan_peers import torch_generator
    from tilewright.bench.workloads.dcgan_reference import reference_images

    layers = tuple(DCGANLayer(channels=count, kernel=5, padding=crops) for count in (6, 3))
    config = DCGANConfig(z_size=7, size=2, channels=8, layers=layers)
    weights, z = weights_of(config, 1), random_noise(config, 4)
    images = torch_generator(config, weights, "float32", PLACE)(torch.from_numpy(z).to(PLACE))
    assert np.abs(images.cpu().numpy() - reference_images(config, weights, z)).max() < 1e-4
