"""Headers of .npy files: NumPy's own are read, all others are refused before anything is allocated."""

import io
import pickle

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.formats.files import InputFile
from tilewright.formats.npy import header_bytes, read_header


def header_of(path):
    with InputFile(path, "input") as file:
        return read_header(file)


def saved(array, version=(1, 0)):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version)
    return stream.getvalue()


@pytest.mark.parametrize("dtype", ["?", "i1", "<i2", ">i4", "<u8", "<f2", "<f4", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_what_numpy_saves_is_read(tmp_path, dtype, order, version):
    array = np.zeros((2, 3, 4), dtype, order=order)
    (tmp_path / "a.npy").write_bytes(saved(array, version))
    header = header_of(tmp_path / "a.npy")
    assert (header.shape, header.dtype, header.fortran) == ((2, 3, 4), array.dtype, order == "F")
    assert header.offset + array.nbytes == (tmp_path / "a.npy").stat().st_size


@pytest.mark.parametrize("fortran", [False, True])
def test_our_header_is_numpys(tmp_path, rng, fortran):
    array = rng.standard_normal((3, 4, 5)).astype(np.float32)
    data = np.asfortranarray(array).tobytes("F") if fortran else array.tobytes()
    (tmp_path / "a.npy").write_bytes(header_bytes((3, 4, 5), array.dtype, fortran=fortran) + data)
    assert np.array_equal(np.load(tmp_path / "a.npy"), array)


def with_header(text, data=b"", length=None):
    text = text.encode("latin-1")
    return b"\x93NUMPY\x01\x00" + (len(text) if length is None else length).to_bytes(2, "little") + text + data


def fields(descr="'<f4'", order="False", shape="(2, 2, 2)"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


class Evil:
    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


OBJECTS = b"\x93NUMPY\x01\x00" + (76).to_bytes(2, "little") + fields("'|O'", shape="(1,)").ljust(76).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\x93NUMPY", "is no .npy file"),
        (with_header(fields())[:40], "the file has 40 bytes, and its header alone takes"),
        (b"\x93NUMPX\x01\x00\x00\x00\x00\x00\x00", "is no .npy file"),
        (b"\x93NUMPY\x04\x00" + bytes(100), "version 1 to 3"),
        (with_header(fields(), bytes(31)), r"takes .* bytes; the file has .* \(1 missing\)"),
        (with_header(fields(), bytes(33)), r"\(1 too many\)"),
        (with_header(fields(shape="(-2, 2, -2)"), bytes(32)), r"the header's shape is \(-2, 2, -2\)"),
        (with_header(fields(shape="(1 << 40, 2, 2)")), "cannot be read"),
        (with_header(fields(shape=f"({2**40}, {2**40}, {2**40})")), "the header's shape is"),
        (with_header(fields(shape=f"({2**30}, {2**30}, 0)") + " ", b"1"), "1 too many"),
        (with_header(fields(shape="(True, 2, 4)"), bytes(32)), "the header's shape"),
        (with_header(fields(shape="(2.0, 2, 2)"), bytes(32)), "the header's shape"),
        (with_header(fields(shape="[2, 2, 2]"), bytes(32)), "the header's shape"),
        (with_header(fields(shape="(" + "9" * 5000 + ", 1, 1)")), "cannot be read"),
        (with_header("(" * 9000), "cannot be read"),
        (with_header("-" * 9000 + "1"), "cannot be read"),
        (with_header(fields(order="0"), bytes(32)), "its fortran_order 0"),
        (with_header(fields("'<c8'"), bytes(64)), "holds <c8; bool, integers or floats"),
        (with_header(fields("'<f16'"), bytes(128)), "holds <f16"),
        (with_header(fields("'<M8[s]'"), bytes(64)), "holds <M8"),
        (with_header(fields("[('a', '<f4')]"), bytes(32)), "holds"),
        (with_header(fields("'nonsense'"), bytes(32)), "cannot be read"),
        (with_header("{}", bytes(32)), "cannot be read"),
        (with_header("__import__('os')", bytes(32)), "cannot be read"),
        (with_header("", bytes(9), length=60_000), "the header says it has 60,000 bytes; at most"),
        (OBJECTS + pickle.dumps(Evil()), "objects, which are pickles and never loaded"),
    ],
)
def test_what_is_refused(tmp_path, data, message):
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        header_of(tmp_path / "a.npy")
    assert caught.value.path == str(tmp_path / "a.npy") and len(str(caught.value)) < 500


def test_mutated_headers(tmp_path, rng):
    good = bytearray(saved(np.zeros((2, 3, 4), np.float32)))
    for _ in range(2000):
        data = bytearray(good[: rng.integers(1, len(good))] if rng.random() < 0.2 else good)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(0, min(len(data), 100))] = rng.integers(0, 256)
        (tmp_path / "a.npy").write_bytes(data)
        try:
            header = header_of(tmp_path / "a.npy")
        except InputError:
            continue
        assert header.offset + np.prod(header.shape) * header.dtype.itemsize == len(data)
