"""NIfTI through nibabel: headers and affines are kept, values are scaled, lying and bursting files are refused."""

import gzip
import os
import struct
import tracemalloc
import zlib
from pathlib import Path

import nibabel
import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.formats.volume_formats import open_volume
from tilewright.formats.volumes import ArrayVolume
from volume_files import creating

AFFINE = np.array([[0.0, -1.5, 0, 10], [2.0, 0, 0, -20], [0, 0, 3.0, 30], [0, 0, 0, 1]])
SHAPE = (5, 6, 7)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def image(rng, dtype=np.int16, kind=nibabel.Nifti1Image):
    return kind((rng.random(SHAPE) * 100).astype(dtype), AFFINE)


def load(name, dtype=np.float64):
    with open_volume(name) as found:
        return found.load(dtype)


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32, np.float32, np.float64])
def test_what_nibabel_saves(rng, name, kind, dtype):
    saved = image(rng, dtype, kind)
    nibabel.save(saved, name)
    assert np.array_equal(load(name), np.asarray(saved.dataobj))


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
def test_scaled_and_big_endian(rng, name):
    saved = image(rng)
    raw = nibabel.Nifti1Image(saved.dataobj, AFFINE, saved.header.as_byteswapped(">"))
    raw.header.set_slope_inter(0.25, -3)
    nibabel.save(raw, name)
    with open_volume(name) as found:
        assert found.dtype.str == ">i2" and not found.wide
    assert np.abs(load(name) - nibabel.load(name).get_fdata()).max() < 1e-12


@pytest.mark.parametrize("target", ["w.nii", "w.nii.gz"])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_header_and_extensions_are_kept(rng, target, kind):
    saved = image(rng, kind=kind)
    saved.header["descrip"] = b"kept"
    saved.header.set_xyzt_units("mm", "sec")
    saved.header["cal_max"] = 7
    saved.header.set_slope_inter(2, 1)
    saved.set_qform(AFFINE, code=3)
    saved.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"hello" * 9))
    nibabel.save(saved, "v.nii")
    values = rng.standard_normal(SHAPE).astype(np.float32)
    with open_volume("v.nii") as like, creating(target, SHAPE, values.dtype, like) as output:
        output.write((0, 0, 0), values)
    found = nibabel.load(target)
    assert type(found.header) is type(saved.header)
    assert np.array_equal(found.get_fdata(dtype=np.float32), values) and found.get_data_dtype() == np.float32
    assert np.array_equal(found.affine, AFFINE) and np.allclose(found.header.get_qform(), AFFINE, atol=1e-5)
    assert found.header["descrip"].item() == b"kept" and found.header.get_xyzt_units() == ("mm", "sec")
    assert found.header["cal_max"] == 0 and found.header.extensions[0].get_content() == b"hello" * 9
    assert np.allclose(found.header.get_zooms(), saved.header.get_zooms())


def test_a_size_that_nifti_1_cannot_tell():
    values = np.ones((40_000, 1, 1), np.float32)
    with creating("w.nii", values.shape, values.dtype, ArrayVolume("a", values)) as output:
        output.write((0, 0, 0), values)
    assert isinstance(nibabel.load("w.nii"), nibabel.Nifti2Image) and np.array_equal(load("w.nii"), values)


def test_the_same_bytes_twice(rng):
    values = rng.standard_normal(SHAPE).astype(np.float32)
    for name in ("a.nii.gz", "b.nii.gz"):
        with creating(name, SHAPE, values.dtype, ArrayVolume("a", values)) as output:
            output.write((0, 0, 0), values)
    assert Path("a.nii.gz").read_bytes() == Path("b.nii.gz").read_bytes()


def test_dimensions(rng):
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 5, 6, 1, 1), np.int16), AFFINE), "v.nii")
    assert load("v.nii").shape == (4, 5, 6)
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 5, 6, 2), np.int16), AFFINE), "v.nii")
    with pytest.raises(InputError, match=r"4 dimensions, \(4, 5, 6, 2\)"):
        load("v.nii")


def nifti_bytes(rng):
    nibabel.save(image(rng), "good.nii")
    with open("good.nii", "rb") as file:
        return bytearray(file.read())


def put(data, offset, form, value):
    data[offset : offset + struct.calcsize(form)] = struct.pack(form, value)
    return data


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: bytearray(b"no volume at all"), "is no NIfTI file"),
        (lambda d: bytearray(), "is no NIfTI file"),
        (lambda d: d[:300], "is no NIfTI file"),
        (lambda d: put(d, 0, "<i", 349), "is no NIfTI file"),
        (lambda d: put(d, 344, "4s", b"ni1\0"), "half of a pair"),
        (lambda d: put(d, 40, "<h", 9), "cannot be read|dimensions"),
        (lambda d: put(d, 42, "<h", -5), r"the shape is \(-5, 6, 7\)"),
        (lambda d: put(d, 42, "<h", 6), "takes|ends 84 bytes before"),
        (lambda d: put(d, 42, "<h", 4), "takes|expands beyond"),
        (lambda d: put(d, 70, "<h", 32), "the values are complex64"),
        (lambda d: put(d, 70, "<h", 999), "cannot be read"),
        (lambda d: put(d, 108, "<f", 0.0), "the header says that the data begins at byte 0.0"),
        (lambda d: put(d, 108, "<f", float("nan")), "the header says that the data begins at byte nan"),
        (lambda d: put(d, 108, "<f", 1e30), "the header says that the data begins at byte 1.0"),
        (lambda d: put(d, 108, "<f", 400.0), "takes|ends 48 bytes before"),
        (lambda d: put(put(d, 112, "<f", 2.0), 116, "<f", float("inf")), "scl_inter is inf; a finite number is wanted"),
        (lambda d: d[:-1], "takes|ends 1 bytes before"),
        (lambda d: d + b"\0", "takes|expands beyond"),
    ],
)
def test_what_is_refused(rng, capfd, ending, change, message):
    data = bytes(change(nifti_bytes(rng)))
    name = "v.nii" + ending
    with open(name, "wb") as file:
        file.write(gzip.compress(data) if ending else data)
    with pytest.raises(InputError, match=message) as caught:
        load(name)
    assert caught.value.path == name and capfd.readouterr().err == ""


def test_sizes_beyond_what_the_file_can_expand_to(rng):
    data = nifti_bytes(rng)
    for axis in range(3):
        put(data, 42 + 2 * axis, "<h", 32767)
    with open("v.nii.gz", "wb") as file:
        file.write(gzip.compress(bytes(data)))
    with pytest.raises(InputError, match=r"70,362,301,923,326 bytes; the file's .* expand to at most"):
        load("v.nii.gz")


def test_a_bomb(rng):
    """A quarter of a gigabyte of zeros behind a small volume is refused without being expanded."""
    code = zlib.compressobj(1, zlib.DEFLATED, 31)
    data = code.compress(bytes(nifti_bytes(rng)))
    zeros = bytes(1 << 22)
    data += b"".join(code.compress(zeros) for _ in range(64)) + code.flush()
    with open("v.nii.gz", "wb") as file:
        file.write(data)
    tracemalloc.start()
    with pytest.raises(InputError, match="expands beyond the 772 bytes that its header states"):
        load("v.nii.gz")
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_a_damaged_stream(rng):
    data = bytearray(gzip.compress(bytes(nifti_bytes(rng))))
    data[len(data) // 2] ^= 0xFF
    with open("v.nii.gz", "wb") as file:
        file.write(data)
    with pytest.raises(InputError, match=r"damaged|ends|beyond"):
        load("v.nii.gz")
    with open("v.nii.gz", "wb") as file:
        file.write(b"not gzip at all, but long enough to be one")
    with pytest.raises(InputError, match="is no gzip file or damaged"):
        load("v.nii.gz")


def test_a_wrong_suffix_is_named(rng):
    data = bytes(nifti_bytes(rng))
    for name, content, message in (
        ("packed.nii", gzip.compress(data), r"is compressed with gzip.*Rename it to packed\.nii\.gz$"),
        ("plain.nii.gz", data, r"is not compressed.*Rename it to plain\.nii$"),
        ("m.nii.gz", gzip.compress(b"\0\0\0\1" + data[4:]), r"FreeSurfer.*Rename it to m\.mgz.*'m\.nii\.gz'"),
        ("p.nii", b"\x89PNG\r\n" + data[6:], r"is no NIfTI file: it is a PNG picture\. Convert it"),
    ):
        with open(name, "wb") as file:
            file.write(content)
        with pytest.raises(InputError, match=message):
            load(name)


def test_several_gzip_members(rng):
    data = bytes(nifti_bytes(rng))
    with open("v.nii.gz", "wb") as file:
        file.write(gzip.compress(data[:500]) + gzip.compress(b"") + gzip.compress(data[500:]))
    assert np.array_equal(load("v.nii.gz"), load("good.nii"))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_mutated_files(rng, ending):
    good, open_before = nifti_bytes(rng), len(os.listdir("/proc/self/fd"))
    for _ in range(300):
        data = bytearray(good[: rng.integers(1, len(good))] if rng.random() < 0.1 else good)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(0, min(len(data), 360))] = rng.integers(0, 256)
        with open("v.nii" + ending, "wb") as file:
            file.write(gzip.compress(bytes(data), 1) if ending else data)
        try:
            assert load("v.nii" + ending).ndim == 3
        except InputError:
            continue
    assert len(os.listdir("/proc/self/fd")) <= open_before + 2


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_a_file_cut_short_anywhere_is_refused(rng, ending, kind):
    """NIfTI-2 cut between the header of NIfTI-1 and its own was a ValueError; a .gz without its checksum was read."""
    saved = image(rng, np.uint8, kind)
    nibabel.save(saved, f"v.nii{ending}")
    whole = Path(f"v.nii{ending}").read_bytes()
    for count in range(len(whole)):
        Path(f"v.nii{ending}").write_bytes(whole[:count])
        with pytest.raises(InputError):
            load(f"v.nii{ending}")
    if ending:
        for count in range(340, 560):  # cut before it was compressed
            Path("v.nii.gz").write_bytes(gzip.compress(gzip.decompress(whole)[:count]))
            with pytest.raises(InputError):
                load("v.nii.gz")


def test_gzip_members_without_content_are_refused(rng):
    nibabel.save(image(rng), "v.nii.gz")
    whole = Path("v.nii.gz").read_bytes()
    Path("v.nii.gz").write_bytes(gzip.compress(b"") * 900 + whole + gzip.compress(b"") * 900)
    load("v.nii.gz")
    Path("v.nii.gz").write_bytes(gzip.compress(b"") * 50_000 + whole)
    with pytest.raises(InputError, match="1,000 members in a row expand to nothing"):
        load("v.nii.gz")


def test_a_scale_that_float32_cannot_hold_is_refused(rng):
    """It became infinite without a word."""
    saved = image(rng)
    nibabel.save(saved, "v.nii")
    data = bytearray(Path("v.nii").read_bytes())
    struct.pack_into("<f", data, 112, 3e38)
    Path("v.nii").write_bytes(data)
    with pytest.raises(InputError, match=r"too large for float32\. Store the volume as float64"):
        load("v.nii", np.float32)
    assert np.isfinite(load("v.nii")).all()


@pytest.mark.parametrize(("bits", "slope"), [(0x7F800001, 2.0), (0x7FEFFFFF_FFFFFFFF, 1e300)])
def test_a_scaled_value_that_is_not_finite_is_refused_without_a_warning(rng, bits, slope):
    """A NaN that signals, a product beyond float64: NumPy warned on the terminal first."""
    wide = bits >> 32
    array = np.full((2, 3, 4), bits, np.uint64 if wide else np.uint32).view(np.float64 if wide else np.float32)
    data = bytearray(nibabel.Nifti2Image(array, np.eye(4)).to_bytes())
    put(data, 176, "<d", slope)
    put(data, 184, "<d", 1.0)
    Path("v.nii").write_bytes(data)
    with pytest.raises(InputError, match="every value must be finite"):
        load("v.nii")
