"""TIFF stacks through tifffile: what others write is read, what lies or bursts is refused."""

import signal
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from tilewright.errors import InputError, ResourceError
from tilewright.formats.kept import lost
from tilewright.formats.tiff_metadata import TiffMetadata, options_for
from tilewright.formats.volume_formats import open_volume
from tilewright.formats.volumes import ArrayVolume
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
        (lambda a: tifffile.imwrite("v.tif", np.zeros((20, 30, 3), "u1"), photometric="rgb"), "3 channels per pixel"),
        (
            lambda a: tifffile.imwrite("v.tif", np.zeros((4, 20, 30, 3), "u1"), photometric="rgb"),
            "3 channels per pixel",
        ),
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
    with pytest.raises(InputError, match="page 0 expands beyond the 600 bytes that its header states"):
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


def smoothed(target="w.tif", source="v.tif", dtype=np.float32):
    """A copy of the source as a job writes it, and what is said to be lost."""
    with open_volume(source) as found:
        array = found.load(np.dtype(dtype))
        with creating(target, array.shape, array.dtype, found) as output:
            output.write((0, 0, 0), array)
        return array, lost(target, found, np.dtype(dtype))


def test_imagej_keeps_its_voxel_size_and_words(rng):
    words = {"spacing": 2.5, "unit": "um", "finterval": 0.25, "Info": "a stain", "Labels": list("abcde")}
    tifffile.imwrite("v.tif", volume(rng), imagej=True, resolution=(4.5, 1 / 3), metadata={"axes": "ZYX", **words})
    array, gone = smoothed()
    with tifffile.TiffFile("v.tif") as before, tifffile.TiffFile("w.tif") as after:
        assert {k: after.imagej_metadata[k] for k in words} == words and gone is None
        for name in ("XResolution", "YResolution", "ResolutionUnit"):
            assert after.pages[0].tags[name].value == before.pages[0].tags[name].value
        assert np.array_equal(after.asarray(), array) and after.series[0].axes == "ZYX"
    assert np.array_equal(load("w.tif"), array)


def test_imagej_in_float64_keeps_the_voxel_size_and_says_what_it_loses(rng):
    words = {"spacing": 2.5, "unit": "um", "Info": "a stain"}
    tifffile.imwrite("v.tif", volume(rng), imagej=True, resolution=(4, 5), metadata={"axes": "ZYX", **words})
    array, gone = smoothed(dtype=np.float64)
    assert gone == "Not kept in w.tif: ImageJ's metadata but for the voxel size: ImageJ reads no TIFF float64"
    with tifffile.TiffFile("w.tif") as after:
        assert after.shaped_metadata[0]["spacing"] == 2.5 and after.shaped_metadata[0]["unit"] == "um"
        assert after.pages[0].tags["XResolution"].value == (4, 1) and np.array_equal(after.asarray(), array)
    assert smoothed("x.tif", "w.tif", np.float64)[1] is None
    with tifffile.TiffFile("x.tif") as after:
        assert after.shaped_metadata[0]["spacing"] == 2.5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ome_is_adapted(rng, dtype):
    words = {"axes": "ZYX", "PhysicalSizeZ": 2.5, "PhysicalSizeZUnit": "µm", "PhysicalSizeX": 0.5, "Name": "cells"}
    tifffile.imwrite("v.ome.tif", volume(rng), ome=True, metadata=words)
    array, gone = smoothed("w.ome.tif", "v.ome.tif", dtype)
    with tifffile.TiffFile("w.ome.tif") as after:
        assert gone is None and after.is_ome and np.array_equal(after.asarray(), array)
        assert after.series[0].axes == "ZYX" and len(after.pages) == SHAPE[0]
        text = after.ome_metadata
    for said in ('PhysicalSizeZ="2.5"', 'PhysicalSizeX="0.5"', "µm", 'Name="cells"', 'SizeZ="5"'):
        assert said in text
    assert f'Type="{"float" if dtype == np.float32 else "double"}"' in text
    assert np.array_equal(load("w.ome.tif"), array)


def test_resolution_alone_is_kept(rng):
    tifffile.imwrite("v.tif", volume(rng), photometric="minisblack", resolution=(300, 150), resolutionunit=3)
    assert smoothed()[1] is None
    with tifffile.TiffFile("w.tif") as after:
        tags = after.pages[0].tags
        assert [tags[n].value for n in ("XResolution", "YResolution", "ResolutionUnit")] == [(300, 1), (150, 1), 3]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_plain_description_and_tifffiles_words_are_kept(rng, dtype):
    words = {"axes": "ZYX", "spacing": 2.5, "stain": ["DAPI", 7]}
    tifffile.imwrite(
        "v.tif", volume(rng), photometric="minisblack", description="day 3, 5 \u00b5m".encode(), metadata=words
    )
    array, gone = smoothed(dtype=dtype)
    assert gone is None and smoothed("x.tif", "w.tif", dtype)[1] is None
    for name in ("w.tif", "x.tif"):
        with tifffile.TiffFile(name) as after:
            assert after.pages[0].description == "day 3, 5 \u00b5m" and after.series[0].axes == "ZYX"
            assert after.shaped_metadata[0] == words | {"shape": [*SHAPE]} and np.array_equal(after.asarray(), array)


def test_a_description_by_another_program(rng):
    pages = [Image.fromarray(page) for page in volume(rng, np.uint8)]
    pages[0].save("v.tif", save_all=True, append_images=pages[1:], description="a stain")
    assert smoothed()[1] is None
    with Image.open("w.tif") as after:
        assert after.tag_v2[270] == "a stain" and after.n_frames == SHAPE[0]


@pytest.mark.parametrize(
    ("texts", "gone"),
    [
        (["a", "a"], None),
        (["a", "b"], "the image descriptions of the pages after the first"),
        (["state.config=1\r", ""], "the image description, which is that of a file of kind 'scanimage'"),
        (["a" * 99, ""], "the image description of 99 characters"),
    ],
)
def test_a_description_that_is_lost_is_told(rng, monkeypatch, texts, gone):
    monkeypatch.setattr("tilewright.formats.tiff_metadata.MAX_METADATA", 50)
    with tifffile.TiffWriter("v.tif") as writer:
        for text, plane in zip(texts, volume(rng), strict=False):
            writer.write(plane, photometric="minisblack", description=text, metadata=None)
    told = smoothed()[1]
    assert told == (gone and f"Not kept in w.tif: {gone}")
    with tifffile.TiffFile("w.tif") as after:
        assert after.pages[0].tags["ImageDescription"].value.startswith("a" if texts[0] == "a" else '{"shape"')


def test_metadata_that_could_not_be_read_is_told(rng):
    tifffile.imwrite("v.tif", volume(rng), photometric="minisblack")
    with open_volume("v.tif") as found:
        found.header = TiffMetadata(lost="the metadata (ValueError: it cannot be read)")
        said = lost("w.tif", found, np.dtype(np.float32))
    assert said == "Not kept in w.tif: the metadata (ValueError: it cannot be read)"


@pytest.mark.parametrize(
    "text",
    [
        "<OME><Image><Pixels SizeC='2' SizeT='1'/></Image></OME>",
        "<OME><Image><Pixels/></Image><Image><Pixels/></Image></OME>",
        "<!DOCTYPE a [<!ENTITY b 'c'>]><OME><Image><Pixels Name='&b;'/></Image></OME>",
        "<OME><Image>",
    ],
)
def test_ome_of_something_else_is_told(text):
    options, gone = options_for(TiffMetadata(ome=text), SHAPE, np.dtype(np.float32), big=False)
    assert gone == "the OME metadata, which is not that of one stack" and "description" not in options


def test_what_another_format_loses_is_told(rng):
    tifffile.imwrite("v.tif", volume(rng), imagej=True, metadata={"axes": "ZYX", "spacing": 2.0})
    tifffile.imwrite("plain.tif", volume(rng), photometric="minisblack")
    for target in ("w.npy", "w.nii", "w.zarr", "w.txt"):
        with open_volume("v.tif") as found:
            gone = lost(target, found, np.dtype(np.float32))
            assert gone == f"Not kept in {target}: the input's resolution and metadata"
        with open_volume("plain.tif") as found:
            assert lost(target, found, np.dtype(np.float32)) is None


@contextmanager
def endless():
    """Ends what follows a circle, after 20 seconds of CPU time, with an AssertionError."""

    def end(*_):
        raise AssertionError("it does not end")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, 20)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _chain(path):
    """(bytes of a stack with a page a plane and of its own place, offsets of its pages, where each next one stands)."""
    with tifffile.TiffWriter(path) as out:
        for plane in range(4):
            out.write(np.full((5, 6), plane, np.uint16), photometric="minisblack", metadata=None, contiguous=False)
    with tifffile.TiffFile(path) as tiff:
        offsets = [page.offset for page in tiff.pages]
    data = bytearray(Path(path).read_bytes())
    nexts = [offset + 2 + 12 * int.from_bytes(data[offset : offset + 2], "little") for offset in offsets]
    return data, offsets, nexts


@pytest.mark.parametrize(
    ("page", "target", "message"),
    [
        (3, 0, "page 4 is an earlier page again: the chain of pages is a loop"),
        (2, 2, "page 3 is an earlier page again"),
        (1, None, "page 2 lies outside of the file's"),
        (1, "header", "page 2 lies outside of the file's"),
        (1, "end", "page 2 has .* tags; with the pages before it they take more than the file"),
    ],
)
def test_a_chain_of_pages_that_does_not_end_or_was_cut(page, target, message):
    data, offsets, nexts = _chain("v.tif")
    with open_volume("v.tif") as found:
        assert found.shape == (4, 5, 6)
    place = {None: 2**31, "header": 4, "end": len(data) - 4}.get(target) or offsets[target]
    data[nexts[page] : nexts[page] + 4] = place.to_bytes(4, "little")
    if target == "end":
        data[-4:] = b"\xff" * 4
    Path("v.tif").write_bytes(data)
    with pytest.raises(InputError, match=message), endless():
        open_volume("v.tif")
