"""DCGAN against float64 and PyTorch, and the bits of an image in every company."""

import itertools
import threading

import ml_dtypes
import msgspec
import numpy as np
import pytest

from compare import compare
from dcgan_models import SMALL, random_noise, random_weights, torch_images
from tilewright.bench.workloads.dcgan_reference import reference_images as reference
from tilewright.errors import InputError, UsageError
from tilewright.formats.images import pixels
from tilewright.models.dcgan import BATCH, DCGAN, Batch, DCGANConfig, DCGANLayer, doubling
from tilewright.ops.core.launch import threads

COURSE = DCGANConfig()
WEIGHTS, Z = random_weights(SMALL), random_noise(SMALL, 70)
LAYER = DCGANLayer(channels=3)


@pytest.fixture(scope="module", name="course")
def _course():
    """(weights, noise (5, 100), float32 images) of the course's generator."""
    weights, z = random_weights(COURSE), random_noise(COURSE, 5)
    return weights, z, DCGAN(COURSE, weights).generate(z)


def test_the_courses_sizes():
    assert sum(4 * int(np.prod(shape)) for shape in COURSE.tensor_shapes().values()) == 20_549_132
    assert COURSE.image_shape == (64, 64, 3)
    names = list(COURSE.tensor_shapes())
    assert names[:6] == ["proj.weight", "proj.bias", *(f"norms.0.{x}" for x in ("bias", "weight")),
                         "norms.0.running_mean", "norms.0.running_var"]  # fmt: skip
    assert COURSE.flops == 2 * 25 * (16 * 512 * 256 + 64 * 256 * 128 + 256 * 128 * 64 + 1024 * 64 * 3) + 2 * 100 * 8192


def test_course_images_against_float64(course):
    weights, z, images = course
    compare(images, reference(COURSE, weights, z), 1e-5)
    assert images.min() < -0.9 and images.max() > 0.9, "this test wants images that are not gray"


def test_course_images_against_pytorch(course):
    weights, z, images = course
    compare(images, torch_images(COURSE, weights, z), 1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_any_sizes_against_float64(bias):
    config = msgspec.structs.replace(SMALL, bias=bias, batch_norm_eps=1e-2)
    weights = random_weights(config, 3)
    assert ("proj.bias" in weights) == bias
    compare(DCGAN(config, weights).generate(Z), reference(config, weights, Z), 1e-5)


def test_one_layer():
    config = DCGANConfig(z_size=6, size=3, channels=4, layers=(DCGANLayer(channels=2, kernel=1, stride=2,
                                                                          padding=(0, 0)),))  # fmt: skip
    weights = random_weights(config)
    assert config.image_shape == (5, 5, 2)
    compare(DCGAN(config, weights).generate(Z), reference(config, weights, Z), 1e-5)


def test_bfloat16_is_near_and_takes_another_path(course):
    weights, z, images = course
    rounded = DCGAN(COURSE, weights, dtype="bfloat16").generate(z)
    assert 0 < np.abs(rounded - images).max() < 0.2 and np.abs(rounded - images).mean() < 0.01


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", [SMALL, COURSE], ids=["small", "course"])
def test_an_image_has_the_same_bits_in_every_company(dtype, config, rng):
    """Alone, in batches of 7 and 64, at any position, on 1 and 2 threads."""
    weights, z = random_weights(config), random_noise(config, 64)
    with threads(1):
        model = DCGAN(config, weights, dtype=dtype)
        whole = model.generate(z)
        assert model.generate(z[5:6]).tobytes() == whole[5:6].tobytes()
    for count in (1, 2):
        with threads(count):
            model = DCGAN(config, weights, dtype=dtype)
            for size in (1, 7, 64):
                chosen = rng.permutation(64)[:size]
                assert model.generate(z[chosen]).tobytes() == whole[chosen].tobytes(), f"{size} on {count} threads"


def test_batches_change_no_bits(monkeypatch):
    expected = DCGAN(SMALL, WEIGHTS).generate(Z)
    monkeypatch.setitem(BATCH, "cpu", Batch(3, BATCH["cpu"].floats))
    assert SMALL.batch_on("cpu") == 3
    assert DCGAN(SMALL, WEIGHTS).generate(Z).tobytes() == expected.tobytes()
    monkeypatch.setitem(BATCH, "cpu", Batch(3, 1))
    assert SMALL.batch_on("cpu") == 1


@pytest.mark.parametrize("batch", [0, -1, 1.5, True])
def test_a_batch_without_an_image_is_refused(batch):
    """A batch of -1 once left the loop over batches empty, so `generate` returned memory that nothing had written."""
    with pytest.raises(UsageError, match=f"batch is {batch}; "):
        DCGAN(SMALL, WEIGHTS, batch=batch)
    one = DCGAN(SMALL, WEIGHTS, batch=np.int64(1)).generate(Z[:2])
    assert one.tobytes() == DCGAN(SMALL, WEIGHTS).generate(Z[:2]).tobytes()


def test_out_is_written_and_memory_is_used_again():
    model, out = DCGAN(SMALL, WEIGHTS), np.full((70, *SMALL.image_shape), np.nan, np.float32)
    assert model.generate(Z, out=out) is out
    assert out.tobytes() == model.generate(Z).tobytes()
    buffers = [buffer.ctypes.data for buffer in model.work.buffers.values()]
    model.generate(Z[:3])
    assert [buffer.ctypes.data for buffer in model.work.buffers.values()] == buffers
    assert sum(buffer.nbytes for buffer in model.work.buffers.values()) == SMALL.work_bytes
    with pytest.raises(UsageError, match="out is float32"):
        model.generate(Z[:3], out=out)


@pytest.mark.parametrize("kind", ["images", "pixels"])
def test_a_stream_gives_each_batch_its_images(kind):
    """As pixels they are those of the images; an image that is not finite is marked."""
    model, bad = DCGAN(SMALL, WEIGHTS), Z.copy()
    bad[11] = 3e38  # sums of it are beyond float32
    sizes = (8, 1, 20, 8)
    cuts = np.cumsum([0, *sizes])
    batches, count = [bad[a:b] for a, b in itertools.pairwise(cuts)], 0
    for z, (found, invalid) in zip(batches, model.stream(iter(batches), pixels=kind == "pixels"), strict=True):
        images = model.generate(z)
        finite = np.isfinite(images).all(axis=(1, 2, 3))
        assert np.array_equal(invalid == 0, finite)
        wanted = pixels(images[finite]) if kind == "pixels" else images[finite]
        assert found[finite].tobytes() == wanted.tobytes() and found.dtype == wanted.dtype
        count += len(z) - int(finite.sum())
    assert count == 1


def test_batches_without_their_model_are_refused():
    batches = DCGAN(SMALL, WEIGHTS).batches_of("images")
    with pytest.raises(UsageError, match="the model of these batches was freed"):
        batches.run([Z], [np.zeros((len(Z), *SMALL.image_shape), np.float32)])


def test_a_stream_keeps_its_model():
    streams = [DCGAN(SMALL, WEIGHTS).stream([Z[:8], Z[8:16]]), DCGAN(SMALL, WEIGHTS).stream([Z[:8], Z[8:16]])]
    found = [[images.copy() for images, _ in stream] for stream in streams]
    assert np.array_equal(np.concatenate(found[0]), DCGAN(SMALL, WEIGHTS).generate(Z[:16]))
    assert np.array_equal(found[0], found[1])


def test_a_model_serves_several_threads():
    model, found = DCGAN(SMALL, WEIGHTS), {}
    expected = model.generate(Z)

    def draw(i):
        found[i] = [model.generate(Z[i : i + 20]) for _ in range(10)]

    workers = [threading.Thread(target=draw, args=(i,)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(image.tobytes() == expected[i : i + 20].tobytes() for i in range(3) for image in found[i])


def test_noise_of_any_real_type():
    model = DCGAN(SMALL, WEIGHTS)
    whole = np.round(Z * 4)
    expected = model.generate(whole)
    for kind in (np.float64, np.float16, np.int8, ml_dtypes.bfloat16):
        assert model.generate(whole.astype(kind)).tobytes() == expected.tobytes()
    assert model.generate(whole[:, ::-1][:, ::-1].tolist()).tobytes() == expected.tobytes()
    assert model.generate(np.empty((0, 6))).shape == (0, *SMALL.image_shape)


@pytest.mark.parametrize(
    ("z", "message"),
    [
        (np.zeros(6), r"z is float64 \(6,\); real numbers \(n, 6\) are wanted"),
        (np.zeros((2, 7)), r"\(2, 7\); real numbers \(n, 6\)"),
        (np.zeros((2, 6), complex), "complex128"),
        (np.zeros((2, 6), object), "object"),
        ([[0, 1, 2, 3, 4, 5], [0, 0, np.nan, 0, 0, 0]], r"z\[1, 2\] is nan; finite numbers"),
        (np.full((1, 6), 1e300), r"z\[0, 0\] is inf"),
    ],
)
def test_noise_is_checked(z, message):
    with pytest.raises(UsageError, match=message):
        DCGAN(SMALL, WEIGHTS).generate(z)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("norms.1.bias"), r"tensor norms\.1\.bias is missing; the configuration requires \(5,\)"),
        (lambda w: w.update(extra=np.zeros(1)), "tensor extra is .*no such tensor"),
        (lambda w: w.update({"convs.0.weight": np.zeros((5, 5, 8, 5))}), r"convs\.0\.weight is .*\(5, 5, 5, 8\)"),
        (lambda w: w.update({"norms.2.running_var": np.array([1, 1, -0.5, 1, 1, 1, 1])}),
         r"norms\.2\.running_var holds -0\.5 at \[2\]; a variance is not negative"),
        (lambda w: w.update({"norms.1.weight": np.full(5, 3e38), "norms.1.running_var": np.zeros(5)}),
         r"norms\.1 folded into it is beyond"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused(change, message):
    weights = dict(WEIGHTS)
    change(weights)
    with pytest.raises(InputError, match=message):
        DCGAN(SMALL, weights)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"z_size": 0}, "z_size is 0"),
        ({"channels": 10**10}, "channels is 10000000000"),
        ({"channels": 10**9}, r"the projection makes 4 x 4 pixels of 1000000000 channels; at most 268,435,456"),
        ({"layers": ()}, "layers are 0"),
        ({"layers": (LAYER,) * 65}, "layers are 65"),
        ({"layers": (LAYER,) * 12}, r"layers\[\d+\] makes \d+ x \d+ pixels"),
        ({"layers": (DCGANLayer(channels=3, stride=10**9),)}, r"layers\[0\] makes 3000000002 x"),
        ({"layers": (DCGANLayer(channels=3, padding=(5, 6)),)}, r"layers\[0\] crops everything: it leaves 0 pixels"),
        ({"batch_norm_eps": 0.0}, "batch_norm_eps is 0"),
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
    ],
)
def test_sizes_that_make_no_network_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        DCGANConfig(**sizes)


@pytest.mark.parametrize(("field", "value"), [("channels", 0), ("kernel", 0), ("stride", -1), ("padding", (-1, 0))])
def test_layers_that_are_none_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        DCGANLayer(**{"channels": 3, field: value})


@pytest.mark.parametrize("kernel", range(2, 8))
def test_doubling_layers_double(kernel):
    (layer,) = doubling((3,), kernel)
    assert [layer.size(size) for size in (1, 2, 5)] == [2, 4, 10]
