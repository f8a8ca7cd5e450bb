"""`plan convolve` against the run: tiles, slabs, and what the formats take."""

import gzip

import numpy as np
import pytest

from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.formats.gzip_files import STATE_BYTES
from tilewright.runtime.plan import PROGRAM
from tilewright.runtime.verbs.convolve import ConvolveJob, convolve
from tilewright.runtime.verbs.convolve.plan import plan
from volume_files import save


def parts_of(found):
    return {part.name: part.bytes for part in found.parts}


@pytest.fixture
def volume(tmp_path, rng):
    np.save(tmp_path / "in.npy", rng.random((40, 30, 20), np.float32))
    return tmp_path / "in.npy"


@pytest.mark.parametrize("name", ["out.npy", "out.txt", "out.nii", "out.nii.gz", "out.zarr", "out.tif"])
def test_tiles_and_bytes_are_those_of_the_run(volume, tmp_path, name):
    job = ConvolveJob(str(volume), "gaussian:1", str(tmp_path / name), memory=8 << 30)
    found, real = plan(job), convolve(job)
    assert (found.figures["tiles"], found.figures["tile"]) == (real.tiles, list(real.tile))
    assert found.records == real.records
    if found.outputs.exact:
        assert found.outputs.bytes == real.job["bytes"]
    else:
        assert real.job["bytes"] <= 1.1 * found.outputs.bytes + 4096
    kept = sum(one.stat().st_size for one in (tmp_path / f"{name}.job" / "shards").iterdir())
    assert kept == pytest.approx(found.outputs.shards, rel=0.1, abs=1000)


def test_less_memory_means_smaller_tiles_within_it(tmp_path):
    header = np.lib.format.header_data_from_array_1_0(np.broadcast_to(np.float32(0), (1360, 1360, 1360)))
    with open(tmp_path / "large.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, header | {"fortran_order": False})
        file.truncate(file.tell() + 4 * 1360**3)  # a hole of 10 GB: it takes no space
    tiles = []
    for memory in (1 << 30, 230 << 20):
        job = ConvolveJob(str(tmp_path / "large.npy"), "box:9", str(tmp_path / "out.npy"), memory=memory)
        found = plan(job)
        assert found.peak_memory <= memory
        tiles.append(found.figures["tiles"])
    assert tiles[0] < tiles[1]
    job.memory = PROGRAM
    with pytest.raises(ResourceError, match="smallest tiles"):
        plan(job)


@pytest.mark.parametrize("name", ["in.txt", "in.nii.gz", "in.tif"])
def test_values_that_are_held_are_not_read(tmp_path, rng, name, bytes_read, monkeypatch):
    """Of a compressed volume nothing is expanded behind its header."""
    path = str(tmp_path / name)
    if name == "in.tif":
        import tifffile

        tifffile.imwrite(path, rng.random((600, 64, 64), np.float32), compression="zlib")
    else:
        save(path, rng.random((600, 64, 64), np.float32))
    found = plan(ConvolveJob(path, "box:3", str(tmp_path / "out.npy")))
    assert parts_of(found)["the whole volume"] == 4 * 600 * 64 * 64
    assert found.figures["shape"] == [600, 64, 64]
    assert bytes_read(path) < 6 << 20  # its samples, and a block for the header
    small = ConvolveJob(path, "box:3", str(tmp_path / "out.npy"), memory=PROGRAM + (1 << 20))
    if name == "in.nii.gz":  # an index is held in place of the values
        small.memory = PROGRAM + 4 * 600 * 64 * 64 + (60 << 20)
        monkeypatch.setattr("tilewright.formats.nifti.HOLD", 0.01)
        assert parts_of(plan(small))["the whole volume"] == 2 * STATE_BYTES and bytes_read(path) < 6 << 20
        return
    with pytest.raises(ResourceError, match="bytes in memory"):
        plan(small)


def test_what_the_run_would_refuse(volume, tmp_path):
    job = ConvolveJob(str(volume), "box:41", str(tmp_path / "out.npy"))
    with pytest.raises(InputError, match="larger than the volume"):
        plan(job)
    with pytest.raises(UsageError, match="no kernel"):
        plan(ConvolveJob(str(volume), "nonsense", str(tmp_path / "out.npy")))
    with pytest.raises(UsageError, match="overwrite the input"):
        plan(ConvolveJob(str(volume), "box:3", str(volume)))
    (tmp_path / "cut.nii.gz").write_bytes(gzip.compress(b"nonsense"))
    with pytest.raises(InputError):
        plan(ConvolveJob(str(tmp_path / "cut.nii.gz"), "box:3", str(tmp_path / "out.npy")))
