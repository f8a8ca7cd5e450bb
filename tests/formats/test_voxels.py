"""The size of voxels is carried between TIFF and NIfTI, whose files have a field for it."""

import nibabel
import numpy as np
import pytest
import tifffile

from tilewright.formats.kept import lost
from tilewright.formats.volume_formats import open_volume
from tilewright.formats.voxels import VoxelSize, voxel_size
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.verbs.convolve import ConvolveJob, convolve

SHAPE = (3, 4, 5)
SIZES = (2.5, 0.5, 0.25)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def imagej(unit):
    tifffile.imwrite("v.tif", np.ones(SHAPE, np.float32), imagej=True, resolution=(4, 2), resolutionunit=1,
                     metadata={"axes": "ZYX", "spacing": 2.5, "unit": unit})  # fmt: skip


def ome(unit):
    sizes = {f"PhysicalSize{axis}": size for axis, size in zip("ZYX", SIZES, strict=True)}
    units = {f"PhysicalSize{axis}Unit": unit for axis in "ZYX"}
    tifffile.imwrite("v.tif", np.ones(SHAPE, np.float32), ome=True, metadata={"axes": "ZYX", **sizes, **units})


@pytest.mark.parametrize(
    ("write", "unit", "factor", "name"),
    [
        (imagej, "mm", 1, "mm"),
        (imagej, "um", 1, "micron"),
        (imagej, "cm", 10, "mm"),
        (ome, "\u00b5m", 1, "micron"),
        (ome, "mm", 1, "mm"),
        (ome, "nm", 1e-3, "micron"),
    ],
)
def test_tiff_to_nifti_and_back(write, unit, factor, name):
    write(unit)
    wanted = VoxelSize(tuple(factor * size for size in SIZES), name)
    with open_volume("v.tif") as found:
        told = "Not kept in w.nii: the input's metadata, but for the voxel size"
        assert lost("w.nii", found, np.dtype(np.float32)) == told
    convolve(ConvolveJob("v.tif", "box:3", "w.nii"))
    after = nibabel.load("w.nii")
    assert after.header.get_xyzt_units()[0] == name
    assert np.allclose(after.header.get_zooms(), wanted.sizes) and np.allclose(np.diag(after.affine)[:3], wanted.sizes)
    for dtype in ("float32", "float64"):
        convolve(ConvolveJob("w.nii", "box:3", f"{dtype}.tif", settings=Settings(dtype=dtype)))
        with open_volume(f"{dtype}.tif") as found:
            back = voxel_size(found)
            assert back and back.unit == name and np.allclose(back.sizes, wanted.sizes)


def test_sizes_that_are_not_all_told_are_said_to_be_lost():
    """One plane's distance, or a unit that nobody knows."""
    tifffile.imwrite("v.tif", np.ones(SHAPE, np.float32), imagej=True, resolution=(4, 2),
                     metadata={"axes": "ZYX", "spacing": 2.5, "unit": "furlong"})  # fmt: skip
    with open_volume("v.tif") as found:
        assert voxel_size(found) is None
        assert lost("w.nii", found, np.dtype(np.float32)) == "Not kept in w.nii: the input's resolution and metadata"
