"""Volumes of any two formats are compared; the first and the worst voxel are named."""

import numpy as np
import pytest

from tilewright import ndimage
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


def blobs(rng):
    """Smooth blobs of 1000, on which the weights of laplace nearly cancel, and noise of 50."""
    z, y, x = np.mgrid[:24, :24, :24]
    smooth = 1000 * np.exp(-((z - 12) ** 2 + (y - 9) ** 2 + (x - 14) ** 2) / 200)
    return {"smooth": smooth.astype(np.float32), "noise": (50 * rng.standard_normal(z.shape)).astype(np.float32)}


FILTERS = {
    "sobel": lambda a, mode="reflect": ndimage.sobel(a, 0, mode=mode),
    "laplace": lambda a, mode="reflect": ndimage.laplace(a, mode=mode),
    "gaussian": lambda a, mode="reflect": ndimage.gaussian_filter(a, 1.5, mode=mode),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("kind", ["smooth", "noise"])
def test_float32_passes_and_wrong_results_fail(rng, kind, name):
    """An elementwise relative error refused the correct sobel and laplace of float32, because both cross zero."""
    filtered, volume = FILTERS[name], blobs(rng)[kind]
    right = filtered(volume.astype(np.float64))
    wrong = {
        "shifted": np.roll(right, 1, axis=2),
        "mode": filtered(volume.astype(np.float64), "mirror"),
        "noise": right * (1 + 1e-4 * rng.uniform(-1, 1, right.shape)),
    }
    np.save("ref.npy", right)
    np.save("v.npy", filtered(volume))
    assert validate_volumes("v.npy", "ref.npy").passed
    for what, values in wrong.items():
        np.save("v.npy", values)
        found = validate_volumes("v.npy", "ref.npy")
        assert not found.passed, what
        assert found.limit == 5e-5 * np.abs(right).max()
        assert "is allowed: 5e-05 of" in found.detail and "largest absolute value of the reference" in found.detail


@pytest.mark.parametrize(("error", "passes"), [(0, True), (2e-5, True), (1e-4, False)])
def test_a_reference_of_zeros_has_the_scale_1(array, error, passes):
    np.save("ref.npy", 0 * array)
    np.save("v.npy", 0 * array + np.float32(error))
    assert validate_volumes("v.npy", "ref.npy").passed is passes


def test_the_decimals_of_a_text_are_no_error(array):
    write("v.npy", 1e-3 * array)
    write("v.txt", 1e-3 * array)
    found = validate_volumes("v.txt", "v.npy")
    assert found.passed and found.error > 5e-5 * found.scale and "rounding of a .txt" in found.detail


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
