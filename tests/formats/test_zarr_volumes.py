"""Zarr arrays of both versions: chunks, codecs and attributes are kept; nothing unchecked reaches a decoder."""

import json
import os
import struct
import zlib

import google_crc32c
import numcodecs
import numpy as np
import pytest
import zarr

from tilewright.errors import InputError, ResourceError
from tilewright.formats import zarr_chunks, zarr_volumes
from tilewright.formats.volume_formats import open_volume
from tilewright.formats.zarr_chunks import check_chunk
from tilewright.formats.zarr_volumes import check_zarr
from volume_files import creating

SHAPE, CHUNKS = (9, 10, 11), (4, 5, 6)
V3 = {
    "none": None,
    "zstd": zarr.codecs.ZstdCodec(level=1),
    "blosc": zarr.codecs.BloscCodec(cname="lz4"),
    "gzip": zarr.codecs.GzipCodec(level=1),
    "zstd with a checksum": (zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()),
}
V2 = {
    "none": None,
    "zstd": numcodecs.Zstd(1),
    "blosc": numcodecs.Blosc("zstd"),
    "gzip": numcodecs.GZip(1),
    "zlib": numcodecs.Zlib(1),
    "lz4": numcodecs.LZ4(),
}
EVERY = [(3, name) for name in V3] + [(2, name) for name in V2]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def volume(rng):
    return rng.standard_normal(SHAPE).astype(np.float32)


def make(array, version=3, codec="zstd", name="v.zarr", **options):
    compressors = (V3 if version == 3 else V2)[codec]
    options = {"chunks": CHUNKS, "compressors": compressors, "zarr_format": version, **options}
    made = zarr.create_array(name, shape=array.shape, dtype=array.dtype, overwrite=True, **options)
    made[...] = array
    return made


def load(name="v.zarr"):
    with open_volume(name) as found:
        return found.load(np.float64)


def copy(like, array, target="w.zarr"):
    with open_volume(like) as source, creating(target, array.shape, array.dtype, source) as output:
        d, h, w = output.unit
        for z in range(0, SHAPE[0], d):
            for y in range(0, SHAPE[1], h):
                for x in range(0, SHAPE[2], w):
                    output.write((z, y, x), np.ascontiguousarray(array[z : z + d, y : y + h, x : x + w]))
    return zarr.open_array(target, mode="r")


@pytest.mark.parametrize(("version", "codec"), EVERY)
@pytest.mark.parametrize("call_bytes", [1, 2000, 1 << 25])
def test_both_versions_and_every_codec(rng, monkeypatch, version, codec, call_bytes):
    monkeypatch.setattr(zarr_volumes, "CALL_BYTES", call_bytes)
    array = volume(rng)
    made = make(array, version, codec, attributes={"units": ["mm"] * 3})
    assert np.array_equal(load(), array)
    found = copy("v.zarr", -array)
    assert np.array_equal(found[...], -array) and found.attrs.asdict() == {"units": ["mm"] * 3}
    assert (found.metadata.zarr_format, found.chunks) == (version, CHUNKS)
    assert [str(c) for c in found.compressors] == [str(c) for c in made.compressors]


@pytest.mark.parametrize("codec", V3)
def test_shards(rng, codec):
    array = volume(rng)
    make(array, codec=codec, chunks=(2, 5, 3), shards=(4, 5, 6), dimension_names=("z", "y", "x"))
    with open_volume("v.zarr") as found:
        assert found.unit == (2, 5, 3)
        assert np.array_equal(found.load(np.float32), array)
        part = np.empty((1, 2, 2), np.float32)
        found.read_into((5, 1, 4), part)
        assert np.array_equal(part, array[5:6, 1:3, 4:6])
        with creating("w.zarr", SHAPE, array.dtype, found) as output:
            assert output.unit == (4, 5, 6)
    found = copy("v.zarr", array)
    assert np.array_equal(found[...], array)
    assert (found.shards, found.chunks, found.metadata.dimension_names) == ((4, 5, 6), (2, 5, 3), ("z", "y", "x"))


@pytest.mark.parametrize(
    "options", [{"order": "F"}, {"chunk_key_encoding": {"name": "v2", "separator": "/"}}, {"fill_value": 7}]
)
def test_layouts_of_version_2(rng, options):
    array = volume(rng)
    made = make(array, 2, **options)
    os.remove("v.zarr/1.1.1" if os.path.exists("v.zarr/1.1.1") else "v.zarr/1/1/1")
    assert np.array_equal(load(), made[...]) and not np.array_equal(load(), array)
    assert np.array_equal(copy("v.zarr", array)[...], array)


def test_layouts_of_version_3(rng):
    array = volume(rng).astype(np.int16)
    make(
        array,
        filters=[zarr.codecs.TransposeCodec(order=(2, 1, 0))] if False else None,
        serializer=zarr.codecs.BytesCodec(endian="big"),
    )
    assert np.array_equal(load(), array)
    for separator in ("/", "."):
        make(array, chunk_key_encoding={"name": "default", "separator": separator})
        assert np.array_equal(load(), array)


def test_an_earlier_array_is_replaced_as_a_whole(rng):
    array = volume(rng)
    make(np.zeros((99, 3, 3), np.int8), 2, chunks=(1, 1, 1), name="w.zarr")
    make(array)
    assert np.array_equal(copy("v.zarr", array)[...], array)
    assert sorted(os.listdir("w.zarr")) == ["c", "zarr.json"] and sorted(os.listdir(".")) == ["v.zarr", "w.zarr"]


@pytest.mark.parametrize("other", ["notes.txt", "0/../precious", "group"])
def test_what_is_no_array_is_never_replaced(other):
    if other == "group":
        zarr.create_group("w.zarr").create_array("a", shape=(3,), dtype="f4")
    else:
        os.makedirs("w.zarr/0")
        with open(f"w.zarr/{other}", "w") as file:
            file.write("mine")
    before = sorted(os.listdir("w.zarr"))
    with pytest.raises(ResourceError, match=r"holds files that no Zarr array has .*nothing was deleted"):
        check_zarr("w.zarr")
    assert sorted(os.listdir("w.zarr")) == before and os.listdir(".") == ["w.zarr"]


def test_a_file_is_not_replaced_by_a_directory():
    with open("w.zarr", "w") as file:
        file.write("mine")
    with pytest.raises(ResourceError, match="is a file, and a Zarr array is a directory"):
        check_zarr("w.zarr")


@pytest.mark.parametrize("version", [2, 3])
def test_groups(rng, version):
    group = zarr.create_group("v.zarr", zarr_format=version)
    group.create_array("scale0", shape=(3, 3, 3), dtype="f4")
    with pytest.raises(InputError, match=r"is a Zarr group, not an array. Name one of its arrays: v.zarr/scale0"):
        load()
    assert load("v.zarr/scale0").shape == (3, 3, 3)


def metadata(change, version=3):
    name = "v.zarr/zarr.json" if version == 3 else "v.zarr/.zarray"
    with open(name) as file:
        fields = json.load(file)
    change(fields)
    with open(name, "w") as file:
        json.dump(fields, file)


def codec(name, **configuration):
    return lambda f: f["codecs"].append({"name": name, "configuration": configuration})


LONG = "x" * 100_000  # which zarr quotes as a whole
DELTA = {"name": "numcodecs.delta", "configuration": {"dtype": "<f4"}}
BAD_3 = [
    (lambda f: f.update(shape=[9, 10]), "zarr cannot open the array: .* the same number of dimensions"),
    (lambda f: f.update(shape=[-9, 10, 11]), "non-negative"),
    (lambda f: f.update(shape=[2**48, 10, 11]), "the shape is"),
    (lambda f: f.update(shape=[2**40, 2**40, 11]), "every size must be|the shape is"),
    (lambda f: f.update(shape=[0, 10, 11]), "every size must be at least 1"),
    (lambda f: f.update(shape="9"), "Expected an iterable of integers"),
    (lambda f: f["chunk_grid"]["configuration"].update(chunk_shape=[0, 5, 6]), "the chunks are"),
    (lambda f: f["chunk_grid"]["configuration"].update(chunk_shape=[2**20, 2**20, 1]), "the chunks are"),
    (lambda f: f["chunk_grid"].update(name="rectangular"), "Unknown chunk grid"),
    (lambda f: f.update(data_type="complex64", fill_value=[0, 0]), "the values are complex64"),
    (lambda f: f.update(data_type={"name": "numpy.datetime64"}), "Invalid data_type"),
    (lambda f: f.update(codecs=[]), "At least one ArrayBytesCodec is required"),
    (lambda f: f.pop("codecs"), r"zarr cannot open the array: KeyError\('codecs'\)"),
    (codec("numcodecs.pickle"), "Unknown codec: 'numcodecs.pickle'"),
    (codec("sharding_indexed"), "zarr cannot open the array: TypeError.*ShardingCodec"),
    (
        lambda f: f["codecs"].insert(0, {"name": "numcodecs.delta", "configuration": {"dtype": "<f4"}}),
        "stored with 'num",
    ),
    (lambda f: f.update(codecs=[{"name": "vlen-utf8"}]), "stored with 'vlen-utf8'"),
    (lambda f: f.update(node_type="group"), "is a Zarr group"),
    (lambda f: f.update(zarr_format=4), "Invalid zarr_format: 4"),
    (lambda f: f.update(storage_transformers=[{"name": "x"}]), "storage transformers"),
    (lambda f: f.update(fill_value="nonsense"), "zarr cannot open the array"),
    (lambda f: f.update(fill_value=1e300), r"fill_value is 1e\+300, too large for float32"),
    (lambda f: f.update(fill_value=10**400), "fill_value is 1000.*too large for float32"),
    (codec(LONG), "Unknown codec: 'xxx"),
    (lambda f: f["codecs"][0].update(configuration={"endian": LONG}), "zarr cannot open the array"),
    (lambda f: f.update({LONG: 1}), "zarr cannot open the array"),
]
BAD_2 = [
    (lambda f: f.update(filters=[{"id": "pickle"}]), "zarr cannot open the array: .*'pickle'"),
    (lambda f: f.update(compressor={"id": "pickle"}), "zarr cannot open the array: .*'pickle'"),
    (lambda f: f.update(compressor={"id": "lzma"}), "stored with 'lzma'"),
    (lambda f: f.update(dtype="|O"), "zarr cannot open the array: .*O"),
    (lambda f: f.update(dtype=[["a", "<f4"]], fill_value=None), "the values are"),
    (lambda f: f.update(dtype="<c8", fill_value=None), "the values are complex64"),
    (lambda f: f.update(dimension_separator="../"), r"Expected an '\.' or '/' separator"),
    (lambda f: f.update(dtype=",f4"), "zarr cannot open the array: .*',f4'"),  # NumPy reads it as Python's syntax
    (lambda f: f.update(dtype=LONG), "zarr cannot open the array: .*xxx"),
    (lambda f: f.update(order=LONG), "zarr cannot open the array"),
    (lambda f: f.update(fill_value=-1e300), r"fill_value is -1e\+300, too large for <f4"),
    (lambda f: f.update(chunks=[4, 5]), "zarr cannot open the array: .* the same length"),
    (lambda f: f.pop("compressor"), "expands to .* bytes; the metadata says 480"),  # zarr takes it for none
    (lambda f: f.update(filters=[{"id": "delta", "dtype": "<f4"}]), "stored with 'filters'"),
    (lambda f: f.update(filters=[{"id": "vlen-utf8"}], dtype="|O", fill_value=""), "the values are"),
]


@pytest.mark.parametrize(("version", "change", "message"), [(3, *b) for b in BAD_3] + [(2, *b) for b in BAD_2])
def test_metadata_that_is_refused(rng, version, change, message):
    make(volume(rng), version)
    metadata(change, version)
    with pytest.raises(InputError, match=message) as caught:
        load()
    assert caught.value.path.startswith("v.zarr") and len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"[" * 200_000, b'{"a":' * 200_000, b"\xff\xfe", b'{"shape": 1e999}']
)
def test_metadata_that_is_no_json(rng, data):
    make(volume(rng))
    with open("v.zarr/zarr.json", "wb") as file:
        file.write(data)
    with pytest.raises(InputError, match="metadata"):
        load()


def test_half_of_the_metadata(rng):
    make(volume(rng))
    with open("v.zarr/zarr.json", "wb") as file:
        file.write(b'{"shape":')
    with pytest.raises(InputError, match="metadata cannot be read: the JSON is not whole, it ends at byte 9"):
        load()


def test_metadata_with_a_key_that_occurs_twice(rng):
    make(volume(rng))
    with open("v.zarr/zarr.json", "r+") as file:
        text = file.read()
        file.seek(0)
        file.write(text.replace("{", '{"shape": [1, 2, 3], ', 1))
    with pytest.raises(InputError, match="the key 'shape' occurs twice"):
        load()


def test_metadata_that_is_too_large(rng):
    make(volume(rng))
    os.truncate("v.zarr/zarr.json", (16 << 20) + 1)
    with pytest.raises(InputError, match="16,777,217 bytes; at most 16,777,216 are allowed"):
        load()


def test_no_array(tmp_path):
    (tmp_path / "v.zarr").mkdir()
    with pytest.raises(InputError, match=r"a directory without zarr.json or .zarray"):
        load()


def chunk_name(version):
    return "v.zarr/c/1/1/0" if version == 3 else "v.zarr/1.1.0"


BOMBS = {
    "zstd": lambda n: numcodecs.Zstd(1).encode(bytes(n)),
    "blosc": lambda n: numcodecs.Blosc("lz4").encode(bytes(n)),
    "gzip": lambda n: numcodecs.GZip(9).encode(bytes(n)),
    "zlib": lambda n: zlib.compress(bytes(n), 9),
    "lz4": lambda n: numcodecs.LZ4().encode(bytes(n)),
    "none": bytes,
}


@pytest.mark.parametrize(("version", "codec"), EVERY[:4] + EVERY[5:])
@pytest.mark.parametrize("size", [479, 481, 1 << 24])
def test_chunks_that_become_another_size(rng, monkeypatch, version, codec, size):
    make(volume(rng), version, codec)
    with open(chunk_name(version), "wb") as file:
        file.write(BOMBS[codec](size))
    with pytest.raises(InputError, match=r"expands to .* bytes; the metadata says 480|the chunk's file has") as caught:
        load()
    assert caught.value.path == chunk_name(version)


@pytest.mark.parametrize(("version", "codec"), EVERY)
def test_damaged_chunks(rng, version, codec):
    array = volume(rng)
    make(array, version, codec)
    with open(chunk_name(version), "rb") as file:
        good = file.read()
    for _ in range(20):
        data = bytearray(good[: rng.integers(0, len(good))] if rng.random() < 0.3 else good)
        for _ in range(rng.integers(1, 3) if data else 0):
            data[rng.integers(0, len(data))] = rng.integers(0, 256)
        with open(chunk_name(version), "wb") as file:
            file.write(data)
        try:
            load()
        except InputError as error:
            assert error.path.startswith("v.zarr")


def test_an_unknown_content_size_is_refused(rng):
    make(volume(rng))
    layout = open_volume("v.zarr").layout
    frame = bytearray(numcodecs.Zstd(1).encode(bytes(480)))
    assert check_chunk(layout, frame) is None
    frame[4] &= 0x1F  # no single segment, no content size
    assert "an unknown number of bytes" in check_chunk(layout, frame)
    assert check_chunk(layout, b"") is not None and check_chunk(layout, b"\x28\xb5\x2f\xfd\xe0") is not None


def test_zstd_sizes_of_every_width(rng):
    for size in (1, 255, 256, 65_791, 65_792, 1 << 20):
        frame = numcodecs.Zstd(1).encode(rng.bytes(size))
        assert zarr_chunks._zstd_size(memoryview(frame)) == size


def test_a_gzip_chunk_of_several_members(rng):
    array = volume(rng)
    make(array, 3, "gzip")
    with open(chunk_name(3), "rb") as file:
        data = numcodecs.GZip().decode(file.read())
    with open(chunk_name(3), "wb") as file:
        file.write(numcodecs.GZip().encode(data[:100]) + numcodecs.GZip().encode(data[100:]))
    assert np.array_equal(load(), array)
    with open(chunk_name(3), "ab") as file:
        file.write(numcodecs.GZip().encode(bytes(1 << 22)))
    with pytest.raises(InputError, match=r"expands to more bytes|the chunk's file has"):
        load()


@pytest.mark.parametrize(("entry", "value"), [(0, 2**63), (1, 2**62), (1, 3), (0, 2**64 - 2), (0, 1)])
def test_shards_that_lie(rng, entry, value):
    """Of the index of a shard's four chunks, an offset or a length is changed, and the checksum mended."""
    make(volume(rng), chunks=(2, 5, 3), shards=(4, 5, 6))
    with open("v.zarr/c/1/1/0", "rb") as file:
        data = bytearray(file.read())
    place = len(data) - 4 - 16 * 4 + 8 * entry
    data[place : place + 8] = struct.pack("<Q", value)
    data[-4:] = struct.pack("<I", google_crc32c.value(bytes(data[-4 - 16 * 4 : -4])))
    with open("v.zarr/c/1/1/0", "wb") as file:
        file.write(data)
    for start, shape in [((0, 0, 0), SHAPE), ((4, 5, 0), (1, 1, 1))]:
        with open_volume("v.zarr") as found, pytest.raises(InputError):
            found.read_into(start, np.empty(shape, np.float32))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_chunk_that_is_a_pipe(rng):
    make(volume(rng))
    os.remove(chunk_name(3))
    os.mkfifo(chunk_name(3))
    with pytest.raises(InputError, match="not a regular file"):
        load()
