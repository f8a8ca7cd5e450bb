"""What stands outside a volume where nobody says: scipy's rule for kernels with a name, zeros for those from a file."""

import os

import numpy as np
import pytest
from scipy import ndimage

from tilewright import ndimage as ours
from tilewright.errors import UsageError
from tilewright.runtime.jobs.start import Settings
from tilewright.runtime.verbs.convolve import ConvolveJob, convolve

NAMED = {
    "gaussian:1.5": lambda n, x: n.gaussian_filter(x, 1.5),
    "gaussian:0.5,1,2": lambda n, x: n.gaussian_filter(x, (0.5, 1, 2)),
    "box:3": lambda n, x: n.uniform_filter(x, 3),
    "box:4": lambda n, x: n.uniform_filter(x, 4),
    "box:1,2,5": lambda n, x: n.uniform_filter(x, (1, 2, 5)),
    "laplace": lambda n, x: n.laplace(x),
    "sobel:0": lambda n, x: n.sobel(x, 0),
    "sobel:1": lambda n, x: n.sobel(x, 1),
    "sobel:2": lambda n, x: n.sobel(x, 2),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    np.save("v.npy", 1 + rng.random((18, 19, 21)).astype(np.float32))
    np.save("k.npy", rng.standard_normal((3, 4, 5)))


def run(kernel, output="out.npy", **options):
    convolve(ConvolveJob("v.npy", kernel, output, **options))
    return np.load(output)


@pytest.mark.parametrize("kernel", NAMED)
def test_a_name_means_scipys_function(kernel):
    """Its default mode, the sign and origin of its kernel; and so does tilewright.ndimage."""
    x = np.load("v.npy").astype(np.float64)
    found = run(kernel)
    assert np.abs(found - NAMED[kernel](ndimage, x)).max() < 1e-5
    assert np.abs(found - NAMED[kernel](ours, np.load("v.npy"))).max() < 1e-5


def test_a_smoothed_border_is_not_dark():
    np.save("v.npy", np.full((20, 20, 20), 100, np.float32))
    assert np.abs(run("gaussian:2") - 100).max() < 1e-3


def test_a_file_is_correlated_with_zeros_outside():
    """tilewright.ndimage.convolve flips what `convolve` does not."""
    x, weights = np.load("v.npy"), np.load("k.npy")
    found = run("k.npy")
    assert np.abs(found - ndimage.correlate(x.astype(np.float64), weights, mode="constant")).max() < 1e-4
    flipped = ours.convolve(x, weights[::-1, ::-1, ::-1], mode="constant", origin=(0, -1, 0))
    assert np.abs(found - flipped).max() < 1e-4


@pytest.mark.parametrize("kernel", ["gaussian:1", "k.npy"])
def test_a_cval_means_the_constant(kernel):
    """And is not ignored where there is none."""
    assert (run(kernel, cval=3.0) == run(kernel, "too.npy", mode="constant", cval=3.0)).all()
    with pytest.raises(UsageError, match=r"cval is 3 and mode 'reflect', which has no constant .*--mode constant"):
        run(kernel, "other.npy", mode="reflect", cval=3.0)


def test_a_job_that_was_begun_with_the_earlier_default():
    """It says what differs and how to go on; and goes on so."""
    earlier = run("gaussian:1", mode="constant")
    with pytest.raises(UsageError, match=r"begun with --mode constant, which was the default then; .* reflect now"):
        run("gaussian:1")
    before = os.stat("out.npy").st_mtime_ns
    assert (run("gaussian:1", mode="constant") == earlier).all() and os.stat("out.npy").st_mtime_ns == before
    assert (run("gaussian:1", settings=Settings(restart=True)) != earlier).any()
    assert (run("gaussian:1") == run("gaussian:1", mode="reflect")).all()
