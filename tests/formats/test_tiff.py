"""TIFF stacks through tifffile: what others write is read, what lies or bursts is refused."""

import zlib

import numpy as np
import pytest
import tifffile
from PIL import Image

from tilewright.errors import InputError, ResourceError
from tilewright.formats.volumes import ArrayVolume, open_volume
from volume_files import creating

SHAPE = (5, 20, 30)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def volume(rng, dtype=np.uint16):
    return (rng.random(SHAPE) * 200).astype(dtype)


def load(name="v.tif", **options):
    with open_volume(name, **options) as found:
        return found.load(np.float64)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.uint32, np.float32, np.float64])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"byteorder": ">"},
        {"bigtiff": True},
        {"compression": "zlib"},
        {"compression": "zlib", "rowsperstrip": 3},
        {"compression": "zlib", "tile": (16, 16)},
        {"tile": (16, 16)},
        {"rowsperstrip": 7},
        {"metadata": None},
    ],
    ids=str,
)
def test_what_tifffile_writes(rng, dtype, options):
    array = volume(rng, dtype)
    tifffile.imwrite("v.tif", array, photometric="minisblack", **options)
    assert np.array_equal(load(), array)


@pytest.mark.parametrize("kind", ["imagej", "ome"])
def test_microscopes(rng, kind):
    array = volume(rng)
    tifffile.imwrite("v.ome.tif" if kind == "ome" else "v.tif", array, metadata={"axes": "ZYX"}, **{kind: True})
    assert np.array_equal(load("v.ome.tif" if kind == "ome" else "v.tif"), array)


@pytest.mark.parametrize("compression", [None, "tiff_adobe_deflate"])
def test_what_pillow_writes(rng, compression):
    array = volume(rng, np.uint8)
    pages = [Image.fromarray(page) for page in array]
    pages[0].save("v.tif", save_all=True, append_images=pages[1:], compression=compression)
    assert np.array_equal(load(), array)


def test_one_plane_of_ours(rng):
    array = rng.standard_normal((1, 20, 30)).astype(np.float32)
    with creating("v.tif", array.shape, array.dtype, ArrayVolume("a", array)) as output:
        output.write((0, 0, 0), array)
    assert np.array_equal(load(), array)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda a: tifffile.imwrite("v.tif", a[0], photometric="minisblack"), r"2 dimensions, \(20, 30\)"),
        (lambda a: tifffile.imwrite("v.tif", np.zeros((20, 30, 3), "u1"), photometric="rgb"), "3 channels a pixel"),
        (lambda a: tifffile.imwrite("v.tif", np.zeros((4, 20, 30, 3), "u1"), photometric="rgb"), "3 channels a pixel"),
        (lambda a: tifffile.imwrite("v.tif", np.zeros((2, 4, 20, 30), "u1"), photometric="minisblack"), "4 dimensions"),
        (lambda a: tifffile.imwrite("v.tif", a.astype("c8"), photometric="minisblack"), "the values are complex64"),
    ],
)
def test_what_is_no_stack(rng, write, message):
    write(volume(rng))
    with pytest.raises(InputError, match=message):
        load()


def test_pages_of_different_sizes(rng):
    with tifffile.TiffWriter("v.tif") as writer:
        writer.write(np.zeros((20, 30), np.uint8))
        writer.write(np.zeros((21, 30), np.uint8))
    with pytest.raises(InputError, match=r"holds 2 images of different sizes: \(20, 30\), \(21, 30\)"):
        load()


def test_other_compressions(rng):
    pages = [Image.fromarray(page) for page in volume(rng, np.uint8)]
    pages[0].save("v.tif", save_all=True, append_images=pages[1:], compression="tiff_lzw")
    with pytest.raises(InputError, match=r"compression LZW is not read. Save the stack uncompressed or deflated"):
        load()


def test_a_bomb(monkeypatch):
    """A strip that expands to a quarter of a gigabyte is found while it is counted, before tifffile expands it."""
    code = zlib.compressobj(1)
    bomb = b"".join(code.compress(bytes(1 << 22)) for _ in range(64)) + code.flush()
    monkeypatch.setattr(tifffile.TiffPage, "asarray", lambda *_, **__: pytest.fail("it was expanded"))
    with tifffile.TiffWriter("v.tif") as writer:
        writer.write(iter([bomb] * 2), shape=(2, 20, 30), dtype=np.uint8, compression="zlib", photometric="minisblack")
    with pytest.raises(InputError, match="page 0 expands beyond the 600 bytes that its header tells of"):
        load()


def test_memory(rng):
    array = volume(rng)
    tifffile.imwrite("v.tif", array, photometric="minisblack", compression="zlib")
    assert np.array_equal(load(memory=array.nbytes), array)
    with pytest.raises(ResourceError, match=f"takes {array.nbytes:,} bytes in memory"):
        load(memory=array.nbytes - 1)


@pytest.mark.parametrize("data", [b"", b"II*\0", b"II*\0\x08\0\0\0\xff\xff", b"\x89PNG" + bytes(99)])
def test_what_is_no_tiff(data):
    with open("v.tif", "wb") as file:
        file.write(data)
    with pytest.raises(InputError, match="tifffile cannot read it"):
        load()


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_mutated_files(rng, capfd, compression):
    tifffile.imwrite("good.tif", volume(rng, np.uint8)[:2], photometric="minisblack", compression=compression)
    with open("good.tif", "rb") as file:
        good = file.read()
    begin = int.from_bytes(good[4:8], "little")
    for _ in range(300):
        data = bytearray(good[: rng.integers(1, len(good))] if rng.random() < 0.1 else good)
        for _ in range(rng.integers(1, 4)):
            at = rng.integers(0, 8) if rng.random() < 0.1 else begin + rng.integers(0, 300)
            data[min(int(at), len(data) - 1)] = rng.integers(0, 256)
        with open("v.tif", "wb") as file:
            file.write(data)
        try:
            assert load(memory=1 << 28).ndim == 3
        except (InputError, ResourceError):
            continue
    assert capfd.readouterr().err == ""
