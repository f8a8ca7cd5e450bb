"""Kernels by name are scipy.ndimage's, and what names none is refused with the list of those there are."""

import numpy as np
import pytest
from scipy import ndimage

import tilewright as tw
from tilewright.errors import InputError, UsageError
from tilewright.runtime.verbs.convolve.kernels import Kernel, applied, check_fits, kernel_of

NAMED = {
    "gaussian:1.5": lambda x: ndimage.gaussian_filter(x, 1.5, mode="constant"),
    "gaussian:0.7,1,1.3": lambda x: ndimage.gaussian_filter(x, (0.7, 1, 1.3), mode="constant"),
    "gaussian:.1": None,
    "gaussian:1.5,1.5,0": lambda x: ndimage.gaussian_filter(x, (1.5, 1.5, 0), mode="constant"),
    "gaussian:0": lambda x: ndimage.gaussian_filter(x, 0),
    "box:5": lambda x: ndimage.uniform_filter(x, 5, mode="constant"),
    "box:4": lambda x: ndimage.uniform_filter(x, 4, mode="constant"),
    "box:1,2,3": lambda x: ndimage.uniform_filter(x, (1, 2, 3), mode="constant"),
    "laplace": lambda x: ndimage.laplace(x, mode="constant"),
    "sobel:0": lambda x: ndimage.sobel(x, 0, mode="constant"),
    "sobel:1": lambda x: ndimage.sobel(x, 1, mode="constant"),
    "sobel:2": lambda x: ndimage.sobel(x, 2, mode="constant"),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [name for name, f in NAMED.items() if f])
def test_names_are_scipys(rng, name, dtype):
    x = rng.standard_normal((15, 16, 17))
    kernel = kernel_of(name)
    padded = np.pad(x, list(zip(*kernel.halo, strict=True))).astype(dtype)
    out = np.empty(x.shape, dtype)
    applied(kernel, np.dtype(dtype))(padded, out)
    weights = kernel.weights if kernel.lines is None else np.einsum("i,j,k", *kernel.lines)
    bound = 8 * np.finfo(dtype).eps * np.abs(weights).sum() * np.abs(x).max()
    assert np.abs(out - NAMED[name](x)).max() < bound


@pytest.mark.parametrize(
    ("name", "sigma"), [("gaussian:0,2,0", (0, 2, 0)), ("gaussian:1.5,0,1", (1.5, 0, 1)), ("gaussian:0", 0)]
)
def test_an_axis_with_sigma_0_has_scipys_bits(rng, name, sigma):
    x = rng.standard_normal((15, 16, 17))
    x[:, 8, 8], x[7, :, :] = -0.0, -0.0
    kernel = kernel_of(name)
    out = np.empty_like(x)
    applied(kernel, x.dtype)(np.pad(x, list(zip(*kernel.halo, strict=True)), "symmetric"), out)
    assert out.tobytes() == ndimage.gaussian_filter(x, sigma).tobytes()


def test_the_numbers_of_a_gaussian():
    assert kernel_of("gaussian:2").shape == (17, 17, 17) and kernel_of("gaussian:0.1").shape == (1, 1, 1)
    assert kernel_of("gaussian:1,2,3").shape == (9, 17, 25)


@pytest.mark.parametrize(
    "name",
    [
        "gauss:1", "gaussian", "gaussian:", "gaussian:-1", "gaussian:nan", "gaussian:1,2", "gaussian:1e3",
        "gaussian:999999999", "box:0", "box:2.5", "box:-3", "box", "laplace:1", "sobel", "sobel:3", "sobel:-1",
        "sobel:x", "", "kernel.bin", "laplace ", "gaussian:1;2",
    ],
)  # fmt: skip
def test_what_is_no_kernel(name):
    with pytest.raises(
        UsageError, match=r"is no kernel.* Give (one of gaussian:SIGMA, box:SIZE .*sobel:AXIS|one, as in|laplace alone)"
    ):
        kernel_of(name)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *((f"gaussian:{sigma}", "SIGMA is a decimal from 0 and below") for sigma in ("-1", "nan", "", "1,2")),
        *((f"box:{size}", "SIZE is an integer from 1 to 1,048,575") for size in ("0", "2.5", "")),
        ("sobel:3", "AXIS is 0, 1 or 2"), ("laplace:1", "laplace has no parameter"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_parameter_is_said(name, rule):
    with pytest.raises(UsageError, match=f"^{name!r} is no kernel: {rule}"):
        kernel_of(name)


def test_files(tmp_path, rng):
    weights = rng.standard_normal((3, 4, 5))
    np.save(tmp_path / "k.npy", weights)
    kernel = kernel_of(str(tmp_path / "k.npy"))
    assert np.array_equal(kernel.weights, weights) and kernel.halo == ((1, 2, 2), (1, 1, 2))
    (tmp_path / "k.txt").write_text("1 0.5 ")
    assert kernel_of(str(tmp_path / "k.txt")).weights.tolist() == [[[0.5]]]
    np.save(tmp_path / "k.npy", weights[0])
    with pytest.raises(InputError, match="2 dimensions"):
        kernel_of(str(tmp_path / "k.npy"))
    weights[1, 2, 3] = np.nan
    np.save(tmp_path / "k.npy", weights)
    with pytest.raises(InputError, match=r"weight \[1, 2, 3\]: the value is nan"):
        kernel_of(str(tmp_path / "k.npy"))
    with pytest.raises(InputError, match="no such kernel"):
        kernel_of(str(tmp_path / "gone.txt"))
    (tmp_path / "k.bin").write_bytes(b"")
    with pytest.raises(UsageError, match=r"Name the file \.txt or \.npy"):
        kernel_of(str(tmp_path / "k.bin"))


def test_a_kernel_larger_than_the_volume():
    check_fits(kernel_of("box:3,4,5"), (3, 4, 5), "v.npy")
    with pytest.raises(
        InputError,
        match=r"v.npy: the kernel box:3,4,5 is 3 x 4 x 5 and the volume 3 x 4 x 4 \(z, y, x\).*tilewright\.ndimage",
    ):
        check_fits(kernel_of("box:3,4,5"), (3, 4, 4), "v.npy")
    with pytest.raises(InputError, match=r"the volume 3 x 4 x 4 \(i, j, k\)"):
        check_fits(kernel_of("box:3,4,5"), (3, 4, 4), "v.nii.gz")
    thin = np.arange(48.0).reshape(3, 4, 4)  # what the message refers to, on such a volume
    close = np.abs(tw.ndimage.uniform_filter(thin, (3, 4, 5)) - ndimage.uniform_filter(thin, (3, 4, 5))).max() < 1e-12
    assert close and tw.ndimage.uniform_filter(thin[:1], 5).shape == (1, 4, 4)
    check_fits(kernel_of("box:257"), (999, 999, 999), "v.npy")
    dense = Kernel("k.npy", np.broadcast_to(1.0, (257, 257, 257)))
    with pytest.raises(InputError, match=r"k\.npy: the kernel has 16,974,593 taps; at most 16,777,216 are allowed"):
        check_fits(dense, (999, 999, 999), "v.npy")


def test_a_kernel_of_two_dimensions_is_called_a_kernel(tmp_path):
    np.save(tmp_path / "k.npy", np.ones((3, 3)))
    with pytest.raises(InputError, match=r"the kernel has 2 dimensions, \(3, 3\); three are wanted: \(KD, KH, KW\)"):
        kernel_of(str(tmp_path / "k.npy"))
