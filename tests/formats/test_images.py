"""Images as files: text to the last byte of printf, .bmp by the format's rules, PNG as Pillow reads it back."""

import math
import os
import struct

import numpy as np
import pytest
from PIL import Image

from tilewright.errors import InputError, UsageError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.images import (
    GridEncoder,
    array_header,
    check_channels,
    check_finite_images,
    check_grid,
    formatted,
    kind_of,
    pixels,
    png_name,
    png_names,
    png_of,
    text_header,
    text_of,
)
from tilewright.formats.validate_images import holds_images, validate_images

SHAPE = (64, 64, 3)


def images_of(rng, n, shape=SHAPE):
    return np.tanh(rng.standard_normal((n, *shape)) * 2).astype(np.float32)


def printed(values):
    return b"".join(b"%.4f " % value for value in values.ravel().tolist())


def grid_of(path, images, suffix):
    """The picture that a GridEncoder makes of images, given in pieces that do not end where an image does."""
    content, cut = pixels(images).tobytes(), images[0].size * len(images) // 3 + 1
    with AtomicFile(path) as file:
        encoder = GridEncoder(file, len(images), images.shape[1:], suffix)
        for part in (content[:cut], content[cut:]):
            encoder.write(part)
        encoder.finish()
    return path.read_bytes()


def text_file(images):
    return text_header(len(images)) + text_of(images[:1]) + text_of(images[1:])


def array_file(images):
    return array_header(len(images), images.shape[1:]) + images.tobytes()


def test_every_rounding_is_printfs():
    """All ties, all borders between two texts with the floats around them, zeros of both signs, denormals."""
    halves = (np.arange(-20_000, 20_001) / 20_000).astype(np.float32)
    ties = (np.arange(-32, 33) / 32).astype(np.float32)
    near = [halves, ties]
    for toward in (-2, 2):
        near += [np.nextafter(x, np.float32(toward)) for x in (halves, ties)]
    tiny = np.array([0.0, -0.0, 1e-45, -1e-45, 4.9e-5, -4.9e-5, 5e-5, -5e-5, 5.1e-5, -5.1e-5], np.float32)
    values = np.concatenate([*near, tiny])
    for part in np.array_split(values, 7):
        assert formatted(part) == printed(part)
    assert formatted(values[np.abs(values) <= 1]) == printed(values[np.abs(values) <= 1])


def test_random_floats_are_printed_as_printf_does(rng):
    bits = rng.integers(0, 2**32, 300_000, np.uint64).astype(np.uint32).view(np.float32)
    values = np.concatenate([bits[np.abs(bits) <= 1], images_of(rng, 4).ravel()])
    assert formatted(values) == printed(values) and len(values) > 100_000


def test_values_beyond_one_are_printed_too():
    values = np.array([1.00004, 1.00006, -3.5, 1e10, 0.5], np.float32)
    assert formatted(values) == printed(values)


def test_text(tmp_path, rng):
    images = images_of(rng, 3, (2, 4, 3))
    assert text_file(images) == b"3\n" + b"".join(printed(image) + b"\n" for image in images)


def test_array(tmp_path, rng):
    images = images_of(rng, 3, (2, 4, 3))
    (tmp_path / "out.npy").write_bytes(array_file(images))
    found = np.load(tmp_path / "out.npy")
    assert found.dtype == np.float32 and found.tobytes() == images.tobytes() and found.shape == images.shape


def bmp(images):
    """The file by the format's rules, a byte at a time."""
    n, height, width, _ = images.shape
    side = math.ceil(math.sqrt(n))
    row_bytes = -(-side * width * 3 // 4) * 4
    size = side * height * row_bytes
    header = b"BM" + struct.pack("<IHHI", 54 + size, 0, 0, 54)
    header += struct.pack("<IiiHHIIiiII", 40, side * width, side * height, 1, 24, 0, size, 0, 0, 0, 0)
    body = bytearray(size)
    for i, image in enumerate(images):
        top, left = i // side * height, i % side * width
        for y in range(height):
            for x in range(width):
                at = (side * height - 1 - (top + y)) * row_bytes + 3 * (left + x)
                for channel in range(3):
                    value = np.float32(image[y, x, channel])
                    body[at + 2 - channel] = int((value + np.float32(1)) / np.float32(2) * np.float32(255))
    return header + bytes(body)


@pytest.mark.parametrize("n", [1, 2, 4, 10, 100])
def test_bmp_byte_for_byte(tmp_path, rng, n):
    images = images_of(rng, n, (8, 8, 3) if n == 100 else (16, 16, 3))
    assert grid_of(tmp_path / "out.bmp", images, ".bmp") == bmp(images)


def test_bmp_of_the_courses_size(tmp_path, rng):
    images = images_of(rng, 3)
    assert grid_of(tmp_path / "out.bmp", images, ".bmp") == bmp(images)


def test_bmp_rows_are_whole_words_and_others_read_it(tmp_path, rng):
    images = images_of(rng, 5, (70, 9, 3))
    assert grid_of(tmp_path / "out.bmp", images, ".bmp") == bmp(images)
    with Image.open(tmp_path / "out.bmp") as picture:
        found = np.asarray(picture)
    assert found.shape == (210, 27, 3)
    assert np.array_equal(found[70:140, :9], pixels(images)[3]) and not found[140:].any()


def test_pixels():
    values = np.array([-1, np.nextafter(np.float32(-1), np.float32(0)), -0.5, 0, 0.5, 0.99999994, 1], np.float32)
    assert pixels(values).tolist() == [0, 0, 63, 127, 191, 255, 255]
    assert pixels(np.array([-1.0000001, 1.0000001], np.float32)).tolist() == [0, 255]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("n", [1, 5, 6, 7])
def test_png_grid(tmp_path, rng, channels, n):
    images = images_of(rng, n, (6, 4, channels))
    grid_of(tmp_path / "out.png", images, ".png")
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.format == "PNG"
        found = np.array(picture).reshape(*picture.size[::-1], channels)
    columns = math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    assert found.shape == (rows * 6, columns * 4, channels)
    for i, tile in enumerate(pixels(images)):
        top, left = i // columns * 6, i % columns * 4
        assert np.array_equal(found[top : top + 6, left : left + 4], tile)
        found[top : top + 6, left : left + 4] = 0
    assert not found.any(), "unused tiles are black"


def test_gray_bmp(tmp_path, rng):
    images = images_of(rng, 2, (4, 4, 1))
    assert grid_of(tmp_path / "out.bmp", images, ".bmp") == bmp(np.repeat(images, 3, axis=3))


def test_folder(tmp_path, rng):
    for i, image in enumerate(images_of(rng, 3, (5, 4, 3))):
        (tmp_path / png_name(i)).write_bytes(png_of(pixels(image)))
        with Image.open(tmp_path / f"{i:05d}.png") as picture:
            assert np.array_equal(np.asarray(picture), pixels(image))
    (tmp_path / "notes.png").touch()
    assert png_names(str(tmp_path)) == {"00000.png", "00001.png", "00002.png"}
    assert png_names(str(tmp_path / "gone")) == frozenset()


def test_kinds(tmp_path):
    names = {"a.txt": ".txt", "a.NPY": ".npy", "b/a.png": ".png", "a.bmp": ".bmp", "faces/": "/", str(tmp_path): "/"}
    assert {name: kind_of(name) for name in names} == names
    for name in ("out.jpg", "out", "out.png.gz", ""):
        with pytest.raises(UsageError, match=r"images are written to \.txt, \.npy, \.png, \.bmp, or to a directory"):
            kind_of(name)


def test_pictures_that_no_file_holds():
    assert check_grid("x", 100, SHAPE, ".bmp") == 3 * 640 * 640
    with pytest.raises(
        UsageError, match=r"400,000 images make a picture of 40,\d+ x 40,\d+ pixels; a \.bmp file holds"
    ):
        check_grid("x", 400_000, SHAPE, ".bmp")
    with pytest.raises(UsageError, match=r"a \.png file holds 2,147,483,647 pixels per side"):
        check_grid("x", 10**16, SHAPE, ".png")
    assert check_grid("x", 10**9, SHAPE, ".png") > 10**12
    with pytest.raises(UsageError, match="have 5 channels; pictures have 1 or 3"):
        check_channels("x", 5)


def test_images_that_are_not_finite(rng):
    images = images_of(rng, 4, (2, 2, 3))
    check_finite_images(images, 7)
    images[2, 1, 0, 1] = np.nan
    with pytest.raises(InputError, match=r"image 9 \(from 0\) is not finite"):
        check_finite_images(images, 7)


@pytest.mark.parametrize("names", [("a.txt", "b.txt"), ("a.npy", "b.npy"), ("a.npy", "b.txt"), ("a.txt", "b.npy")])
def test_validation(tmp_path, rng, monkeypatch, names):
    monkeypatch.setattr("tilewright.formats.validate_images.BATCH_NUMBERS", 64 * 24)
    shape = (2, 4, 3)
    images = images_of(rng, 150, shape)
    other = images.copy()
    other[149, 1, 3, 2] += 0.5
    other[70, 0, 2, 1] += 0.01

    def store(name, array):
        content = array_file(array) if name.endswith(".npy") else text_file(array)
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    ours = store(names[0], images)
    result = validate_images(ours, store(names[1], images), shape=shape)
    assert result.passed and result.checked == images.size and result.error <= 5.1e-5
    assert validate_images(ours, store(names[1], images)).passed, "their shape is in the files"
    result = validate_images(ours, store(names[1], other), shape=shape)
    assert not result.passed and result.first.startswith("image 70, row 0, column 2, channel 1 is ")
    assert "image 149, row 1, column 3, channel 2" in result.worst
    fewer = store(names[1], images[:100])
    assert "the output has 150 images and the reference 100" in validate_images(ours, fewer, shape=shape).first
    more, fewer = store(names[1], images), store(names[0], images[:100])
    assert not validate_images(fewer, more, shape=shape).passed
    result = validate_images(fewer, more, shape=shape, prefix=True)
    assert result.passed and result.checked == 100 * 24


def test_files_that_hold_images(tmp_path, rng):
    np.save(tmp_path / "a.npy", images_of(rng, 2, (2, 4, 3)))
    np.save(tmp_path / "volume.npy", np.zeros((2, 3, 4), np.float32))
    texts = {"a.txt": "2\n1 2 3 4\n", "b.txt": " 3\r\n1 2 3", "volume.txt": "1 1 2 0 0", "kernel.txt": "1 0.5",
             "empty.txt": "", "a.csv": "2\n1 2 3 4\n", "damaged.npy": "x"}  # fmt: skip
    for name, content in texts.items():
        (tmp_path / name).write_text(content)
    found = {name for name in (*os.listdir(tmp_path), "gone.txt") if holds_images(tmp_path / name)}
    assert found == {"a.npy", "a.txt", "b.txt"}


def test_images_that_cannot_be_compared(tmp_path, rng):
    (tmp_path / "a.txt").write_text("2\n1 2 3 4\n")
    (tmp_path / "b.txt").write_text("2\n1 2 3 4 5 6\n")
    (tmp_path / "c.txt").write_text("2\n1 2 3\n")
    (tmp_path / "nan.txt").write_text("2\n1 2 nan 4\n")
    with pytest.raises(
        InputError, match="the images have 2 and 3 values each; only images of one size can be compared"
    ):
        validate_images(tmp_path / "a.txt", tmp_path / "b.txt")
    with pytest.raises(
        InputError, match="says that it holds 2 images; the 3 numbers that follow are no multiple of that"
    ):
        validate_images(tmp_path / "a.txt", tmp_path / "c.txt")
    for pair in (("nan.txt", "a.txt"), ("a.txt", "nan.txt"), ("nan.txt", "nan.txt")):
        result = validate_images(*(tmp_path / name for name in pair))
        assert not result.passed and result.first.startswith("image 1, number 0 is ") and result.error == np.inf
