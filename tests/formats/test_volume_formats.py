"""Every format holds what was written, whole or box by box, and any goes to any."""

import os
from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.formats import volumes
from tilewright.formats.names import suffix_of
from tilewright.formats.volume_formats import form_of, open_volume
from tilewright.formats.volumes import ArrayVolume, check_shape
from volume_files import creating

NAMES = ("v.npy", "v.nii", "v.nii.gz", "v.tif", "v.tiff", "v.zarr", "v.txt")
SHAPE = (9, 7, 11)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def volume(rng, dtype=np.float32):
    return (rng.standard_normal(SHAPE) * 50).astype(dtype)


def write(name, array, like=None, step=2):
    """In tiles along z and x, `step` units thick."""
    with creating(name, array.shape, array.dtype, like or ArrayVolume("a", array)) as output:
        d, h, w = (step * u for u in output.unit)
        D, H, W = array.shape
        for x in range(0, W, w):
            for y in range(0, H, h):
                for z in range(0, D, d):
                    tile = np.ascontiguousarray(array[z : z + d, y : y + h, x : x + w])
                    output.write((z, y, x), tile)


def box_of(volume, start, shape, dtype=np.float64):
    values = np.empty(shape, dtype)
    volume.read_into(start, values)
    return values


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
def test_there_and_back(rng, name, dtype, monkeypatch):
    monkeypatch.setattr(volumes, "PIECE_BYTES", 200)  # several pieces a box
    array = volume(rng, dtype)
    write(name, array)
    tolerance = 1e-5 if name == "v.txt" else 0
    with open_volume(name) as found:
        assert found.shape == SHAPE and found.wide == (dtype == np.float64 and name != "v.txt")
        assert np.abs(found.load(np.float64) - array).max() <= tolerance
        for _ in range(50):
            start = [int(rng.integers(0, n)) for n in SHAPE]
            shape = [int(rng.integers(1, n - a + 1)) for a, n in zip(start, SHAPE, strict=True)]
            wanted = array[tuple(slice(a, a + n) for a, n in zip(start, shape, strict=True))]
            assert np.abs(box_of(found, start, shape) - wanted).max() <= tolerance
    assert os.listdir(".") == [name]


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", NAMES)
def test_any_to_any(rng, source, target):
    array = np.rint(volume(rng))
    write(source, array)
    with open_volume(source) as found:
        write("copy-" + target, found.load(np.float32), like=found)
    with open_volume("copy-" + target) as found:
        assert np.array_equal(found.load(np.float32), array)


def test_others_read_what_we_write(rng):
    import nibabel
    import tifffile
    import zarr

    array = volume(rng)
    for name in NAMES:
        write(name, array)
    assert np.array_equal(np.load("v.npy"), array)
    assert np.array_equal(tifffile.imread("v.tif"), array)
    assert np.array_equal(zarr.open_array("v.zarr", mode="r")[:], array)
    for name in ("v.nii", "v.nii.gz"):
        image = nibabel.load(name)
        assert np.array_equal(image.get_fdata(dtype=np.float32), array) and np.array_equal(image.affine, np.eye(4))
    assert Path("v.txt").read_text().startswith(f"9 7 11 {array[0, 0, 0]:f} {array[0, 0, 1]:f} ")


@pytest.mark.parametrize("dtype", ["?", "u1", ">i2", "<u4", "i8", "f2", ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_of_any_numbers(rng, dtype, order):
    array = np.asarray((rng.random(SHAPE) * 100).astype(dtype), order=order)
    np.save("v.npy", array)
    with open_volume("v.npy") as found:
        assert np.array_equal(found.load(np.float32), array.astype(np.float32))
        assert np.array_equal(box_of(found, (1, 2, 3), (4, 3, 5)), array[1:5, 2:5, 3:8].astype(np.float64))


@pytest.mark.parametrize("name", ["v.npy", "v.nii", "v.nii.gz", "v.tif", "v.zarr"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(rng, name, value):
    array = volume(rng)
    array[3, 4, 5] = value
    write(name, array)
    with open_volume(name) as found:
        with pytest.raises(InputError, match=rf"voxel \[3, 4, 5\]: the value is {value}") as caught:
            found.load(np.float32)
        assert caught.value.path == name
        with pytest.raises(InputError, match=r"voxel \[3, 4, 5\]"):
            box_of(found, (2, 3, 4), (3, 3, 3), np.float32)
        assert box_of(found, (4, 0, 0), (2, 7, 11)).shape == (2, 7, 11)


def test_large_finite_values_are_finite(rng):
    array = np.full(SHAPE, 3e38, np.float32)  # their sum is not
    write("v.npy", array)
    with open_volume("v.npy") as found:
        assert np.array_equal(found.load(np.float32), array)


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((4, 5), "f4", r"2 dimensions, \(4, 5\); three are wanted"),
        ((2, 3, 4, 5), "f4", r"4 dimensions, \(2, 3, 4, 5\)"),
        ((0, 3, 4), "f4", r"the shape is \(0, 3, 4\)"),
        ((2, 3, 4), "c8", "complex64|<c8"),
    ],
)
@pytest.mark.parametrize("name", ["v.npy", "v.zarr", "v.nii", "v.tif"])
def test_what_is_no_volume(name, shape, dtype, message):
    import nibabel
    import tifffile
    import zarr

    array = np.zeros(shape, dtype)
    if name == "v.npy":
        np.save(name, array)
    elif name == "v.zarr":
        zarr.create_array(name, shape=shape, dtype=dtype, chunks=tuple(max(1, n) for n in shape))
    elif name == "v.tif":
        if 0 in shape:
            pytest.skip("tifffile does not write it")
        tifffile.imwrite(name, array, photometric="minisblack")
    else:
        if len(shape) == 4:
            message = r"4 dimensions"
        nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), name)
    with pytest.raises(InputError, match=message):
        open_volume(name)


OTHERS = [
    ("a.mgz", r"nibabel\.save\(nibabel\.load\('a\.mgz'\), 'a\.nii\.gz'\)"),
    ("a.DCM", "dcm2niix"),
    ("a.nrrd", "SimpleITK"),
    ("a.npz", "numpy.save"),
]


@pytest.mark.parametrize(("name", "advice"), OTHERS)
def test_other_formats_are_converted(name, advice):
    with pytest.raises(UsageError, match=rf"is no format of volumes that is read\. .*{advice}"):
        open_volume(name)
    with pytest.raises(UsageError, match="does not say its format"):
        form_of(name, SHAPE, np.dtype("f4"), None)


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("a.npy", (4,), r"1 dimension, \(4,\); three are wanted: \(z, y, x\)\. Use tilewright\.ndimage"),
        ("a.npy", (4, 5), r"2 dimensions, .*\(z, y, x\)\. Save the image as .* array\[None\], .* gaussian:0,1\.5,1\.5"),
        ("a.nii", (4, 5), r"2 dimensions, .*\(i, j, k\)\. Save .* array\[:, :, None\], .* gaussian:1\.5,1\.5,0"),
        ("a.npy", (4, 5, 6, 2), r"4 dimensions, .*\. Save one channel or one time"),
    ],
)
def test_the_advice_fits_the_dimensions(name, shape, wanted):
    with pytest.raises(InputError, match=wanted):
        check_shape(name, shape, np.dtype("f4"))


def test_names(tmp_path):
    assert [suffix_of(name) for name in ("A.NII.GZ", "x.zarr/", "y.TIF", "z.gz")] == [".nii.gz", ".zarr", ".tif", None]
    (tmp_path / "array").mkdir()
    assert suffix_of("array") == ".zarr"
    for act in (lambda: open_volume("v.dat"), lambda: form_of("v", SHAPE, np.dtype("f4"), None)):
        with pytest.raises(
            UsageError, match=r"does not say its format. Choose a name that ends with \.txt, \.npy, .* or \.zarr"
        ):
            act()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_not_there(name):
    with pytest.raises(InputError, match="no such input"):
        open_volume(name)


@pytest.mark.parametrize(("name", "module"), [("v.nii", "nibabel"), ("v.tif", "tifffile"), ("v.zarr", "zarr")])
def test_a_package_that_is_not_installed(rng, monkeypatch, name, module):
    write(name, volume(rng))
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ResourceError, match=rf"needs .*{module}, which is not installed.*\[volume\]"):
        open_volume(name)
    with pytest.raises(ResourceError, match=r"install .*\[volume\]"):
        form_of("w" + name, SHAPE, np.dtype("f4"), ArrayVolume("a", volume(rng)))


def test_what_is_held_in_memory_has_a_limit(rng):
    array, name = volume(rng), "v.txt"
    write(name, array)
    open_volume(name, memory=array.nbytes).close()
    with pytest.raises(
        ResourceError, match=rf"takes {array.nbytes:,} bytes in memory, and {array.nbytes - 1:,} are left"
    ):
        open_volume(name, memory=array.nbytes - 1)


@pytest.mark.parametrize("name", ["v.npy", "v.nii", "v.tif"])
def test_a_file_that_shrinks(rng, name):
    write(name, volume(rng))
    with open_volume(name) as found:
        os.truncate(name, os.path.getsize(name) // 3)
        with pytest.raises(InputError, match="shrank"):
            found.load(np.float32)


def test_descriptors_are_closed(rng):
    for name in NAMES:
        write(name, volume(rng))
        open_volume(name).close()  # what a package keeps open is open now
    before = len(os.listdir("/proc/self/fd"))
    for name in NAMES:
        open_volume(name).close()
        write(name, volume(rng))
    assert len(os.listdir("/proc/self/fd")) <= before
