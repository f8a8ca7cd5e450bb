"""The job of volumes on a GPU: through slabs, its answers are the CPU's within the bound, and bits do not depend on how
it is cut. Without a GPU (TILEWRIGHT_GPU=1 says there is one) its kernels run in numba-cuda's simulator."""

import os
from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from compare import compare
from gpu import ON_GPU
from tilewright.errors import ResourceError, UsageError
from tilewright.ops.core.ladder import using
from tilewright.runtime import fingerprint, start
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.verbs.convolve import ConvolveJob, convolve, memory, slabs, task
from tilewright.runtime.verbs.convolve.kernels import kernel_of

torch = pytest.importorskip("torch")
cuda = pytest.importorskip("tilewright.backends.cuda")
Cuda = cuda.Cuda
pytestmark = pytest.mark.usefixtures("simulated_gpu")

SHAPE = (70, 81, 93) if ON_GPU else (5, 4, 6)
KERNELS = ("k.npy", "box:3,5,7", "gaussian:1.5") if ON_GPU else ("k.npy",)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, rng):
    """A folder with a volume and a kernel; a simulated GPU where there is none."""
    monkeypatch.chdir(tmp_path)
    np.save("v.npy", rng.standard_normal(SHAPE, dtype=np.float32))
    np.save("k.npy", rng.standard_normal((3, 2, 3)))
    if not ON_GPU:
        for place in (fingerprint, start):
            monkeypatch.setattr(place, "place_for", lambda device, dtype="": "cpu" if device == "cpu" else "cuda")
        monkeypatch.setattr(cuda, "Cuda", lambda dtype, without: Cuda(dtype, "cpu", without))


def run(output, kernel="k.npy", **options):
    given = {name: options.pop(name) for name in Settings.__dataclass_fields__ if name in options}
    settings = Settings(**{"device": "cuda", "restart": True, **given})
    simulated = not ON_GPU and settings.device == "cuda"
    with using(conv3d="simt.naive") if simulated else using():
        return convolve(ConvolveJob("v.npy", kernel, output, settings=settings, **options))


@pytest.mark.parametrize("mode", ["reflect", "constant", "nearest", "mirror", "wrap"] if ON_GPU else ["mirror"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_answers_are_the_cpus(kernel, mode):
    cval = 1.5 if mode == "constant" else 0.0
    run("out.npy", kernel, mode=mode, cval=cval)
    x, found = np.load("v.npy").astype(np.float64), kernel_of(kernel)
    weights = found.weights if found.lines is None else np.einsum("a,b,t->abt", *found.lines)
    expected = ndimage.correlate(x, weights, mode=mode, cval=cval)
    size = ndimage.correlate(np.abs(x), np.abs(weights), mode=mode, cval=cval)
    compare(np.load("out.npy"), expected, 4 * 2.0**-23 * np.sqrt(weights.size) * size + 1e-6)


def test_bits_depend_neither_on_tiles_nor_on_slabs(monkeypatch):
    run("whole.npy")
    monkeypatch.setattr(slabs, "SLAB", 1)

    def small(candidates, *rest):
        return replace(candidates[0], tile=(4, SHAPE[1], SHAPE[2] // 2), layer=1)

    monkeypatch.setattr(memory, "cheapest", small)
    report = run("tiles.npy")
    assert report.tiles == (54 if ON_GPU else 4)
    assert np.load("whole.npy").tobytes() == np.load("tiles.npy").tobytes()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_little_work_is_told_to_be_faster_on_the_cpu(device):
    work = f"This job has {int(np.prod(SHAPE)) * 18:,} multiplications, and a GPU takes about 2 s to start"
    assert (f"{work}: --device cpu is faster" in told(device)) == (device == "cuda")


def test_much_work_is_not(monkeypatch):
    monkeypatch.setattr(task, "LITTLE", int(np.prod(SHAPE)) * 18)
    assert not any("--device cpu" in line for line in told("cuda"))


def told(device):
    """The lines of a job's checks."""
    lines = []
    job = ConvolveJob("v.npy", "k.npy", "out.npy", settings=Settings(device=device))
    task.task_of(job, lines.append).close()
    return lines


def test_a_gpu_computes_in_float32():
    np.save("v.npy", np.load("v.npy").astype(np.float64))
    with pytest.raises(UsageError, match=r"computed in float64, and a GPU computes in float32.*--dtype float32"):
        run("out.npy")
    assert not os.path.exists("out.npy")
    run("out.npy", device="auto")
    assert np.load("out.npy").dtype == np.float64


def test_too_little_memory_halves_slabs_and_then_ends_the_job(monkeypatch):
    tried, computed = [], slabs.conv3d

    def scarce(slab, *rest, **options):
        tried.append(len(slab) - 2)
        if tried[-1] > limit:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate much")
        return computed(slab, *rest, **options)

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    run("whole.npy")
    monkeypatch.setattr(slabs, "conv3d", scarce)
    limit = 1
    run("out.npy")
    assert tried[:4] == [1, *([70, 35, 17] if ON_GPU else [5, 2, 1])]  # the first compiles
    assert np.load("out.npy").tobytes() == np.load("whole.npy").tobytes()
    limit = 0
    with pytest.raises(ResourceError, match="too little memory, even for a batch of 1"):
        run("out.npy")
    assert np.load("out.npy").tobytes() == np.load("whole.npy").tobytes()


def test_without_a_gpu(monkeypatch):
    def none(device, dtype=""):
        raise ResourceError("there is no GPU to run on: no driver")

    for place in (fingerprint, start):
        monkeypatch.setattr(place, "place_for", none)
    with pytest.raises(ResourceError, match="there is no GPU"):
        run("out.npy")
    assert sorted(os.listdir(".")) == ["k.npy", "v.npy"]
