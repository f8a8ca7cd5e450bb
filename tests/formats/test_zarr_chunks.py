"""No chunk ends the process, hangs it or yields bytes that are not in its file, whatever its codec believes."""

import random
import struct

import numcodecs
import numpy as np
import pytest
import zarr

from mutating import mutants, survey
from tilewright.formats.inflate import GZIP, Inflater, expanded_bytes
from tilewright.formats.volume_formats import open_volume
from tilewright.formats.zarr_chunks import check_chunk
from tilewright.formats.zarr_layout import read_layout

SHAPE = (8, 8, 8)
BLOSC = {f"blosc {name}": {"cname": name} for name in ("lz4", "lz4hc", "blosclz", "zlib", "zstd")}
BLOSC |= {
    "blosc bits": {"cname": "lz4", "shuffle": "bitshuffle"},
    "blosc plain": {"cname": "lz4", "shuffle": "noshuffle"},
}
SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
OTHERS_3 = {
    "none": None,
    "zstd": zarr.codecs.ZstdCodec(),
    "gzip": zarr.codecs.GzipCodec(),
    "zstd, crc32c": (zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()),
    "crc32c": (zarr.codecs.Crc32cCodec(),),
}
OTHERS_2 = {
    "none": None, "zstd": numcodecs.Zstd(), "gzip": numcodecs.GZip(), "zlib": numcodecs.Zlib(), "lz4": numcodecs.LZ4(),
}  # fmt: skip
EVERY = [(2, name) for name in (*BLOSC, *OTHERS_2)] + [(3, name) for name in (*BLOSC, *OTHERS_3, "shards", "transpose")]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make(version, codec):
    """An array of one chunk, or one shard of eight; its file's name and content."""
    options = {"chunks": SHAPE, "zarr_format": version}
    if codec in BLOSC:
        words = {"shuffle": "shuffle", **BLOSC[codec]}
        code = numcodecs.Blosc(words["cname"], 5, SHUFFLES[words["shuffle"]], 256)
        options["compressors"] = (
            code if version == 2 else zarr.codecs.BloscCodec(clevel=5, typesize=4, blocksize=256, **words)
        )
    elif codec == "shards":
        options |= {"chunks": (4, 4, 4), "shards": SHAPE, "compressors": zarr.codecs.BloscCodec(cname="lz4")}
    elif codec == "transpose":
        options["filters"] = (zarr.codecs.TransposeCodec(order=(2, 1, 0)),)
    else:
        options["compressors"] = (OTHERS_2 if version == 2 else OTHERS_3)[codec]
    array = np.random.default_rng(1).integers(0, 9, SHAPE).astype(np.float32)
    zarr.create_array("v.zarr", shape=SHAPE, dtype="f4", **options)[...] = array
    name = "v.zarr/0.0.0" if version == 2 else "v.zarr/c/0/0/0"
    with open(name, "rb") as file:
        return name, file.read()


def reader(name):
    def read(data):
        with open(name, "wb") as file:
            file.write(data)
        with open_volume("v.zarr") as volume:
            volume.finite = False
            return volume.load(np.dtype(np.float32)).tobytes()

    return read


@pytest.mark.parametrize(("version", "codec"), EVERY)
def test_a_chunk_cut_short_is_refused(version, codec):
    name, whole = make(version, codec)
    cases = [whole[:count] for count in range(0, len(whole), 1 + len(whole) // 30)]
    found = survey(reader(name), [*cases, whole[:-1]])
    assert not found.wrong and found.counts == {"refused": len(cases) + 1}, (found.counts, found.wrong[:3])


@pytest.mark.parametrize(("version", "codec"), EVERY)
def test_a_chunk_with_bytes_behind_it_is_refused(version, codec):
    name, whole = make(version, codec)
    cases = [whole + bytes(1), whole + bytes(4096), *([] if codec == "shards" else [whole + whole])]
    found = survey(reader(name), cases)
    assert not found.wrong and found.counts == {"refused": len(cases)}, found


@pytest.mark.parametrize(("version", "codec"), EVERY)
def test_mutated_chunks(rng, version, codec):
    name, whole = make(version, codec)
    seed = int(rng.integers(2**32))
    found = survey(reader(name), mutants(random.Random(seed), [whole], 24, text=False))
    assert not found.wrong, (seed, found.wrong[:3])


@pytest.mark.parametrize("codec", BLOSC)
@pytest.mark.parametrize(
    ("offset", "format", "values"),
    [
        (0, "B", (0, 1, 3, 4, 255)),
        (3, "B", (0,)),
        (4, "<I", (0, 1, 2047, 2049, 2**31 - 1, 2**31, 2**32 - 1)),
        (8, "<I", (0, 2049, 2**31 - 1, 2**31, 2**32 - 1, 1)),
        (12, "<I", (0, 15, 16, 2**31 - 1, 2**31, 2**32 - 1)),
        (16, "<I", (0, 15, 19, 2**31 - 1, 2**31, 2**32 - 1)),
    ],
    ids=["version", "typesize", "nbytes", "blocksize", "cbytes", "first block"],
)
def test_a_blosc_header_that_lies(codec, offset, format, values):
    _, whole = make(3, codec)
    layout = read_layout("v.zarr", "input")
    assert check_chunk(layout, whole) is None and not whole[2] & 2
    for value in values:
        data = bytearray(whole)
        struct.pack_into(format, data, offset, value)
        assert check_chunk(layout, data), (offset, value)


def test_a_blosc_chunk_that_is_stored_as_it_is(rng):
    make(3, "blosc lz4")
    layout = read_layout("v.zarr", "input")
    data = numcodecs.Blosc("lz4", clevel=0).encode(rng.bytes(2048))
    assert check_chunk(layout, data) is None and data[2] & 2
    assert "in 2,063" in check_chunk(layout, data[:12] + struct.pack("<I", 2063) + data[16:-1])


def test_blosc_chunks_of_every_writer_pass(rng):
    """Sizes, codecs, levels, elements and blocks as c-blosc makes them, and what c-blosc decodes then."""
    _, _ = make(3, "blosc lz4")
    layout = read_layout("v.zarr", "input")
    for number in range(400):
        name = ("lz4", "lz4hc", "blosclz", "zlib", "zstd")[number % 5]
        code = numcodecs.Blosc(name, int(rng.integers(10)), int(rng.integers(3)), int(rng.choice((0, 0, 16, 256, 999))))
        array = rng.integers(0, rng.choice((1, 3, 2**31)), 512).astype(rng.choice(("f4", "i4")))
        array = array.view(rng.choice(("f4", "u1", "f8", "c16", "i2")))
        assert check_chunk(layout, code.encode(array)) is None


def test_inflating_takes_members_whatever_their_sizes(rng):
    parts = [rng.bytes(int(n)) for n in (0, 1, 70_000, 0, 300_000, 5, 0)]
    data = b"".join(numcodecs.GZip().encode(part) for part in parts)
    assert expanded_bytes(memoryview(data), GZIP, 1 << 20) == 370_006
    assert expanded_bytes(memoryview(data[:-1]), GZIP, 1 << 20) is None
    places = iter(range(0, len(data), 100))
    pieces = Inflater(lambda count: data[(a := next(places, len(data))) : a + 100], GZIP)
    found = []
    while part := pieces.next(1000):
        found.append(part)
        assert len(part) <= 1000
    assert b"".join(found) == b"".join(parts) and pieces.whole


def test_empty_members_cost_no_more_than_their_bytes():
    """zlib copies what it leaves of each call's data: 1,001 members in front of 64 MiB would copy 32 GiB."""
    empty, handed = numcodecs.GZip().encode(b""), []
    data = empty * 900 + numcodecs.GZip().encode(bytes(4))
    places = [0]

    def read(count):
        piece = data[places[0] : places[0] + count]
        places[0] += len(piece)
        handed.append(len(piece))
        return piece

    pieces = Inflater(read, GZIP)
    assert pieces.next(100) == bytes(4) and max(handed) <= 256
    assert expanded_bytes(memoryview(empty * 1001), GZIP, 10) is None
