"""Volumes of any two formats are compared; the first and the worst voxel are named."""

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.formats import validate_volumes as module
from tilewright.formats.validate_volumes import is_volume, validate_volumes
from tilewright.formats.volumes import ArrayVolume
from volume_files import creating

NAMES = ("v.npy", "v.nii", "v.nii.gz", "v.tif", "v.zarr", "v.txt")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, array):
    with creating(name, array.shape, array.dtype, ArrayVolume("a", array)) as output:
        output.write((0, 0, 0), array)


@pytest.fixture
def array(rng):
    return rng.standard_normal((5, 6, 7)).astype(np.float32)


@pytest.mark.parametrize("most", [13, 1 << 20])
@pytest.mark.parametrize("b", NAMES)
@pytest.mark.parametrize("a", NAMES)
def test_any_two(array, monkeypatch, a, b, most):
    monkeypatch.setattr(module, "MOST", most)
    array[3, 4, 5] = array[4, 5, 6] = 2
    write(a, array)
    write("ref-" + b, array)
    found = validate_volumes(a, "ref-" + b)
    assert found.passed and found.checked == array.size and found.error < 1e-5
    array[3, 4, 5], array[4, 5, 6] = 2.001, 2.1
    write(a, array)
    found = validate_volumes(a, "ref-" + b)
    assert not found.passed and found.first.startswith("voxel [3, 4, 5] is ") and "voxel [4, 5, 6]" in found.worst
    assert validate_volumes(a, "ref-" + b, tolerance=0.06).passed


def test_what_is_not_finite_fails(array):
    write("ref.npy", array)
    array[1, 2, 3] = np.nan
    write("v.npy", array)
    found = validate_volumes("v.npy", "ref.npy")
    assert not found.passed and found.first.startswith("voxel [1, 2, 3] is nan")
    assert not validate_volumes("v.npy", "v.npy").passed


def test_shapes(array):
    write("v.npy", array)
    write("ref.npy", array[:4])
    assert validate_volumes("v.npy", "ref.npy").first == "the output is (5, 6, 7) and the reference (4, 6, 7)"
    with pytest.raises(InputError, match="no such reference"):
        validate_volumes("v.npy", "gone.npy")


def test_which_files_are_volumes(array):
    for name in NAMES:
        write(name, array)
        assert is_volume(name)
    np.save("a.npy", np.zeros((2, 64, 64, 3)))
    for name, text in [
        ("images.txt", "2\n0.1 0.2 "),
        ("prompts.txt", "1 of many"),
        ("a.bin", "1 2 3 4"),
        ("e.txt", ""),
    ]:
        with open(name, "w") as file:
            file.write(text)
    assert not any(map(is_volume, ("a.npy", "images.txt", "prompts.txt", "a.bin", "e.txt", "gone.npy")))
