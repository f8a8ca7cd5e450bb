"""Rows of numbers from text and .npy: every wrong byte is named, in any division into batches and chunks."""

import os

import numpy as np
import pytest

from tilewright.errors import InputError, UsageError
from tilewright.formats import tables
from tilewright.formats.tables import open_table

WIDTH = 3


@pytest.fixture(name="values")
def _values(rng):
    return rng.standard_normal((11, WIDTH)).astype(np.float32)


def text(values, separator=" "):
    return f"{len(values)}\n" + separator.join(repr(float(x)) for x in values.ravel())


@pytest.fixture(name="opened")
def _opened(tmp_path):
    """opened("text" or array, ...) -> Table, closed at the end."""
    kept = []

    def call(content, name=None, **options):
        name = name or ("in.txt" if isinstance(content, str | bytes) else "in.npy")
        path = tmp_path / name
        if isinstance(content, np.ndarray):
            np.save(path, content, allow_pickle=True)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        kept.append(open_table(path, **{"shape": (WIDTH,), **options}))
        return kept[-1]

    yield call
    for table in kept:
        table.close()


@pytest.mark.parametrize("kind", ["text", "array"])
@pytest.mark.parametrize("size", [1, 2, 4, 11, 100])
@pytest.mark.parametrize("count", [None, 1, 7, 11])
def test_batches(opened, values, monkeypatch, kind, size, count):
    monkeypatch.setattr(tables, "CHUNK_BYTES", 50)
    table = opened(text(values) if kind == "text" else values, count=count)
    batches = list(table.batches(size))
    total = count or 11
    assert table.total == total and np.concatenate([b.values for b in batches]).tobytes() == values[:total].tobytes()
    assert all(len(batch.values) == size for batch in batches[:-1])
    assert batches[-1].end <= table.bytes and (count not in (None, 11) or batches[-1].end == table.bytes)


@pytest.mark.parametrize("kind", ["text", "array"])
def test_any_rows_in_any_order(opened, values, rng, monkeypatch, kind):
    monkeypatch.setattr(tables, "CHUNK_BYTES", 50)
    table = opened(text(values) if kind == "text" else values, checked=False)
    for _ in range(40):
        first = int(rng.integers(0, 11))
        rows = range(first, int(rng.integers(first, 12)))
        found = [batch.values for batch in table.batches(int(rng.integers(1, 5)), rows)]
        assert b"".join(part.tobytes() for part in found) == values[rows.start : rows.stop].tobytes()


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 20, 64])
@pytest.mark.parametrize("separator", ["\n", "  ", "\r\n", "\t \n\n"])
def test_any_white_space_and_any_chunks(opened, values, monkeypatch, chunk, separator):
    monkeypatch.setattr(tables, "CHUNK_BYTES", chunk)
    for end in ("", "\n", " \r\n\n"):
        table = opened(" \n" + text(values, separator) + end)
        assert np.concatenate([batch.values for batch in table.batches(4)]).tobytes() == values.tobytes()


def test_the_courses_own_shape(opened, values):
    lines = "\n".join("".join(f"{x:f} " for x in row) for row in values)
    table = opened(f"11\n{lines}\n")
    found = next(table.batches(11)).values
    assert np.abs(found - values).max() < 1e-6


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ">f4", np.int8, np.uint64, bool])
def test_types_of_arrays(opened, values, dtype):
    array = np.abs(np.round(values * 9)).astype(dtype)
    assert next(opened(array).batches(11)).values.tobytes() == array.astype(np.float32).tobytes()


def test_images(opened, rng):
    images = rng.standard_normal((4, 2, 5, 3)).astype(np.float32)
    for content in (images, text(images)):
        found = next(opened(content, shape=(2, 5, 3)).batches(4)).values
        assert found.tobytes() == images.tobytes() and found.shape == images.shape


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the input is empty. Start it with the number of images"),
        (" \n ", "the input is empty"),
        ("2\n1 2 3 4 5", "starts with 2; 2 images of 3 numbers are 6, and 5 follow. Check the file: it was cut short"),
        ("2\n1 2 3 4 5 6 7", "6, and at least 7 follow"),
        ("2", "6, and 0 follow"),
        ("999999999999999999 1 2 3", "999999999999999999; .* and 3 follow"),
        ("9" * 60, "starts with '99999"),
        ("9" * 10_000, "starts with '99999"),
        ("0\n", "the input holds no images"),
        ("-1\n1 2 3", "starts with '-1'; the number of images is wanted"),
        ("1.5 2 3", "starts with '1.5'"),
        ("nan", "starts with 'nan'"),
        ("2\n1 2 3 4 nan 6", r"image 1, number 1 \(both from 0\): holds nan; finite"),
        ("1\n1 inf 3", r"image 0, number 1 \(both from 0\): holds inf"),
        ("1\n1 1e39 3", r"image 0, number 1 .*holds inf"),
        ("2\n1 2 3 4 5 x", r"image 1, number 2 .*'x' is no number"),
        ("1\n1 1_0 3", "'1_0' is no number"),
        ("1\n1 0x10 3", "'0x10' is no number"),
        ("1\n1,2,3", "'1,2,3' is no number"),
        ("1\n1 2 " + "3" * 65, "image 0, number 2 .*'333.*is no number"),
        (b"1\n1 \xff\x1b[2J 3", r"no number"),
        (b"\x93NUMPY" + bytes(100), "starts with"),
        (b"1 2 \0 3", "no number"),
    ],
)
def test_bad_text(opened, content, message):
    with pytest.raises(InputError, match=message) as caught:
        opened(content)
    assert len(str(caught.value)) < 500 and "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3), r"the input has shape \(3,\); \(n, 3\) is wanted"),
        (np.zeros((2, 4)), r"shape \(2, 4\)"),
        (np.zeros((2, 3, 1)), r"shape \(2, 3, 1\)"),
        (np.zeros((0, 3)), "holds no images"),
        (np.asfortranarray(np.zeros((2, 3))), "Fortran order; C order is read"),
        (np.array([[0, 1, 2], [3, np.nan, 5]]), r"image 1, number 1 \(both from 0\): holds nan"),
        (np.full((2, 3), 1e300), r"image 0, number 0 .*holds inf"),
        (np.full((2, 3), None), "pickles"),
        (np.zeros((2, 3), complex), "complex|c16"),
    ],
)
def test_bad_arrays(opened, array, message):
    with pytest.raises(InputError, match=message):
        opened(array)


def test_too_few(opened, values):
    for content in (values, text(values)):
        with pytest.raises(InputError, match=r"holds 11 images; 12 were asked for\. Lower -n"):
            opened(content, count=12)


def test_another_kind_of_file(opened):
    with pytest.raises(UsageError, match=r"the input is no \.txt or \.npy file"):
        opened("1\n1 2 3", name="in.jsonl")


@pytest.mark.parametrize("size", range(0, 200, 7))
def test_truncated_arrays(opened, values, tmp_path, size):
    opened(values)
    content = (tmp_path / "in.npy").read_bytes()[:size]
    with pytest.raises(InputError):
        opened(content, name="in.npy")


def test_without_a_scan_what_is_wrong_is_found_on_the_way(opened, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK_BYTES", 8)
    for content, message in (("3\n1 2 3 4 5 6 7 8 x", "'x'"), ("3\n1 2 3 4 5 6 7 8", "and 8 follow")):
        batches = opened(content, checked=False).batches(1)
        assert next(batches).values.tolist() == [[1, 2, 3]]
        with pytest.raises(InputError, match=message):
            list(batches)


def test_a_file_that_shrinks(opened, values, tmp_path):
    for content in (values, text(values)):
        table = opened(content)
        batches = table.batches(1)
        os.truncate(table.file.path, table.bytes // 2)
        with pytest.raises(InputError, match="shrank while it was read"):
            list(batches)


def test_descriptors_are_closed(opened):
    before = len(os.listdir("/proc/self/fd"))
    for content in ("x", np.zeros((2, 4))):
        for _ in range(3):
            with pytest.raises(InputError):
                opened(content)
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_does_not_grow_with_what_a_count_claims(opened):
    import tracemalloc

    tracemalloc.start()
    with pytest.raises(InputError, match="follow"):
        opened(f"{10**17} 1 2 3")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_mutated_files_are_refused_or_read(opened, values, rng, tmp_path):
    """3,000 files of each kind with some bytes changed, cut or doubled: InputError, or as many numbers as it says."""
    opened(values)
    sources = {"in.npy": (tmp_path / "in.npy").read_bytes(), "in.txt": text(values).encode()}
    for name, source in sources.items():
        read = 0
        for _ in range(3000):
            content = bytearray(source)
            for place in rng.integers(0, min(len(content), 160), rng.integers(1, 4)):
                content[place] = rng.integers(0, 256)
            if rng.random() < 0.2:
                content = content[: rng.integers(0, len(content))]
            (tmp_path / name).write_bytes(content)
            try:
                with open_table(tmp_path / name, shape=(WIDTH,)) as table:
                    assert sum(len(batch.values) for batch in table.batches(4)) == table.total
                    read += 1
            except InputError as error:
                assert str(error).startswith(str(tmp_path / name))
        assert 0 < read < 3000
