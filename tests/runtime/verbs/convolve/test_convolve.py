"""The job end to end: right answers from any format to any, in any tiles; nothing half written, whatever happens."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import psutil
import pytest
import zarr
from scipy import ndimage

from compare import compare
from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.formats import atomic
from tilewright.formats.volume_formats import open_volume
from tilewright.runtime.jobs.pieces import Tree
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.verbs.convolve import ConvolveJob, convolve
from tilewright.runtime.verbs.convolve import memory as memory_module
from volume_files import save

NAMES = ("v.npy", "v.nii", "v.nii.gz", "v.tif", "v.zarr", "v.txt")
SHAPE = (20, 21, 22)
AGAIN = Settings(restart=True)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # nine a job, of milliseconds each


@pytest.fixture
def array(rng):
    return rng.standard_normal(SHAPE).astype(np.float32)


@pytest.fixture
def weights(rng):
    weights = rng.standard_normal((3, 4, 5))
    np.save("k.npy", weights)
    return weights


def load(name, dtype=np.float64):
    with open_volume(name) as found:
        return found.load(np.dtype(dtype))


def check_correlated(found, x, weights, **border):
    """float32 or text: within the bound of ops.conv3d."""
    x = x.astype(np.float64)
    size = ndimage.correlate(np.abs(x), np.abs(weights), **{**border, "cval": abs(border.get("cval", 0))})
    bound = 8 * 2.0**-24 * size + 1e-6
    compare(found.astype(np.float32), ndimage.correlate(x, weights, **border), bound)


def run(input, output, kernel="k.npy", settings=AGAIN, **options):
    return convolve(ConvolveJob(input, kernel, output, settings=settings, **options))


def listed():
    """What is here but for the directories of jobs."""
    return sorted(name for name in os.listdir(".") if not name.endswith(".job"))


def in_tiles(monkeypatch, tile=(8, 8, 22)):
    """The job takes tiles of this shape, multiples of the output's chunks."""
    tilings = memory_module.tilings

    def small(shape, halo, units, box):
        sizes = [min(n, max(1, t // u) * u) for n, t, u in zip(box, tile, units[1], strict=True)]
        return [replace(tilings(shape, halo, units, box)[0], tile=tuple(sizes))]

    monkeypatch.setattr(memory_module, "tilings", small)


@pytest.mark.parametrize("output", NAMES)
@pytest.mark.parametrize("input", NAMES)
def test_any_to_any(array, weights, monkeypatch, input, output):
    in_tiles(monkeypatch)
    save(input, array)
    report = run(input, "out-" + output, mode="mirror")
    check_correlated(load("out-" + output), load(input), weights, mode="mirror")
    assert report.tiles == (9 if output != "v.zarr" else 1)
    assert report.records == array.size and report.exit_code == 0
    assert {"check", "compile", "run", "merge", "total"} <= report.seconds.keys()
    assert listed() == sorted({input, "k.npy", "out-" + output})


@pytest.mark.parametrize("mode", ["reflect", "constant", "nearest", "mirror", "wrap", "grid-wrap", "grid-mirror"])
@pytest.mark.parametrize("kernel", ["gaussian:1.2", "box:3", "laplace", "sobel:0", "sobel:2", "k.npy"])
def test_kernels_and_modes(array, weights, monkeypatch, kernel, mode):
    in_tiles(monkeypatch)
    save("v.npy", array)
    run("v.npy", "out.npy", kernel, mode=mode)
    x = array.astype(np.float64)
    wanted = {
        "gaussian:1.2": lambda: ndimage.gaussian_filter(x, 1.2, mode=mode),
        "box:3": lambda: ndimage.uniform_filter(x, 3, mode=mode),
        "laplace": lambda: ndimage.laplace(x, mode=mode),
        "sobel:0": lambda: ndimage.sobel(x, 0, mode=mode),
        "sobel:2": lambda: ndimage.sobel(x, 2, mode=mode),
        "k.npy": lambda: ndimage.correlate(x, weights, mode=mode),
    }[kernel]()
    assert np.abs(load("out.npy") - wanted).max() < 2e-5


def test_a_constant_around(array, weights, monkeypatch):
    in_tiles(monkeypatch)
    save("v.npy", array)
    run("v.npy", "out.npy", mode="constant", cval=2.5)
    check_correlated(load("out.npy"), array, weights, mode="constant", cval=2.5)


@pytest.mark.parametrize("more", [None, 1 << 30])
def test_bits_depend_neither_on_tiles_nor_on_formats(array, weights, monkeypatch, more):
    memory = None if more is None else psutil.Process().memory_info().rss + more  # all that this process holds counts
    save("v.nii.gz", array)
    save("v.npy", array)
    run("v.nii.gz", "whole.nii.gz", memory=memory)
    in_tiles(monkeypatch, (3, 5, 7))
    run("v.npy", "tiles.npy", memory=memory)
    monkeypatch.setattr("tilewright.formats.nifti.HOLD", 0.0)  # expanded box by box, where memory has a limit
    run("v.nii.gz", "boxes.npy", memory=memory)
    for name in ("tiles.npy", "boxes.npy"):
        assert load("whole.nii.gz", np.float32).tobytes() == load(name, np.float32).tobytes()


@pytest.mark.parametrize(
    ("stored", "asked", "computed"),
    [
        (np.int16, None, np.float32),
        (np.uint8, None, np.float32),
        (np.bool_, None, np.float32),
        (np.float32, None, np.float32),
        (np.float64, None, np.float64),
        (np.float64, "float32", np.float32),
        (np.int64, "float64", np.float64),
    ],
)
@pytest.mark.parametrize("kernel", ["k.npy", "gaussian:1"])
def test_dtypes(rng, weights, monkeypatch, stored, asked, computed, kernel):
    in_tiles(monkeypatch)
    array = (rng.random(SHAPE) * 100).astype(stored)
    np.save("v.npy", array)
    run("v.npy", "out.npy", kernel, settings=Settings(restart=True, dtype=asked))
    found, x = np.load("out.npy"), array.astype(np.float64)
    wanted = ndimage.correlate(x, weights, mode="constant") if kernel == "k.npy" else ndimage.gaussian_filter(x, 1)
    assert found.dtype == computed
    assert np.abs(found - wanted).max() < 1e3 * np.abs(weights).sum() * np.finfo(computed).eps


def test_zarr_is_written_in_whole_chunks(rng, weights, monkeypatch):
    """Every chunk of the output is written once, though tiles and chunks do not divide the volume."""
    array = rng.standard_normal((33, 45, 50)).astype(np.float32)
    made = zarr.create_array("v.zarr", shape=array.shape, chunks=(7, 11, 13), dtype="f4", attributes={"a": 1})
    made[...] = array
    in_tiles(monkeypatch, (15, 23, 27))
    written, put = [], Tree.put

    def counted(self, name, *arguments, **options):
        written.append(name)
        put(self, name, *arguments, **options)

    monkeypatch.setattr(Tree, "put", counted)
    report = run("v.zarr", "out.zarr")
    chunks = [key for key in written if key.startswith("c/")]
    assert report.tiles == 3 * 3 * 2 and len(chunks) == len(set(chunks)) == 5 * 5 * 4
    found = zarr.open_array("out.zarr", mode="r")
    assert found.chunks == (7, 11, 13) and found.attrs["a"] == 1 and found.dtype == np.float32
    check_correlated(found[...], array, weights, mode="constant")


def test_validation(array, weights):
    save("v.npy", array)
    run("v.npy", "ref.npy")
    assert run("v.npy", "out.nii", answers="ref.npy").validation.passed
    wrong = load("ref.npy", np.float32)
    wrong[3, 4, 5] += 1
    save("ref.npy", wrong)
    report = run("v.npy", "out.npy", answers="ref.npy")
    assert report.exit_code == 1 and report.validation.first.startswith("voxel [3, 4, 5] is")
    assert run("v.npy", "out.npy", answers="ref.npy", tolerance=2.0).exit_code == 0


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (UsageError, {"input": "v.dat"}, "name of the input does not say its format"),
        (UsageError, {"output": "out"}, "name of the output does not say its format"),
        (UsageError, {"kernel": "mean:3"}, "is no kernel. Give one of gaussian:SIGMA"),
        (UsageError, {"mode": "periodic"}, "mode is 'periodic'; it must be one of (constant, .*wrap|.*reflect)"),
        (UsageError, {"cval": float("nan")}, "cval is nan"),
        (UsageError, {"output": "v.npy"}, "overwrite the input"),
        (UsageError, {"output": "hard.npy"}, "overwrite the input"),
        (UsageError, {"output": "link.npy"}, "overwrite the input"),
        (UsageError, {"output": "k.npy"}, "overwrite the kernel"),
        (UsageError, {"answers": "out.npy", "output": "out.npy"}, "overwrite the answers"),
        (UsageError, {"input": "g.zarr/a", "output": "g.zarr"}, "overwrite the input"),
        (UsageError, {"input": "g.zarr/a", "output": "g.zarr/a/b.zarr"}, "overwrite the input"),
        (InputError, {"input": "gone.npy"}, "no such input"),
        (InputError, {"kernel": "gone.txt"}, "no such kernel"),
        (InputError, {"answers": "gone.npy"}, "no such answers"),
        (InputError, {"kernel": "box:21"}, r"kernel box:21 is 21 x 21 x 21 and the volume 20 x 21 x 22"),
        (InputError, {"input": "nan.npy"}, r"voxel \[7, 8, 9\]: the value is nan"),
        (
            InputError,
            {"input": "huge.npy", "kernel": "sobel:0"},
            r"voxel \[0, 0, 0\]: the result is too large for float32.*--dtype float64",
        ),
        (InputError, {"input": "four.npy"}, "4 dimensions"),
        (ResourceError, {"memory": 1 << 20}, r"are left beside the program. Give more --memory, about \d+M"),
        (ResourceError, {"output": "gone/out.npy"}, "there is no directory"),
        (ResourceError, {"output": "d.zarr"}, "holds files that no Zarr array has"),
    ],
)
def test_refusals(array, weights, kind, options, message):
    save("v.npy", array)
    os.link("v.npy", "hard.npy")
    os.symlink("v.npy", "link.npy")
    (zarr.create_group("g.zarr")).create_array("a", shape=SHAPE, dtype="f4")
    os.mkdir("d.zarr")
    save("d.zarr/precious.npy", array)
    np.save("four.npy", np.zeros((2, 3, 4, 5)))
    np.save("huge.npy", np.full(SHAPE, 3e38, np.float32))
    array[7, 8, 9] = np.nan
    np.save("nan.npy", array)
    save("out.npy", array[:1])
    before = {name: os.path.getmtime(name) for name in os.listdir(".")}
    job = {"input": "v.npy", "kernel": "box:3,5,5", "output": "out.npy", **options}
    with pytest.raises(kind, match=message):
        convolve(ConvolveJob(**{**job, "kernel": "k.npy" if job["output"] == "k.npy" else job["kernel"]}))
    assert {name: os.path.getmtime(name) for name in os.listdir(".")} == before


def test_a_volume_that_memory_does_not_hold(rng, monkeypatch):
    save("v.txt", rng.standard_normal((64, 64, 64)).astype(np.float32))
    monkeypatch.setattr("tilewright.runtime.verbs.convolve.task._resident", lambda: 0)
    monkeypatch.setattr("tilewright.runtime.verbs.convolve.task.program_bytes", lambda dtype, *paths: 0)
    with pytest.raises(ResourceError, match=r"takes 1,048,576 bytes in memory, and 524,288 are left.*\.zarr"):
        run("v.txt", "out.npy", "box:3", memory=1 << 19)
    with pytest.raises(ResourceError, match=r"takes 2,097,152 bytes in memory, and 262,144 are left") as caught:
        run("v.txt", "out.txt", "box:3", memory=5 << 18)  # a shard is held until all of it is there, and then is text
    assert caught.value.path == "out.txt" and os.listdir(".") == ["v.txt"]


@pytest.mark.parametrize("output", ["out.npy", "out.tif", "out.nii.gz", "out.txt"])
def test_every_write_fails_once(array, weights, monkeypatch, output):
    """ENOSPC at the Nth write, fsync or rename, for every N: exit code 4, the earlier output intact."""
    in_tiles(monkeypatch)
    save("v.npy", array)
    run("v.npy", output)  # kernels and modules are compiled, and written to caches, before writes fail
    save(output, -array)
    with open(output, "rb") as file:
        earlier = file.read()
    made = [0, 0]

    def failing(call):
        def counted(*arguments, **options):
            made[0] += 1
            if made[0] == made[1]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*arguments, **options)

        return counted

    for name in ("write", "pwrite", "fsync", "replace"):
        monkeypatch.setattr(atomic.os, name, failing(getattr(os, name)))
    two = Settings(restart=True, shard_size=11)
    run("v.npy", output, settings=two)
    total, failed = made[0], 0
    with open(output, "rb") as file:
        right = file.read()
    for nth in range(1, total + 1, 1 if output == "out.npy" else 4):
        with open(output, "wb") as file:
            file.write(earlier)
        made[:] = [0, nth]
        try:
            run("v.npy", output, settings=two)
        except ResourceError as error:
            failed += 1
            assert "o space left on device" in str(error) and error.exit_code == 4
            with open(output, "rb") as file:
                assert file.read() in (earlier, right)
            made[1] = 0
            run("v.npy", output, settings=Settings(shard_size=11))
        assert not [name for name in os.listdir(".") if name.endswith(".tmp")]
        with open(output, "rb") as file:
            assert file.read() == right
    assert failed > (total // 2 if output == "out.npy" else 2)  # of the lease, at the end, it does not matter


SLOW = """
import sys, time
from tilewright.cli import main
from tilewright.runtime.verbs.convolve import tiles
real = tiles.Blocks.read
def slow(self, tile):
    if any(tile.start):
        print("working", flush=True)
        time.sleep(0.2)
    return real(self, tile)
tiles.Blocks.read = slow
from tilewright.runtime.verbs.convolve import memory
tilings = memory.tilings
def small(shape, halo, units, box):
    tile = (units[1][0] if units[1][0] > 1 else 4, *shape[1:])
    return [type(one)(shape, tile, *halo, units[0][0]) for one in tilings(shape, halo, units, box)[:1]]
memory.tilings = small
main(sys.argv[1:])
"""


@pytest.fixture
def start(rng):
    array = rng.standard_normal((300, 20, 20)).astype(np.float32)  # several shards: in the last a signal ends nothing
    save("v.npy", array)
    for name in ("out.npy", "out.zarr"):
        save(name, array[:3, :3, :3])

    def call(output):
        arguments = ["convolve", "-i", "v.npy", "--kernel", "box:3", "-o", output, "--shard-size", "20", "--force"]
        process = subprocess.Popen(
            [sys.executable, "-c", SLOW, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for line in process.stdout:
            if line == "working\n":
                return process
        pytest.fail(process.communicate()[1])

    return call


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("output", ["out.npy", "out.zarr"])
def test_signals(start, output, number):
    earlier = load(output)
    process = start(output)
    process.send_signal(number)
    errors = process.communicate()[1]
    assert process.returncode == 75 and f"stopped by {number.name}" in errors and "Traceback" not in errors
    assert np.array_equal(load(output), earlier) and listed() == ["out.npy", "out.zarr", "v.npy"]
    report = run("v.npy", output, "box:3", settings=Settings())
    assert report.computed < report.records == 120_000 and load(output).shape == (300, 20, 20)


def big_zarr(n, chunk):
    """Zeros but for one chunk in eight, so that the disk has little to do."""
    shutil.rmtree("v.zarr", ignore_errors=True)
    made = zarr.create_array("v.zarr", shape=(n, n, n), chunks=(chunk,) * 3, dtype="f4")
    block = np.arange(chunk**3, dtype=np.float32).reshape((chunk,) * 3) % 97
    for place in np.ndindex(*(n // chunk // 2,) * 3):
        made[tuple(slice(2 * chunk * i, 2 * chunk * i + chunk) for i in place)] = block


def peak_of(memory):
    command = [sys.executable, "-m", "tilewright", "convolve", "-i", "v.zarr", "--kernel", "box:3", "-o", "out.zarr"]
    done = subprocess.run([*command, "--restart", "--memory", memory], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("Peak memory:"))
    return float(line.split()[2].replace(",", ""))


def check_box(n, chunk):
    """Against SciPy, at places where chunks and tiles meet."""
    found, source = (zarr.open_array(name, mode="r") for name in ("out.zarr", "v.zarr"))
    for at in (0, chunk - 8, 2 * chunk - 8, n - 16):
        near = slice(max(0, at - 1), min(n, at + 17))
        wanted = ndimage.uniform_filter(source[near, near, near].astype(np.float64), 3)
        inside = slice(at - near.start, at - near.start + 16)
        assert np.abs(found[at : at + 16, at : at + 16, at : at + 16] - wanted[inside, inside, inside]).max() < 1e-3


def test_memory_does_not_grow_with_the_volume():
    big_zarr(64, 32)
    peak_of("600M")  # the first run may compile, which takes memory of its own
    peaks = []
    for n in (128, 384):
        big_zarr(n, 32)
        peaks.append(peak_of("450M"))
        check_box(n, 32)
    assert peaks[1] < 450


@pytest.mark.long
def test_4_gib_in_less_than_1_gib():
    big_zarr(1024, 64)
    peak = peak_of("1000M")
    assert peak < 1024
    check_box(1024, 64)
